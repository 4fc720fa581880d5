"""Spans read from tags, and their counts, against sums done by hand."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.targets.tags import split_tag, to_bio
from nlu.metrics.spans import SpanScorer, spans_of


@pytest.mark.parametrize(
    ("tags", "spans"),
    [("", []), ("O O", []), ("B-X I-X O B-X", [(0, 1, "X"), (3, 3, "X")]), ("B-X B-X", [(0, 0, "X"), (1, 1, "X")]),
     ("O I-X I-X", [(1, 2, "X")]), ("B-X I-Y I-Y", [(0, 0, "X"), (1, 2, "Y")]),
     ("I-X B-X I-X", [(0, 0, "X"), (1, 2, "X")]), ("B-first-name I-first-name", [(0, 1, "first-name")])],
)  # fmt: skip
def test_spans_are_read_from_bio_tags(tags, spans):
    assert spans_of(tags.split()) == spans


def test_records_of_tagged_rows_are_scored_as_by_hand() -> None:
    scorer = SpanScorer(["O", "B-X", "I-X", "B-Y", "I-Y"])
    for label, spans, units, right, scored, loss in (
        ([[0, 1, "X"], [3, 3, "Y"]], [[0, 1, "X"], [3, 4, "Y"]], 6, 4, 5, 2.0),
        ([[1, 1, "X"]], [[1, 1, "X"], [2, 2, "Z"]], 3, 2, 3, 1.5),
        ([[0, 0, "Y"], [1, 1, "X"]], [], 2, 1, 2, 0.5),
    ):
        scorer.add(
            {"label": label, "spans": spans, "units": units, "units_right": right, "units_scored": scored, "loss": loss}
        )
    result = scorer.result()
    # X: 2 right of 2 found and 3 wanted; Y: none of 1 and 2; Z: none of 1 and 0.
    assert result.metrics == pytest.approx(
        {"span_precision": 2 / 4, "span_recall": 2 / 5, "span_f1": 4 / 9, "tag_accuracy": 7 / 11, "loss": 4.0 / 10}
    )
    assert result.by_label == [
        {"label": "X", "examples": 3, "correct": 2, "precision": 1.0, "recall": 2 / 3, "f1": 4 / 5},
        {"label": "Y", "examples": 2, "correct": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0},
        {"label": "Z", "examples": 0, "correct": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0},
    ]
    assert math.isnan(SpanScorer([]).result().metrics["loss"])


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", "B", "I"]), max_size=9))
def test_a_span_is_a_longest_run_of_inner_tags_behind_its_first(tags):
    parts = [split_tag(tag) for tag in tags]
    bio = [letter if letter == "O" else f"{letter}-{kind}" for letter, kind in to_bio(parts)[0]]

    def is_span(first, last, kind):
        goes_on = [place < len(tags) and parts[place] == ("I", kind) for place in range(first, last + 2)]
        begins = parts[first] == ("B", kind) or goes_on[0] and (first == 0 or parts[first - 1][1] != kind)
        return begins and all(goes_on[1:-1]) and not goes_on[-1]

    places = itertools.combinations_with_replacement(range(len(tags)), 2)
    wanted = [(first, last, kind) for first, last in places for kind in ("X", "Y", "_") if is_span(first, last, kind)]
    assert spans_of(bio) == wanted
