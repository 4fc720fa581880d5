"""The order of examples: complete, repeatable, the same for any number of processes."""

import hashlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.order import Order, Whole, epoch_order, evaluation_batches

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=120).map(lambda values: np.array(values, np.int32))
SIZES = st.integers(1, 17)


def order_of(lengths_N, batch_size, bucket_batches=4, seed=1, epoch=0):
    return epoch_order(lengths_N, seed=seed, epoch=epoch, batch_size=batch_size, bucket_batches=bucket_batches)


def padding(lengths_N, order_N, batch_size):
    batches = [lengths_N[order_N[start : start + batch_size]] for start in range(0, len(order_N), batch_size)]
    return sum(int(batch.max() * len(batch) - batch.sum()) for batch in batches)


def steps_of(order, lengths_N, batch_size, accumulation):
    return -(-len(lengths_N) // (batch_size * accumulation))


@given(LENGTHS, SIZES, st.integers(1, 3), st.integers(0, 2))
def test_without_windows_the_steps_are_the_epochs_permutation_cut_up(lengths_N, batch_size, accumulation, epoch):
    order = Order(Whole(lengths_N), seed=1, batch_size=batch_size, accumulation=accumulation, bucket_batches=4)
    steps = steps_of(order, lengths_N, batch_size, accumulation)
    taken = [batch for step in range(epoch * steps, (epoch + 1) * steps) for batch in order.global_step(step)]
    assert np.concatenate(taken).tolist() == order_of(lengths_N, batch_size, epoch=epoch).tolist()


@pytest.mark.parametrize(
    ("settings", "digest"),
    [({"seed": 1, "epoch": 0, "batch_size": 16}, "285945e4744cd4ab"),
     ({"seed": 3, "epoch": 2, "batch_size": 7, "bucket_batches": 4}, "ca414206dd0a30de"),
     ({"seed": 1, "epoch": 1, "batch_size": 32, "bucket_batches": 1}, "5c36e4fd6940bc34")],
)  # fmt: skip
def test_the_order_of_every_version_is_the_same(settings, digest):
    lengths_N = np.random.default_rng(7).integers(1, 100, 1000).astype(np.int32)
    order_N = epoch_order(lengths_N, **settings)
    assert hashlib.sha256(order_N.astype(np.int64).tobytes()).hexdigest()[:16] == digest


class Growing:
    """Examples of which ever more are there."""

    def __init__(self, lengths_N, more):
        self._whole_N, self._more = lengths_N, more
        self.grow(0)

    def grow(self, rows):
        self.lengths_N = self._whole_N[:rows]
        self.is_complete = rows >= len(self._whole_N)

    def wait(self, rows):
        while len(self.lengths_N) < rows and not self.is_complete:
            self.grow(len(self.lengths_N) + self._more())


def plain(batches):
    return [batch.tolist() for batch in batches]


@given(LENGTHS, st.integers(1, 5), st.integers(1, 3), st.integers(1, 40), st.data())
def test_steps_once_taken_stay_the_same_while_more_is_written(lengths_N, batch_size, accumulation, window_rows, data):
    common = {"seed": 2, "batch_size": batch_size, "accumulation": accumulation, "window_rows": window_rows}
    steps = steps_of(None, lengths_N, batch_size, accumulation)
    wanted = [plain(Order(Whole(lengths_N), **common).global_step(step)) for step in range(2 * steps)]
    growing = Growing(lengths_N, lambda: data.draw(st.integers(1, 30)))
    order = Order(growing, **common)
    for step in range(2 * steps):
        order = order if data.draw(st.booleans()) else Order(growing, **common)
        assert plain(order.global_step(step)) == wanted[step]
        assert order.epoch_of(step) == step // steps


def test_a_step_waits_for_its_own_window_only():
    asked = []
    growing = Growing(np.arange(100) % 7 + 1, lambda: asked.append(len(growing.lengths_N)) or 15)
    order = Order(growing, seed=1, batch_size=5, window_rows=18)
    assert len(np.unique(np.concatenate([order.global_step(step)[0] for step in range(4)]))) == 20
    assert asked == [0, 15]
    assert order.epoch_of(4) == 0 and asked == [0, 15, 30]
    assert order.epoch_of(20) == 1 and growing.is_complete


def test_windows_come_as_written_in_the_first_epoch_and_shuffled_after():
    order = Order(Whole(np.ones(205, int)), seed=1, batch_size=10, window_rows=20)
    windows = [
        [int(order.global_step(step)[0].min()) // 20 for step in range(epoch * 21, epoch * 21 + 20, 2)]
        for epoch in range(3)
    ]
    assert windows[0] == list(range(10)) and all(sorted(found) == windows[0] for found in windows)
    assert windows[1] != windows[0] != windows[2] != windows[1]
    assert [sorted(order.global_step(epoch * 21 + 20)[0].tolist()) for epoch in range(3)] == [list(range(200, 205))] * 3


def test_the_memory_of_windows_does_not_grow_with_the_examples():
    # Without memory of their own.
    lengths_N = np.broadcast_to(np.int32(9), 100_000_000)
    order = Order(Whole(lengths_N), seed=1, batch_size=100, window_rows=10_000)
    tracemalloc.start()
    try:
        steps = [order.global_step(step)[0] for step in (0, 500_000, 1_999_999)]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(np.unique(rows)) for rows in steps] == [100] * 3 and steps[1].min() // 10_000 == 5_000
    assert most < 2_000_000, f"{most:,} bytes"


def test_bucketing_pads_far_less_than_none():
    lengths_N = np.random.default_rng(0).integers(1, 100, 3000)
    plain = padding(lengths_N, order_of(lengths_N, 16, bucket_batches=1), 16)
    assert padding(lengths_N, order_of(lengths_N, 16, bucket_batches=64), 16) < 0.1 * plain


def test_bucketing_does_not_order_batches_by_length():
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
