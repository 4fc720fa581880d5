"""Micro-batches of whole queries: each in one micro-batch of one rank, counted as one, drawn as other orders draw."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.order import Order, TokenOrder, Whole
from nlu.data.query_order import Queries, QueryOrder

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=25)


class Part:
    """Examples of queries of these sizes, whose rows stand in any order."""

    def __init__(self, sizes, seed=0):
        rng = np.random.default_rng(seed)
        query_N = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        self.query_N, self.rows_N, self.lengths_N = query_N, np.arange(len(query_N)), rng.integers(1, 9, len(query_N))
        self.stored = self
        self.first_N = query_N * 1000 - 7


def made(part, kind, rank=0, world_size=1):
    queries = Queries(part)
    common = {"seed": 3, "bucket_batches": 2, "rank": rank, "world_size": world_size}
    if kind == "tokens":
        return QueryOrder(queries, TokenOrder(queries.lengths_Q, batch_tokens=60, **common))
    return QueryOrder(queries, Order(Whole(queries.lengths_Q), batch_size=3, accumulation=2, **common))


@pytest.mark.parametrize("kind", ["queries", "tokens"])
@given(SIZES, st.integers(1, 3))
def test_the_rows_of_a_query_are_in_one_micro_batch_of_one_rank(kind, sizes, world_size):
    part = Part(sizes)
    ranks = [made(part, kind, rank, world_size) for rank in range(world_size)]
    seen = Counter()
    for step in range(ranks[0].steps_per_epoch):
        whole = ranks[0].global_step(step)
        shares = [one.step(step) for one in ranks]
        for place, batch in enumerate(whole):
            parts = [share[place] for share in shares]
            assert sorted(np.concatenate(parts).tolist()) == sorted(batch.tolist())
            for examples_B in parts:
                for query in set(part.query_N[examples_B].tolist()):
                    assert (part.query_N[examples_B] == query).sum() == sizes[query]
            seen.update(batch.tolist())
            if kind == "tokens":
                assert part.lengths_N[batch].sum() <= 60
            else:
                assert len(set(part.query_N[batch].tolist())) <= 3
    assert set(seen.values()) == {1} and len(seen) == len(part.rows_N)


def test_lengths_are_those_of_all_rows_of_a_query():
    part = Part([2, 1, 3])
    queries = Queries(part)
    for number, length in enumerate(queries.lengths_Q.tolist()):
        rows = queries.rows(np.array([number]))
        assert part.lengths_N[rows].sum() == length and len(set(part.query_N[rows].tolist())) == 1
        assert rows.tolist() == sorted(rows.tolist())
    assert [int(queries.rows(np.array([number]))[0]) for number in range(3)] == sorted(
        int(np.flatnonzero(part.query_N == query)[0]) for query in range(3)
    )
