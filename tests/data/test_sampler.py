"""The order of examples: complete, repeatable, the same for any number of processes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.sampler import epoch_order, evaluation_batches, step_batches

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=120).map(lambda values: np.array(values, np.int32))
SIZES = st.integers(1, 17)


def order_of(lengths_N, batch_size, bucket_batches=4, seed=1, epoch=0):
    return epoch_order(lengths_N, seed=seed, epoch=epoch, batch_size=batch_size, bucket_batches=bucket_batches)


def padding(lengths_N, order_N, batch_size):
    batches = [lengths_N[order_N[start : start + batch_size]] for start in range(0, len(order_N), batch_size)]
    return sum(int(batch.max() * len(batch) - batch.sum()) for batch in batches)


@given(LENGTHS, SIZES, st.integers(1, 5), st.integers(0, 3))
def test_an_epoch_uses_every_example_exactly_once(lengths_N, batch_size, bucket_batches, epoch):
    order_N = order_of(lengths_N, batch_size, bucket_batches, epoch=epoch)
    assert sorted(order_N.tolist()) == list(range(len(lengths_N)))


@given(LENGTHS, SIZES, st.integers(1, 4), st.integers(1, 5))
def test_the_ranks_shares_of_all_steps_make_the_epoch_for_any_world_size_and_accumulation(
    lengths_N, batch_size, accumulation, world_size
):
    order_N = order_of(lengths_N, batch_size)
    steps = -(-len(order_N) // (batch_size * accumulation))
    sizes, seen = [], []
    for step in range(steps):
        shares = [
            step_batches(order_N, step_in_epoch=step, batch_size=batch_size, accumulation=accumulation, rank=rank,
                         world_size=world_size)
            for rank in range(world_size)
        ]  # fmt: skip
        assert len({len(share) for share in shares}) == 1
        for parts in zip(*shares, strict=True):
            joined = np.concatenate(parts)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            sizes.append(len(joined))
            seen.extend(joined.tolist())
    assert sorted(seen) == list(range(len(lengths_N)))
    assert all(size == batch_size for size in sizes[:-1]) and 0 < sizes[-1] <= batch_size


@given(LENGTHS, SIZES, st.integers(1, 4))
def test_the_micro_batches_are_the_same_for_any_number_of_processes(lengths_N, batch_size, accumulation):
    order_N = order_of(lengths_N, batch_size)
    common = {"step_in_epoch": 0, "batch_size": batch_size, "accumulation": accumulation}
    alone = step_batches(order_N, **common, rank=0, world_size=1)
    shares = [step_batches(order_N, **common, rank=rank, world_size=2) for rank in range(2)]
    for whole, *parts in zip(alone, *shares, strict=True):
        assert sorted(whole.tolist()) == sorted(np.concatenate(parts).tolist())


@given(LENGTHS, SIZES)
def test_the_order_is_a_pure_function_of_seed_and_epoch(lengths_N, batch_size):
    assert order_of(lengths_N, batch_size).tolist() == order_of(lengths_N.copy(), batch_size).tolist()


def test_the_order_differs_from_epoch_to_epoch_and_seed_to_seed():
    lengths_N = np.arange(100) % 9 + 1
    orders = {tuple(order_of(lengths_N, 8, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in range(3)}
    assert len(orders) == 6


def test_bucketing_pads_far_less_than_none():
    lengths_N = np.random.default_rng(0).integers(1, 100, 3000)
    plain = padding(lengths_N, order_of(lengths_N, 16, bucket_batches=1), 16)
    assert padding(lengths_N, order_of(lengths_N, 16, bucket_batches=64), 16) < 0.1 * plain


def test_bucketing_leaves_the_batches_in_no_order_of_length():
    lengths_N = np.random.default_rng(0).integers(1, 100, 3200)
    means = lengths_N[order_of(lengths_N, 16, bucket_batches=64)].reshape(-1, 16).mean(1)
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


@given(LENGTHS, SIZES, st.integers(1, 5))
def test_scoring_covers_each_example_once_over_all_ranks_the_longest_first(lengths_N, batch_size, world_size):
    seen = []
    for rank in range(world_size):
        batches = evaluation_batches(lengths_N, batch_size=batch_size, rank=rank, world_size=world_size)
        assert all(0 < len(batch) <= max(1, batch_size // world_size) for batch in batches)
        mine = [int(example) for batch in batches for example in batch]
        assert all(a >= b for a, b in zip(lengths_N[mine], lengths_N[mine][1:], strict=False))
        seen += mine
    assert sorted(seen) == list(range(len(lengths_N)))
