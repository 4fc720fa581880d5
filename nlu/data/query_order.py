"""The order of a set whose micro-batches have whole queries: the rows with the same first text are taken together.

Axes: N examples, Q queries, B queries of a micro-batch.
"""

from collections.abc import Callable

import numpy as np

from nlu.data.arrays import ranges, starts_of
from nlu.data.examples import Examples
from nlu.data.order import Order, TokenOrder


class Queries:
    """The queries of a set, in the order of their first rows."""

    def __init__(self, part: Examples):
        hash_N = part.stored.first_N[part.rows_N]
        _, first_Q, query_N = np.unique(hash_N, return_index=True, return_inverse=True)
        place_Q = np.empty_like(first_Q)
        place_Q[np.argsort(first_Q)] = np.arange(len(first_Q))
        query_N = place_Q[query_N]
        self._rows_N = np.argsort(query_N, kind="stable")
        self._counts_Q = np.bincount(query_N)
        self._starts_Q = starts_of(self._counts_Q)
        self.lengths_Q = np.bincount(query_N, weights=part.lengths_N).astype(np.int64)
        """the tokens of all rows of each query"""

    def __len__(self) -> int:
        return len(self._counts_Q)

    def rows(self, query_B: np.ndarray) -> np.ndarray:
        """Return the examples of these queries, one query after another; int64."""
        return self._rows_N[ranges(self._starts_Q[query_B], self._counts_Q[query_B])]


class QueryOrder:
    """The examples of the queries that another order takes: it shuffles, sorts, shares and counts whole queries."""

    def __init__(self, queries: Queries, of_queries: Order | TokenOrder):
        self.queries, self.of_queries = queries, of_queries
        self.steps_per_epoch = of_queries.steps_per_epoch
        self.member_of: Callable[[int], str] = of_queries.member_of
        self.epoch_of: Callable[[int], int] = of_queries.epoch_of

    def step(self, number: int) -> list[np.ndarray]:
        """Return this rank's share of each micro-batch of a step, counted from 0: the examples of its queries."""
        return [self.queries.rows(query_B) for query_B in self.of_queries.step(number)]

    def global_step(self, number: int) -> list[np.ndarray]:
        """Return the examples of each micro-batch over all ranks."""
        return [self.queries.rows(query_B) for query_B in self.of_queries.global_step(number)]
