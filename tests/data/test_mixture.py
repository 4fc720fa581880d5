"""The order of a mixture: how often each set is taken, complete epochs, the same from any step and for any rank."""

from collections import Counter
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.mixture import MixedOrder, quotas
from nlu.data.order import Order, Whole

SETS = st.lists(st.integers(1, 30), min_size=1, max_size=4)
ALPHAS = st.sampled_from([0.0, 0.3, 0.5, 1.0])
SIZES = st.integers(1, 9)


def mixture(sizes, *, alpha=1.0, seed=1, batch_size=4, accumulation=1, rank=0, world_size=1):
    orders = {
        f"set{number}": Order(
            Whole(np.arange(size, dtype=np.int32) % 7 + 1), seed=seed, batch_size=batch_size,
            accumulation=accumulation, bucket_batches=2, rank=rank, world_size=world_size,
        )
        for number, size in enumerate(sizes)
    }  # fmt: skip
    return MixedOrder(orders, seed=seed, alpha=alpha), orders


def plain(batches):
    return [batch.tolist() for batch in batches]


def steps_once(sizes, step_rows):
    return [ceil(size / step_rows) for size in sizes]


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.7, 1.0])
def test_sets_are_taken_in_proportion_to_their_size_to_the_power_of_alpha(alpha):
    sizes = [4000, 800, 200, 40]
    order, _ = mixture(sizes, alpha=alpha)
    assert order.steps_per_round == sum(sizes) // 4
    rounds = 3
    counts = Counter(order.member_of(step) for step in range(rounds * order.steps_per_round))
    total = sum(size**alpha for size in sizes)
    for number, size in enumerate(sizes):
        wanted = order.steps_per_round * size**alpha / total
        assert abs(counts[f"set{number}"] - rounds * wanted) < rounds


@given(SETS, ALPHAS, SIZES)
def test_the_quotas_of_a_round_are_the_exact_shares_rounded_up_or_down(sizes, alpha, step_rows):
    steps = steps_once(sizes, step_rows)
    found = quotas(steps, alpha)
    assert found.sum() == sum(steps)
    if alpha in (0.0, 1.0):
        weights = [Fraction(count) ** int(alpha) for count in steps]
        for quota, weight in zip(found.tolist(), weights, strict=True):
            assert abs(quota - sum(steps) * weight / sum(weights)) < 1
        if alpha:
            assert found.tolist() == steps
    assert found.min() >= 1


@given(SETS, ALPHAS, SIZES)
def test_the_steps_of_a_set_follow_its_order_one_after_another(sizes, alpha, batch_size):
    order, orders = mixture(sizes, alpha=alpha, batch_size=batch_size)
    taken = Counter()
    for step in range(3 * order.steps_per_round):
        name = order.member_of(step)
        assert order.steps_before(step) == [taken[each] for each in order.names]
        assert plain(order.global_step(step)) == plain(orders[name].global_step(taken[name]))
        assert order.epoch_of(step) == taken[name] // ceil(sizes[order.names.index(name)] / batch_size)
        taken[name] += 1
