"""Batches of few shapes, so that a compiled step sees the same ones again and again.

A packed batch has few dimensions. Each is rounded up to that of a shape, by rows of filling behind the real ones: no
real token attends to filling, and filling counts in no loss and in no score.

Axes: T tokens, S sequences, L the longest sequence of a shape, B examples, U units, P batches that are known, G numbers
of groups, K sequences of an example.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from nlu.data.collate import Batch, Filling
from nlu.data.seeds import GOLDEN, mixed

SHAPES = 24
"""the most shapes of a run that trains and scores"""
STEP = 16
"""tokens of a shape are a multiple of this"""
SLOT_COST = 0.1
"""time of a slot of attention, sequences times the longest, in times of a token in the layers around it"""


@dataclass(frozen=True, order=True)
class Shape:
    """The dimensions of a batch, or the least that hold it."""

    tokens: int
    sequences: int
    longest: int
    units: int
    """0 if the batch has none"""

    @classmethod
    def of(cls, batch: Batch) -> "Shape":
        """Return the dimensions of a batch."""
        # Examples that share sequences have as many rows as others.
        sequences = max(batch.num_sequences, len(batch.sequences_KB) * len(batch))
        return cls(batch.num_tokens, sequences, batch.lengths[-1], batch.num_units)

    def cost(self) -> float:
        """Return the time of a batch, in times of a token in the layers around attention."""
        return self.tokens + SLOT_COST * self.sequences * self.longest

    def holds(self, other: "Shape") -> bool:
        """Return whether a batch of the other dimensions fits."""
        return all(getattr(self, each.name) >= getattr(other, each.name) for each in fields(self))

    def rounded(self, step: int = STEP) -> "Shape":
        """Return a shape that holds this one, whose tokens are a multiple of `step`."""
        # Two and not one: a compiler treats a dimension of 1 as a constant.
        units = self.units and max(2, _up(self.units, max(1, step // 4)))
        return Shape(_up(self.tokens, step), max(2, self.sequences), _up(self.longest, 8), units)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


class Shapes:
    """The shapes to which the batches of a run are filled up."""

    def __init__(self, known: Sequence[Shape] = (), most: int = SHAPES):
        """`known`: the dimensions of the batches that will come, as far as they are known; `most`: shapes for them."""
        self.shapes = planned(Counter(known), most)[-1][1] if known else []
        self.others: set[Shape] = set()
        """those of batches that were not known"""

    def of(self, own: Shape) -> Shape:
        """Return the cheapest shape that holds a batch. One that none holds, and that was not known, gets its own."""
        if found := [shape for shape in self.shapes if shape.holds(own)]:
            return min(found, key=Shape.cost)
        # A sixteenth of the power of two below its tokens: others of about its size get the same. It does not depend on
        # the batches before, which a run that continues has not seen.
        self.others.add(new := own.rounded(max(STEP, 2 ** (own.tokens.bit_length() - 5))))
        return new


def covering(sequences: int, longest: int, most: int) -> list[Shape]:
    """Return at most so many shapes that hold all batches of at most so many sequences of at most so many tokens."""
    tokens = np.ceil(np.geomspace(STEP, max(STEP, sequences * longest), most)).astype(int).tolist()
    return sorted({Shape(each, min(each, sequences), min(each, longest), each).rounded() for each in tokens})


def planned_together(trained: Mapping[Shape, float], scored: Mapping[Shape, float]) -> tuple[Shapes, Shapes]:
    """Return the shapes of training and those of scoring, SHAPES in all at most, with the least filling in all; both
    are given by the dimensions of batches, each with the number of times that it is computed."""
    nothing: list[tuple[float, list[Shape]]] = [(0.0, [])]
    of_training, of_scoring = (planned(known, SHAPES) if known else nothing for known in (trained, scored))
    found = Shapes(), Shapes()
    _, found[0].shapes, found[1].shapes = min(
        (cost + more, shapes, others)
        for cost, shapes in of_training
        for more, others in of_scoring
        if len(shapes) + len(others) <= SHAPES
    )
    return found


def planned(known: Mapping[Shape, float], most: int) -> list[tuple[float, list[Shape]]]:
    """Return the best shapes, ascending, for 1, 2, ... and at most so many, each list with the cost of its filling.

    `known` has the number of times that batches of these dimensions come. Batches are divided into neighbours in the
    order of their tokens, or of their longest sequence where batches have about equal tokens, by dynamic programming;
    the order that costs less is taken.
    """
    counted: dict[Shape, float] = {}
    for shape, times in known.items():
        counted[shape.rounded()] = counted.get(shape.rounded(), 0) + times
    orders = [sorted(counted, key=lambda shape: (getattr(shape, first), shape)) for first in ("tokens", "longest")]
    divided = [_divided(order, [counted[each] for each in order], most) for order in orders]
    return [min(one, other, key=lambda plan: plan[0]) for one, other in zip(*divided, strict=True)]


def _divided(order: list[Shape], times: list[float], most: int) -> list[tuple[float, list[Shape]]]:
    """Return the cost of the best division of batches into 1, 2, ... groups of neighbours, and their shapes."""
    sizes_P4 = np.array([[each.tokens, each.sequences, each.longest, each.units] for each in order])
    times_P, size = np.array(times), len(order)
    most = min(most, size)
    # best[g, i]: the cost of the first i in g groups, of which the last one begins at begins[g, i].
    best = np.full((most + 1, size + 1), np.inf)
    best[0, 0] = 0
    begins = np.zeros((most + 1, size + 1), np.int64)
    for end in range(1, size + 1):
        # The shape of a group from each beginning up to `end`.
        largest_P4 = np.maximum.accumulate(sizes_P4[:end][::-1])[::-1]
        batches_P = np.cumsum(times_P[:end][::-1])[::-1]
        cost_P = batches_P * (largest_P4[:, 0] + SLOT_COST * largest_P4[:, 1] * largest_P4[:, 2])
        all_GP = best[:most, :end] + cost_P
        begins[1:, end] = all_GP.argmin(1)
        best[1:, end] = all_GP.min(1)
    plans = []
    for groups in range(1, most + 1):
        shapes, end = [], size
        for group in range(groups, 0, -1):
            begin = int(begins[group, end])
            shapes.append(Shape(*sizes_P4[begin:end].max(0).tolist()))
            end = begin
        plans.append((float(best[groups, size]), sorted(set(shapes))))
    return plans


def filled(batch: Batch, shapes: Shapes) -> Batch:
    """Return a batch with filling up to one of the shapes; its attributes on the host are those of `batch`.

    Every row of filling refers to the first token of the batch, so what is computed from it is finite.
    """
    sides, shape = len(batch.sequences_KB), shapes.of(Shape.of(batch))
    # Two examples at least, as in `rounded`.
    tokens, examples = shape.tokens, max(2, -(-shape.sequences // sides))
    sequences = sides * examples
    lengths_S = np.zeros(sequences, np.int64)
    lengths_S[: batch.num_sequences] = batch.lengths
    starts_S = _with_rows(batch.starts_S, sequences)
    # Where the tokens of each sequence stand; behind its end any token, which attention ignores.
    slots_SL = (starts_S[:, None] + torch.arange(shape.longest)).clamp_max(tokens - 1)
    real_SL = np.arange(shape.longest) < lengths_S[:, None]
    slot_T = np.full(tokens, -1)
    slot_T[: batch.num_tokens] = np.flatnonzero(real_SL)
    is_unit = batch.units_U is not None
    # A batch may have no unit, such as one of few tokens of which none is predicted.
    rows = max(2, shape.units) if is_unit else examples
    real_rows = batch.num_units if is_unit else len(batch)
    filling = Filling(
        slots_SL,
        torch.from_numpy(lengths_S),
        torch.from_numpy(slot_T),
        torch.from_numpy(np.arange(rows) < real_rows),
        torch.from_numpy(_identities(batch, tokens)),
        real_rows,
    )
    return replace(
        batch,
        tokens_T=_with_rows(batch.tokens_T, tokens),
        segments_T=_with_rows(batch.segments_T, tokens),
        positions_T=_with_rows(batch.positions_T, tokens),
        starts_S=starts_S,
        sequences_KB=_with_rows(batch.sequences_KB.T, examples).T.contiguous(),
        units_U=None if batch.units_U is None else _with_rows(batch.units_U, rows),
        targets={name: _with_rows(values, rows) for name, values in batch.targets.items()},
        filling=filling,
    )


def _with_rows(values: Tensor, rows: int) -> Tensor:
    """Return values with rows of zeros up to so many."""
    return torch.cat([values, values.new_zeros(rows - len(values), *values.shape[1:])])


def _identities(batch: Batch, tokens: int) -> np.ndarray:
    """Return a hash of each token's example, sequence and position, which decides its random numbers; (T,), int32."""
    example_S, number_S = batch.identities_S()
    state_S = mixed(mixed(example_S) ^ number_S)
    state_T = np.repeat(state_S, batch.lengths) + batch.positions_T.numpy().astype(np.uint64) * GOLDEN
    found_T = np.zeros(tokens, np.int32)
    found_T[: batch.num_tokens] = (mixed(state_T) & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    return found_T
