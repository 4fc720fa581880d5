"""Scores of candidates that are ranked for each query by a number, as a reranker gives it. Axes: K rows of a query."""

import math

import numpy as np

from nlu.metrics.scores import Columns, Scores

METRICS = ("ndcg_10", "mrr", "mrr_10", "map")


class RerankingScorer(Columns):
    """NDCG at 10 with the labels as gains and mean average precision, both by scikit-learn, and mean reciprocal rank,
    also of the first 10 only.

    A record holds `query`, an integer, `label`, a number that is relevant above 0, and `score`. scikit-learn takes the
    mean over the orders of equal scores; the reciprocal rank is that of the lower label first. Queries without a
    relevant row are left out, as in BEIR (Thakur et al. 2021). Memory: 24 bytes a row.
    """

    def __init__(self, names: list[str]):
        super().__init__(query="q", label="d", score="d")

    def result(self) -> Scores:
        query_N, label_N, score_N = self.arrays("query", "label", "score")
        # In an order that does not depend on that in which rows were added.
        order_N = np.lexsort((label_N, -score_N, query_N))
        ends = np.flatnonzero(np.diff(query_N[order_N])) + 1
        of_queries = zip(*(np.split(each[order_N], ends) for each in (label_N, score_N)), strict=True)
        rows = [_of_query(label_K, score_K) for label_K, score_K in of_queries if (label_K > 0).any()]
        if not rows:
            return Scores(dict.fromkeys(METRICS, math.nan))
        by_query = {name: list(values) for name, values in zip(METRICS, zip(*rows, strict=True), strict=True)}
        # fsum rounds once, so the mean does not depend on the order of queries.
        return Scores({name: math.fsum(values) / len(values) for name, values in by_query.items()}, by_query=by_query)


def _of_query(label_K: np.ndarray, score_K: np.ndarray) -> tuple[float, float, float, float]:
    """Return the METRICS of a query, whose rows stand in the order of scores, best first."""
    from sklearn.metrics import average_precision_score, ndcg_score

    gain_K = np.maximum(label_K, 0)
    # scikit-learn refuses a single row, which is in its best place.
    ndcg = ndcg_score(gain_K[None], score_K[None], k=10) if len(gain_K) > 1 else 1.0
    rank = int(np.flatnonzero(gain_K)[0]) + 1
    reciprocal = 1 / rank
    return (
        float(ndcg),
        reciprocal,
        reciprocal if rank <= 10 else 0.0,
        float(average_precision_score(gain_K > 0, score_K)),
    )
