"""Scores of ranked candidates, against scikit-learn and by hand."""

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from nlu.metrics.reranking import RerankingScorer


def rows_of(seed=0, queries=40):
    rng = np.random.default_rng(seed)
    return [
        {"query": int(query) * 10**17, "label": float(rng.choice([0, 0, 1, 2, -1])), "score": float(rng.normal())}
        for query in rng.integers(0, queries, 300)
    ]


def scorer_of(rows):
    scorer = RerankingScorer([])
    for row in rows:
        scorer.add(row)
    return scorer


def test_ndcg_and_map_are_those_of_scikit_learn_over_queries_with_a_relevant_row():
    rows, ndcg, precision, reciprocal = rows_of(), [], [], []
    for query in {row["query"] for row in rows}:
        own = [row for row in rows if row["query"] == query]
        label_K, score_K = (np.array([row[name] for row in own]) for name in ("label", "score"))
        if (label_K > 0).any():
            gain_K = np.maximum(label_K, 0)
            ndcg.append(ndcg_score(gain_K[None], score_K[None], k=10) if len(own) > 1 else 1.0)
            precision.append(average_precision_score(label_K > 0, score_K))
            ranked = sorted(own, key=lambda row: -row["score"])
            reciprocal.append(1 / next(rank for rank, row in enumerate(ranked, 1) if row["label"] > 0))
    found = scorer_of(rows).result()
    wanted = {
        "ndcg_10": ndcg,
        "map": precision,
        "mrr": reciprocal,
        "mrr_10": [one * (one >= 0.1) for one in reciprocal],
    }
    assert found.metrics == pytest.approx({name: np.mean(values) for name, values in wanted.items()}, rel=1e-12)
    assert {name: len(values) for name, values in found.by_query.items()} == dict.fromkeys(wanted, len(ndcg))


def test_merged_scorers_of_rows_in_any_order_give_the_same_bits():
    rows = rows_of(1)
    whole, parts = scorer_of(rows).result(), [scorer_of(rows[::-3]), scorer_of(rows[-2::-3]), scorer_of(rows[-3::-3])]
    for other in parts[1:]:
        parts[0].merge(other)
    assert parts[0].result() == whole


def test_equal_scores_rank_the_lower_label_first():
    rows = [{"query": 1, "label": label, "score": 0.5} for label in (1, 0, 0)]
    assert scorer_of(rows).result().metrics["mrr"] == pytest.approx(1 / 3)


def test_a_set_without_a_relevant_row_has_no_score():
    assert all(map(math.isnan, scorer_of([{"query": 1, "label": 0.0, "score": 1.0}]).result().metrics.values()))
