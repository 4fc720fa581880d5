"""The order of a mixture: how often each set is taken, complete epochs, the same from any step and for any rank."""

from collections import Counter
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.config.durations import Clock, Duration
from nlu.data.mixture import MixedClock, MixedOrder, quotas
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


@given(SETS, SIZES, st.integers(1, 3))
def test_with_an_alpha_of_one_every_round_has_each_example_of_each_set_once(sizes, batch_size, accumulation):
    order, _ = mixture(sizes, batch_size=batch_size, accumulation=accumulation)
    for number in range(2):
        seen = Counter()
        for step in range(number * order.steps_per_round, (number + 1) * order.steps_per_round):
            assert order.epoch_of(step) == number
            for batch in order.global_step(step):
                seen.update((order.member_of(step), example) for example in batch.tolist())
        assert set(seen.values()) == {1}
        assert len(seen) == sum(sizes)


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


@given(SETS, ALPHAS, st.integers(0, 400), st.data())
def test_a_step_does_not_depend_on_earlier_calls(sizes, alpha, step, data):
    order, _ = mixture(sizes, alpha=alpha)
    for other in data.draw(st.lists(st.integers(0, 400), max_size=5)):
        order.step(other)
    fresh, _ = mixture(sizes, alpha=alpha)
    assert fresh.member_of(step) == order.member_of(step)
    assert plain(fresh.global_step(step)) == plain(order.global_step(step))


@given(SETS, ALPHAS, st.integers(1, 3), st.integers(1, 4))
def test_all_ranks_take_the_same_set_and_their_shares_make_the_step(sizes, alpha, accumulation, world_size):
    ranks = [
        mixture(sizes, alpha=alpha, accumulation=accumulation, rank=rank, world_size=world_size)[0]
        for rank in range(world_size)
    ]
    for step in range(ranks[0].steps_per_round + 3):
        assert len({order.member_of(step) for order in ranks}) == 1
        shares = [order.step(step) for order in ranks]
        for whole, *parts in zip(ranks[0].global_step(step), *shares, strict=True):
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert sorted(whole.tolist()) == sorted(np.concatenate(parts).tolist())


@given(st.integers(1, 60), ALPHAS, SIZES, st.integers(1, 3))
def test_a_mixture_of_one_set_is_its_order(size, alpha, batch_size, accumulation):
    order, orders = mixture([size], alpha=alpha, batch_size=batch_size, accumulation=accumulation)
    for step in range(2 * order.steps_per_round + 1):
        assert plain(order.step(step)) == plain(orders["set0"].step(step))
        assert order.epoch_of(step) == orders["set0"].epoch_of(step)


def test_the_order_depends_on_the_seed_and_on_the_round():
    sizes = [120, 120]

    def members(seed, number):
        order, _ = mixture(sizes, seed=seed)
        return [order.member_of(number * order.steps_per_round + step) for step in range(order.steps_per_round)]

    assert members(1, 0) == members(1, 0)
    assert members(1, 0) != members(2, 0)
    assert members(1, 0) != members(1, 1)


@given(SETS, ALPHAS, SIZES)
def test_the_clock_counts_the_examples_that_the_steps_take(sizes, alpha, batch_size):
    order, orders = mixture(sizes, alpha=alpha, batch_size=batch_size)
    clock = MixedClock.of(order, {name: Clock(size, batch_size) for name, size in zip(orders, sizes, strict=True)})
    seen = [0]
    for step in range(2 * order.steps_per_round):
        seen.append(seen[-1] + sum(map(len, order.global_step(step))))
    assert [clock.examples(step) for step in range(len(seen))] == seen
    assert [clock.epoch(step) for step in range(len(seen))] == [count / sum(sizes) for count in seen]
    for examples in {1, sum(sizes), 2 * sum(sizes) - 1, seen[-1]}:
        if examples <= seen[-1]:
            assert clock.steps(Duration(examples, "ex")) == next(n for n, count in enumerate(seen) if count >= examples)
    if alpha == 1:
        assert clock.steps(Duration(2, "ep")) == 2 * order.steps_per_round == 2 * clock.steps_per_epoch


@given(st.integers(1, 60), SIZES, st.integers(1, 200))
def test_the_clock_of_a_mixture_of_one_set_is_that_of_the_set(size, batch_size, examples):
    order, _ = mixture([size], batch_size=batch_size)
    own = Clock(size, batch_size)
    mixed = MixedClock.of(order, {"set0": own})
    for duration in (Duration(examples, "ex"), Duration(examples / 8, "ep"), Duration(examples, "st")):
        assert mixed.steps(duration) == own.steps(duration)
        assert [mixed.is_time(duration, step) for step in range(30)] == [own.is_time(duration, n) for n in range(30)]
    assert mixed.steps_per_epoch == own.steps_per_epoch
