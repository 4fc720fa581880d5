"""Micro-batches by tokens: complete, full, the same for any number of processes; and a clock that counts exactly."""

import hashlib
from collections import Counter
from fractions import Fraction
from math import ceil

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nlu.config.durations import Duration
from nlu.data.mixture import MixedClock, MixedOrder
from nlu.data.order import Order, Whole
from nlu.data.token_order import TokenClock, TokenOrder

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60).map(lambda values: np.array(values, np.int32))
TOKENS = st.integers(30, 100)
ACCUMULATIONS = st.integers(1, 4)


def order_of(lengths_N, tokens, accumulation=1, *, seed=1, bucket_batches=4, **of_rank):
    return TokenOrder(
        lengths_N, seed=seed, batch_tokens=tokens, accumulation=accumulation, bucket_batches=bucket_batches, **of_rank
    )


def steps_of(order, epochs=1):
    return [order.global_step(step) for step in range(epochs * order.steps_per_epoch)]


def plain(batches):
    return [batch.tolist() for batch in batches]


@given(LENGTHS, TOKENS, ACCUMULATIONS, st.sampled_from([1, 2, 64]))
def test_each_epoch_has_every_example_once_in_batches_that_fit(lengths_N, tokens, accumulation, bucket_batches):
    order = order_of(lengths_N, tokens, accumulation, bucket_batches=bucket_batches)
    for epoch in range(3):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        batches = [order.global_step(step) for step in steps]
        assert {order.epoch_of(step) for step in steps} == {epoch}
        assert all(len(step) == accumulation for step in batches[:-1]) and 1 <= len(batches[-1]) <= accumulation
        flat = [batch for step in batches for batch in step]
        assert all(0 < lengths_N[batch].sum() <= tokens for batch in flat)
        assert sorted(np.concatenate(flat).tolist()) == list(range(len(lengths_N)))


@given(LENGTHS, TOKENS)
def test_no_two_batches_in_a_row_fit_into_one(lengths_N, tokens):
    order = order_of(lengths_N, tokens)
    # So there are fewer than twice as many as the tokens of all examples need.
    assert len(order.sizes_M) < 2 * lengths_N.sum() / tokens + 1


