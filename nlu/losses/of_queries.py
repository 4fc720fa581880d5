"""Losses that compare the rows of each query, from its scores s and its labels y.

    Listwise      -sum over i of w_i log softmax(s)_i, w = the labels above 0, divided by their sum
                  (Cao et al. 2007, https://doi.org/10.1145/1273496.1273513; Bruch et al. 2019,
                  https://doi.org/10.1145/3341981.3344221)
    Pairwise      log(1 + exp(s_j - s_i)) for each pair with y_i > y_j
                  (Burges et al. 2005, https://doi.org/10.1145/1102351.1102363)
    MarginMse     ((s_i - s_j) - (y_i - y_j))^2 for each row j below the row i with the largest label, in the mean over
                  several such i (Hofstaetter et al. 2020, https://arxiv.org/abs/2010.02666)

Axes: N rows of any number of queries, Q queries, K rows of a query.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


class OfQueries:
    """A loss over the rows of each query, summed over queries; `queries_N` has equal numbers for rows of one query."""

    by_row = False
    reads = "groups"
    kinds: tuple[str, ...]
    bind = RowLoss.bind

    def __init__(self, keys: schemas.OfQueries):
        self.scale = keys.scale

    def count(self, labels_N: Tensor, queries_N: Tensor) -> int:
        """Return by how many queries, or pairs of rows, the sum is divided; the tensors are on the host."""
        raise NotImplementedError

    def of_grid(self, scores_QK: Tensor, labels_QK: Tensor, is_there_QK: Tensor) -> Tensor:
        """Return the sum over queries whose rows stand side by side; `is_there_QK`: which places have a row."""
        raise NotImplementedError

    def __call__(self, scores_N: Tensor, labels_N: Tensor, queries_N: Tensor | None = None) -> Tensor:
        """Return the sum, a float32 scalar, 0 without rows; without `queries_N` all rows are of one query."""
        if not len(scores_N):
            # Unlike a constant, this sum has a graph, which `backward` needs.
            return scores_N.float().sum()
        queries_N = torch.zeros_like(labels_N) if queries_N is None else queries_N
        query_N, place_N, counts_Q = _places(queries_N)
        shape, at = (len(counts_Q), int(counts_Q.max())), (query_N, place_N)
        is_there_QK = torch.zeros(shape, dtype=torch.bool, device=labels_N.device)
        is_there_QK[at] = True
        labels_QK = labels_N.new_zeros(shape, dtype=torch.float32).index_put(at, labels_N.float())
        scores_QK = scores_N.new_zeros(shape, dtype=torch.float32).index_put(at, self.scale * scores_N.float())
        return self.of_grid(scores_QK, labels_QK, is_there_QK)


def _places(queries_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of each row's query, its place among the rows of this query, and the rows of each query."""
    _, query_N, counts_Q = torch.unique(queries_N, return_inverse=True, return_counts=True)
    order_N = query_N.argsort(stable=True)
    place_N = torch.empty_like(order_N)
    starts_Q = counts_Q.cumsum(0) - counts_Q
    place_N[order_N] = torch.arange(len(order_N), device=order_N.device) - starts_Q[query_N[order_N]]
    return query_N, place_N, counts_Q


@takes(schemas.Listwise)
class Listwise(OfQueries):
    """Cross-entropy of the softmax over the rows of a query, in nats; queries without a label above 0 count nothing."""

    def count(self, labels_N: Tensor, queries_N: Tensor) -> int:
        return len(queries_N[labels_N > 0].unique())

    def of_grid(self, scores_QK: Tensor, labels_QK: Tensor, is_there_QK: Tensor) -> Tensor:
        log_p_QK = F.log_softmax(scores_QK.masked_fill(~is_there_QK, -torch.inf), 1).masked_fill(~is_there_QK, 0)
        gains_QK = labels_QK.clamp_min(0)
        weights_QK = gains_QK / gains_QK.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        return -(weights_QK * log_p_QK).sum()


@takes(schemas.Pairwise)
class Pairwise(OfQueries):
    """RankNet: each row should have a higher score than those with a lower label, in nats."""

    def count(self, labels_N: Tensor, queries_N: Tensor) -> int:
        return int(((queries_N[:, None] == queries_N) & (labels_N[:, None] > labels_N)).sum())

    def of_grid(self, scores_QK: Tensor, labels_QK: Tensor, is_there_QK: Tensor) -> Tensor:
        is_pair_QKK = is_there_QK[:, :, None] & is_there_QK[:, None] & (labels_QK[:, :, None] > labels_QK[:, None])
        return (F.softplus(scores_QK[:, None] - scores_QK[:, :, None]) * is_pair_QKK).sum()


@takes(schemas.MarginMse)
class MarginMse(OfQueries):
    """Squared difference of margins between scores and those between labels, such as the scores of a reranker."""

    def count(self, labels_N: Tensor, queries_N: Tensor) -> int:
        is_below_NN = (queries_N[:, None] == queries_N) & (labels_N[:, None] > labels_N)
        return int(is_below_NN.any(0).sum())

    def of_grid(self, scores_QK: Tensor, labels_QK: Tensor, is_there_QK: Tensor) -> Tensor:
        largest_Q1 = labels_QK.masked_fill(~is_there_QK, -torch.inf).amax(1, keepdim=True)
        is_best_QK = is_there_QK & (labels_QK == largest_Q1)
        is_pair_QKK = is_best_QK[:, :, None] & (is_there_QK & ~is_best_QK)[:, None]
        away_QK = scores_QK - labels_QK
        errors_QKK = (away_QK[:, :, None] - away_QK[:, None]).square() * is_pair_QKK
        return (errors_QKK.sum((1, 2)) / is_best_QK.sum(1)).sum()
