"""Scores of queries, for each of which retrieval ranks all candidates of the set.

Axes: Q queries, K candidates, D width.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np

from nlu.metrics.scores import Record, Scores

METRICS = ("mrr", "ndcg_10", "recall_1", "recall_5", "recall_10")


class RankingScorer:
    """Recall at k, mean reciprocal rank and NDCG at 10 over the set's candidates.

    A record holds `query` and `candidate`, which name two texts, their vectors `query_vector` and `candidate_vector`
    (of length 1), and `label`, whether this candidate answers this query. The candidates of a query are all candidates
    of the set except its own text, as in BEIR (Thakur et al. 2021): each paraphrase is both a query and a candidate,
    and would be nearest to itself. Candidates of equal score are ranked by name. Queries without a relevant candidate
    are left out. If no query has another relevant candidate than its own text (SimCSE), own texts are candidates too.
    Recall at k is the share of a query's relevant candidates among its first k; NDCG is that of Jarvelin and
    Kekalainen 2002 with gain 1. Memory: the vectors of all distinct texts.
    """

    joins = False
    """predictions keep no vectors, so folds cannot be scored together"""

    def __init__(self, names: list[str]):
        self._queries: dict[str, np.ndarray] = {}
        self._candidates: dict[str, np.ndarray] = {}
        self._relevant: dict[str, set[str]] = {}
        self._own: dict[str, set[str]] = {}
        """queries whose own text is a relevant candidate"""

    def add(self, record: Record) -> None:
        for vectors, role in ((self._queries, "query"), (self._candidates, "candidate")):
            if (name := record[role]) not in vectors:
                # A copy: a view would keep the vectors of its whole batch.
                vectors[name] = np.array(record[f"{role}_vector"], np.float32)
        if record["label"]:
            kind = self._relevant if record["candidate"] != record["query"] else self._own
            kind.setdefault(record["query"], set()).add(record["candidate"])

    def merge(self, other: Self) -> None:
        # A text has the same vector in every scorer, so it does not matter whose is kept.
        self._queries = other._queries | self._queries
        self._candidates = other._candidates | self._candidates
        for own, others in ((self._relevant, other._relevant), (self._own, other._own)):
            for query, relevant in others.items():
                own.setdefault(query, set()).update(relevant)

    def result(self) -> Scores:
        ranks_of = list(self._ranks(self._relevant or self._own, leaves_out_own=bool(self._relevant)))
        if not ranks_of:
            return Scores(dict.fromkeys(METRICS, math.nan))
        by_query = {"mrr": [1 / ranks[0] for ranks in ranks_of], "ndcg_10": [_ndcg(ranks, 10) for ranks in ranks_of]}
        for k in (1, 5, 10):
            by_query[f"recall_{k}"] = [sum(rank <= k for rank in ranks) / len(ranks) for ranks in ranks_of]
        # fsum rounds once, so the mean does not depend on the order of queries.
        return Scores({name: math.fsum(values) / len(values) for name, values in by_query.items()}, by_query=by_query)

    def _ranks(self, relevant: Mapping[str, set[str]], leaves_out_own: bool) -> Iterable[list[int]]:
        """Yield the ranks, from 1, of each query's relevant candidates, best first, in the order of queries' names."""
        # Sorted, so that the stable sort below ranks candidates of equal score by name, not by the order in which they
        # were added.
        names = sorted(self._candidates)
        place = {name: number for number, name in enumerate(names)}
        candidates_KD = np.stack([self._candidates[name] for name in names]).astype(np.float64)
        for query in sorted(relevant):
            # One query at a time, since the rounding of a matrix product may depend on its number of rows.
            score_K = candidates_KD @ self._queries[query].astype(np.float64)
            if leaves_out_own and query in place:
                score_K[place[query]] = -np.inf
            rank_K = np.empty(len(names), np.int64)
            rank_K[np.argsort(-score_K, kind="stable")] = np.arange(1, len(names) + 1)
            yield sorted(int(rank_K[place[name]]) for name in relevant[query])


def _ndcg(ranks: list[int], k: int) -> float:
    gain = sum(1 / math.log2(rank + 1) for rank in ranks if rank <= k)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(ranks)) + 1))