@given(LENGTHS, TOKENS, ACCUMULATIONS, st.integers(1, 5))
def test_the_shares_of_all_ranks_make_up_the_batches_of_one_process(lengths_N, tokens, accumulation, world_size):
    one = order_of(lengths_N, tokens, accumulation)
    ranks = [order_of(lengths_N, tokens, accumulation, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in range(2 * one.steps_per_epoch):
        for whole, *parts in zip(one.global_step(step), *(order.step(step) for order in ranks), strict=True):
            assert sorted(np.concatenate(parts).tolist()) == sorted(whole.tolist())
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(LENGTHS, TOKENS, ACCUMULATIONS)
def test_a_step_is_the_same_whatever_was_asked_before(lengths_N, tokens, accumulation):
    wanted = [plain(step) for step in steps_of(order_of(lengths_N, tokens, accumulation), 3)]
    for step in (len(wanted) - 1, 0, len(wanted) // 2):
        assert plain(order_of(lengths_N, tokens, accumulation).global_step(step)) == wanted[step]


def test_the_order_of_every_version_is_the_same():
    lengths_N = np.random.default_rng(7).integers(1, 100, 1000).astype(np.int32)
    order = order_of(lengths_N, 1000, 2, seed=3, bucket_batches=8)
    taken = np.concatenate([batch for step in steps_of(order, 2) for batch in step])
    assert hashlib.sha256(taken.tobytes()).hexdigest()[:16] == "b49ac4b0c5d09b92"


def test_batches_have_alike_lengths_other_examples_each_epoch_and_come_in_any_order():
    lengths_N = np.random.default_rng(0).integers(1, 60, 3000)
    order = order_of(lengths_N, 600, bucket_batches=16)
    epochs = [steps_of(order_of(lengths_N, 600, bucket_batches=16), 2)[part * order.steps_per_epoch :][
        : order.steps_per_epoch] for part in range(2)]  # fmt: skip
    first, second = ([tuple(sorted(step[0].tolist())) for step in epoch] for epoch in epochs)
    assert len(set(first) & set(second)) < 0.05 * len(first)
    padded = sum(len(batch) * lengths_N[list(batch)].max() for batch in first)
    assert padded < 1.1 * lengths_N.sum()
    means = [lengths_N[list(batch)].mean() for batch in first]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2
    # All but the rest are nearly full.
    assert np.median([lengths_N[list(batch)].sum() for batch in first]) > 0.95 * 600


def test_seeds_have_other_batches():
    lengths_N = np.random.default_rng(0).integers(1, 60, 300)
    assert plain(order_of(lengths_N, 600).global_step(0)) != plain(order_of(lengths_N, 600, seed=2).global_step(0))


@given(LENGTHS, TOKENS, ACCUMULATIONS, st.data())
def test_the_clock_counts_the_examples_that_the_steps_take(lengths_N, tokens, accumulation, data):
    order = order_of(lengths_N, tokens, accumulation)
    clock = TokenClock.of(order_of(lengths_N, tokens, accumulation), accumulation)
    seen = [0]
    for step in steps_of(order, 3):
        seen.append(seen[-1] + sum(map(len, step)))
    asked = data.draw(st.permutations(range(len(seen))))
    assert [clock.examples(step) for step in asked] == [seen[step] for step in asked]
    assert [clock.epoch(step) for step in asked] == [seen[step] / len(lengths_N) for step in asked]
    assert all(after - before <= clock.examples_per_step for before, after in zip(seen, seen[1:], strict=False))
    examples = data.draw(st.integers(1, seen[-1]))
    reached = [next(step for step, count in enumerate(seen) if count >= least)
               for least in (examples, ceil(Fraction(3, 10) * len(lengths_N)), len(lengths_N))]  # fmt: skip
    durations = [Duration(examples, "ex"), Duration(0.3, "ep"), Duration(1, "ep")]
    assert [clock.steps(duration) for duration in durations] == reached
    for duration in durations:
        length = Fraction(str(duration.amount)) * (len(lengths_N) if duration.unit == "ep" else 1)
        due = [clock.is_time(duration, step) for step in range(1, len(seen))]
        assert due == [seen[step] // length > seen[step - 1] // length for step in range(1, len(seen))]
    assert clock.steps(Duration(2, "ep")) == 2 * clock.steps_per_epoch
    assert clock.steps(Duration(7, "st")) == 7


@given(st.lists(LENGTHS, min_size=1, max_size=3), TOKENS, st.sampled_from([0.0, 0.5, 1.0]))
def test_a_mixture_takes_batches_by_tokens_and_its_clock_counts_them(sets, tokens, alpha):
    orders = {f"set{number}": order_of(lengths_N, tokens) for number, lengths_N in enumerate(sets)}
    mixed = MixedOrder(orders, seed=1, alpha=alpha)
    clock = MixedClock.of(mixed, {name: TokenClock.of(order, 1) for name, order in orders.items()})
    seen, taken = [0], Counter()
    for step in range(mixed.steps_per_round):
        (batch,) = mixed.global_step(step)
        seen.append(seen[-1] + len(batch))
        taken.update((mixed.member_of(step), example) for example in batch.tolist())
    assert [clock.examples(step) for step in range(len(seen))] == seen
    if alpha == 1:
        assert set(taken.values()) == {1} and len(taken) == sum(map(len, sets))


def test_the_clock_of_a_long_run_does_not_order_the_epochs_before(monkeypatch):
    order = order_of(np.random.default_rng(0).integers(1, 60, 2000), 600)
    monkeypatch.setattr(TokenOrder, "_order", lambda *_: 1 / 0)
    clock = TokenClock.of(order, 1)
    assert clock.steps(Duration(1000, "ep")) == 1000 * order.steps_per_epoch
    assert clock.examples(999 * order.steps_per_epoch) == 999 * 2000
    assert max(len(known) for known in (order._seen, order._shuffles)) <= 2


def test_batches_of_equal_lengths_are_those_of_rows_in_number():
    lengths_N = np.full(50, 10, np.int32)
    rows = Order(Whole(lengths_N), seed=1, batch_size=8)
    tokens = order_of(lengths_N, 89)
    assert tokens.steps_per_epoch == rows.steps_per_epoch
    assert [len(batch) for (batch,) in steps_of(tokens)] == [len(rows.global_step(step)[0]) for step in range(7)]
