"""Exact sums, and the promise of every scorer: the same bits for any order of records and any split of them."""

import math
import pickle
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlu.metrics.classes import ClassScorer, SimilarityScorer
from nlu.metrics.label_sets import LabelSetScorer
from nlu.metrics.numbers import NumberScorer
from nlu.metrics.ranking import RankingScorer
from nlu.metrics.scores import Scorer, Total
from nlu.metrics.spans import SpanScorer

NAMES = ["a", "b"]


def class_record(rng: np.random.Generator) -> dict[str, Any]:
    margin = float(rng.normal())
    label, prediction = int(rng.integers(2)), int(margin > 0)
    return {"label": NAMES[label], "prediction": NAMES[prediction], "margin": margin, "loss": float(rng.exponential())}


def span_record(rng: np.random.Generator) -> dict[str, Any]:
    def spans() -> list[tuple[int, int, str]]:
        return [(start, start + int(rng.integers(2)), NAMES[rng.integers(2)]) for start in range(0, 9, 3)]

    return {
        "label": spans(), "spans": spans(), "units": 9, "units_right": int(rng.integers(10)),
        "units_scored": int(rng.integers(1, 9)), "loss": float(rng.exponential()),
    }  # fmt: skip


def number_record(rng: np.random.Generator) -> dict[str, Any]:
    return {"label": float(rng.normal()), "prediction": float(rng.normal()), "loss": float(rng.exponential())}


def label_set_record(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "label": [name for name in NAMES if rng.random() < 0.5], "loss": float(rng.exponential()),
        "probabilities": {name: float(np.float32(rng.random())) for name in NAMES},
    }  # fmt: skip


def similarity_record(rng: np.random.Generator) -> dict[str, Any]:
    return {"label": NAMES[rng.integers(2)], "similarity": float(rng.normal())}


def ranking_record(rng: np.random.Generator) -> dict[str, Any]:
    texts = rng.integers(0, 6, 2).tolist()
    vectors = [np.random.default_rng(text).normal(size=4).astype(np.float32) for text in texts]
    return {
        "query": str(texts[0]), "candidate": str(texts[1]), "query_vector": vectors[0],
        "candidate_vector": vectors[1], "label": bool(rng.random() < 0.5),
    }  # fmt: skip


SCORERS: dict[str, tuple[Callable[[], Any], Callable[[np.random.Generator], dict[str, Any]]]] = {
    "classes": (lambda: ClassScorer(NAMES), class_record),
    "three classes": (lambda: ClassScorer([*NAMES, "c"]), class_record),
    "tagging": (lambda: SpanScorer(NAMES), span_record),
    "numbers": (lambda: NumberScorer([]), number_record),
    "label sets": (lambda: LabelSetScorer(NAMES, None), label_set_record),
    "similarity": (lambda: SimilarityScorer(NAMES, None), similarity_record),
    "ranking": (lambda: RankingScorer([]), ranking_record),
}


def scored(make: Callable[[], Scorer], records: Sequence[dict[str, Any]], pieces: int) -> Any:
    scorers = [make() for _ in range(pieces)]
    for number, record in enumerate(records):
        scorers[number % pieces].add(record)
    for other in scorers[1:]:
        scorers[0].merge(other)
    return scorers[0].result()


@pytest.mark.parametrize("name", SCORERS)
@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), pieces=st.integers(1, 4))
def test_scores_have_the_same_bits_in_any_order_and_from_any_number_of_scorers(
    name: str, seed: int, pieces: int
) -> None:
    make, record = SCORERS[name]
    rng = np.random.default_rng(seed)
    records = [record(rng) for _ in range(23)]
    whole = scored(make, records, 1)
    parts = scored(make, [records[i] for i in rng.permutation(len(records))], pieces)
    assert repr(parts.metrics) == repr(whole.metrics)
    assert parts.by_label == whole.by_label


@pytest.mark.parametrize(
    ("name", "expected"), {"classes": 9, "three classes": 0, "tagging": 0, "numbers": 16, "label sets": 10}.items()
)
def test_a_scorer_keeps_few_bytes_of_each_example(name: str, expected: int) -> None:
    make, record = SCORERS[name]
    scorer, rng, sizes = make(), np.random.default_rng(0), []
    for _ in range(2):
        for _ in range(1000):
            scorer.add(record(rng))
        sizes.append(len(pickle.dumps(scorer)))
    # A resample of an interval is put together from them, a thousand times.
    assert (sizes[1] - sizes[0]) / 1000 == pytest.approx(expected, abs=0.1)


def total(values: list[float]) -> float:
    """Return the sum of the even and the odd places, merged."""
    sums = Total(), Total()
    for place, value in enumerate(values):
        sums[place % 2].add(value)
    sums[0].merge(sums[1])
    return sums[0].value


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_an_exact_sum_is_the_rounded_sum_of_the_numbers_themselves(values: list[float]) -> None:
    assert total(values) == float(sum(map(Fraction, values)))


def test_a_sum_with_a_number_that_is_none_says_so() -> None:
    assert total([1.0, math.inf]) == math.inf
    assert math.isnan(total([math.inf, 1.0, -math.inf])) and math.isnan(total([1.0, math.nan]))
