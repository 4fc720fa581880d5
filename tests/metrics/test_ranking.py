"""Scores of retrieval against values worked out by hand."""

import math

import numpy as np
import pytest

from nlu.metrics.ranking import RankingScorer


def record(query: str, candidate: str, query_vector: list[float], vector: list[float], label: bool) -> dict:
    return {
        "query": query, "candidate": candidate, "query_vector": np.array(query_vector, np.float32),
        "candidate_vector": np.array(vector, np.float32), "label": label,
    }  # fmt: skip


def test_retrieval_is_scored_as_by_hand() -> None:
    scorer = RankingScorer([])
    # Query p scores x 1.0, y 0.6, z 0.0 and wants y and z: ranks 2 and 3. Query q scores z 1.0 and wants z: rank 1.
    scorer.add(record("p", "x", [1, 0], [1, 0], False))
    scorer.add(record("p", "y", [1, 0], [0.6, 0.8], True))
    scorer.add(record("p", "z", [1, 0], [0, 1], True))
    scorer.add(record("q", "z", [0, 1], [0, 1], True))
    scores = scorer.result().metrics
    assert scores["mrr"] == pytest.approx((1 / 2 + 1) / 2)
    assert scores["recall_1"] == pytest.approx((0 + 1) / 2) and scores["recall_5"] == 1.0
    ideal = 1 / math.log2(2) + 1 / math.log2(3)
    assert scores["ndcg_10"] == pytest.approx(((1 / math.log2(3) + 1 / math.log2(4)) / ideal + 1) / 2)


def test_all_texts_of_the_set_are_candidates_for_every_query() -> None:
    scorer = RankingScorer([])
    scorer.add(record("p", "x", [1, 0], [0.9, 0.1], True))
    scorer.add(record("q", "y", [0, 1], [1, 0], True))
    # For p the other query's candidate is nearer; for q its own is farther.
    assert scorer.result().metrics["mrr"] == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_own_texts_are_candidates_if_no_query_has_another_relevant_one() -> None:
    first, second = RankingScorer([]), RankingScorer([])
    first.add(record("a", "a", [1, 0], [1, 0], True))
    second.add(record("b", "b", [0.8, 0.6], [0.6, 0.8], True))
    second.add(record("c", "c", [0.6, -0.8], [0.8, -0.6], False))
    first.merge(second)
    # b scores a 0.8, b 0.96, c 0.28; a scores a 1.0, c 0.8, b 0.6.
    assert first.result().metrics["mrr"] == 1.0
    first.add(record("b", "d", [0.8, 0.6], [0, 1], True))
    # Now only b has a query, without its own text: a 0.8, d 0.6, c 0.28.
    assert first.result().metrics["mrr"] == 1 / 2


def test_a_query_is_not_ranked_against_its_own_text() -> None:
    # Two paraphrases, each the query of the other: what is nearest to a query after itself is right both times.
    scorer = RankingScorer([])
    texts = {"a": [1.0, 0.0], "b": [0.8, 0.6], "c": [0.0, 1.0]}
    for query, candidate, is_right in [("a", "b", True), ("b", "a", True), ("c", "c", True), ("b", "c", False)]:
        scorer.add(record(query, candidate, texts[query], texts[candidate], is_right))
    scores = scorer.result()
    assert scores.metrics["recall_1"] == scores.metrics["mrr"] == scores.metrics["ndcg_10"] == 1.0
    # A text that is relevant only to itself does not count as a query.
    assert len(scores.by_query["mrr"]) == 2
