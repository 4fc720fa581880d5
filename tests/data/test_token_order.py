"""Micro-batches by tokens: complete, full, the same for any number of processes; and a clock that counts exactly."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.order import TokenOrder

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60).map(lambda values: np.array(values, np.int32))
TOKENS = st.integers(30, 100)


def order_of(lengths_N, tokens, accumulation=1, *, seed=1, bucket_batches=4, **of_rank):
    return TokenOrder(
        lengths_N, seed=seed, batch_tokens=tokens, accumulation=accumulation, bucket_batches=bucket_batches, **of_rank
    )


def steps_of(order, epochs=1):
    return [order.global_step(step) for step in range(epochs * order.steps_per_epoch)]


@given(LENGTHS, TOKENS)
def test_no_two_batches_in_a_row_fit_into_one(lengths_N, tokens):
    order = order_of(lengths_N, tokens)
    # So there are fewer than twice as many as the tokens of all examples need.
    assert len(order.sizes_M) < 2 * lengths_N.sum() / tokens + 1


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
