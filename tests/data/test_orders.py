"""What every order and its clock keep: whole epochs, even shares of ranks, steps that depend on their number alone."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.config.durations import Clock, Duration
from nlu.data.mixture import MixedClock, MixedOrder
from nlu.data.order import Order, TokenClock, TokenOrder, Whole

LENGTHS = st.lists(st.integers(1, 30), min_size=4, max_size=60).map(lambda values: np.array(values, np.int32))
KINDS = pytest.mark.parametrize("kind", ["rows", "windows", "tokens", "mixture", "mixture by the root"])
ROWS, TOKENS = 3, 50


def made(kind, lengths_N, accumulation=1, seed=1, rank=0, world_size=1):
    """An order of examples with these lengths, and its clock; a mixture has three sets of them."""
    common = {"seed": seed, "accumulation": accumulation, "bucket_batches": 2, "rank": rank, "world_size": world_size}
    if kind == "tokens":
        order = TokenOrder(lengths_N, batch_tokens=TOKENS, **common)
        return order, TokenClock.of(order, accumulation)
    window_rows = 7 if kind == "windows" else None
    if not kind.startswith("mixture"):
        order = Order(Whole(lengths_N), batch_size=ROWS, window_rows=window_rows, **common)
        return order, Clock(len(lengths_N), ROWS * accumulation)
    sets = {"a": lengths_N[:1], "b": lengths_N[1:3], "c": lengths_N[3:]}
    orders = {name: Order(Whole(own_N), batch_size=ROWS, **common) for name, own_N in sets.items()}
    order = MixedOrder(orders, seed=seed, alpha=1.0 if kind == "mixture" else 0.5)
    return order, MixedClock.of(order, {name: Clock(len(own_N), ROWS * accumulation) for name, own_N in sets.items()})


def steps_of(order):
    return order.steps_per_round if isinstance(order, MixedOrder) else order.steps_per_epoch


def plain(order, step):
    return order.member_of(step), [batch.tolist() for batch in order.global_step(step)]


@KINDS
@given(LENGTHS, st.integers(1, 3), st.integers(1, 4))
def test_the_shares_of_all_ranks_make_up_each_step_and_the_steps_each_epoch(kind, lengths_N, accumulation, world_size):
    ranks = [made(kind, lengths_N, accumulation, rank=rank, world_size=world_size)[0] for rank in range(world_size)]
    order, steps = ranks[0], steps_of(ranks[0])
    for epoch in range(3):
        seen = Counter()
        for step in range(epoch * steps, (epoch + 1) * steps):
            member, whole = plain(order, step)
            shares = [one.step(step) for one in ranks]
            for batch, *parts in zip(whole, *shares, strict=True):
                assert sorted(np.concatenate(parts).tolist()) == sorted(batch)
                assert max(map(len, parts)) - min(map(len, parts)) <= 1
                seen.update((member, example) for example in batch)
            assert {one.member_of(step) for one in ranks} == {member} and 1 <= len(whole) <= accumulation
            if kind in ("rows", "windows"):
                is_last = step == (epoch + 1) * steps - 1
                assert all(len(batch) == ROWS for batch in whole) or is_last
            if kind == "tokens":
                assert all(0 < lengths_N[batch].sum() <= TOKENS for batch in whole)
            assert kind.endswith("root") or order.epoch_of(step) == epoch
        assert kind.endswith("root") or (set(seen.values()) == {1} and len(seen) == len(lengths_N))


@KINDS
@given(LENGTHS, st.integers(1, 3), st.lists(st.integers(0, 90), max_size=5), st.integers(0, 90))
def test_a_step_does_not_depend_on_what_was_asked_before(kind, lengths_N, accumulation, before, step):
    order, _ = made(kind, lengths_N, accumulation)
    for other in before:
        order.step(other)
    assert plain(order, step) == plain(made(kind, lengths_N, accumulation)[0], step)


@KINDS
def test_another_seed_and_another_epoch_have_other_steps(kind):
    lengths_N = np.random.default_rng(0).integers(1, 30, 100)
    one, other = (made(kind, lengths_N, seed=seed)[0] for seed in (1, 2))
    steps = range(5)
    assert [plain(one, step) for step in steps] != [plain(other, step) for step in steps]
    assert [plain(one, step) for step in steps] != [plain(one, steps_of(one) + step) for step in steps]


@KINDS
@given(LENGTHS, st.integers(1, 3), st.data())
def test_the_clock_counts_the_examples_that_the_steps_take(kind, lengths_N, accumulation, data):
    order, clock = made(kind, lengths_N, accumulation)
    seen = [0]
    for step in range(3 * steps_of(order)):
        seen.append(seen[-1] + sum(map(len, plain(order, step)[1])))
    asked = data.draw(st.permutations(range(len(seen))))
    assert [clock.examples(step) for step in asked] == [seen[step] for step in asked]
    assert [clock.epoch(step) for step in asked] == [seen[step] / len(lengths_N) for step in asked]
    for duration in (Duration(data.draw(st.integers(1, seen[-1])), "ex"), Duration(0.3, "ep")):
        length = Fraction(str(duration.amount)) * (len(lengths_N) if duration.unit == "ep" else 1)
        assert clock.steps(duration) == next(step for step, count in enumerate(seen) if count >= length)
        due = [clock.is_time(duration, step) for step in range(1, len(seen))]
        assert due == [seen[step] // length > seen[step - 1] // length for step in range(1, len(seen))]
    assert clock.steps(Duration(7, "st")) == 7
    if not kind.endswith("root"):
        assert clock.steps(Duration(2, "ep")) == 2 * steps_of(order) == 2 * clock.steps_per_epoch
