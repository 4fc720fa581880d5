"""The shapes to which batches are filled up: few, large enough, and with the least filling."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.collate import collate
from nlu.data.shapes import SHAPES, SLOT_COST, Shape, Shapes, filled, planned, planned_together
from tests.training.test_step import examples_in


def cost(shape: Shape) -> float:
    return shape.tokens + SLOT_COST * shape.sequences * shape.longest


def by_hand(known: list[Shape], most: int) -> float:
    """Return the least cost of any division of batches into so many groups of neighbours, in either order."""
    rounded = [
        Shape(-(-one.tokens // 16) * 16, max(2, one.sequences), -(-one.longest // 8) * 8, -(-one.units // 4) * 4)
        for one in known
    ]
    found = []
    for first in ("tokens", "longest"):
        order = sorted(rounded, key=lambda shape: (getattr(shape, first), shape))
        for cuts in combinations(range(1, len(order)), min(most, len(order)) - 1):
            ends = [0, *cuts, len(order)]
            groups = [order[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
            largest = [
                Shape(
                    *(max(getattr(one, name) for one in group) for name in ("tokens", "sequences", "longest", "units"))
                )
                for group in groups
            ]
            found.append(sum(len(group) * cost(shape) for group, shape in zip(groups, largest, strict=True)))
    return min(found)


dimensions = st.builds(
    Shape, st.integers(1, 300), st.integers(1, 20), st.integers(1, 64), st.sampled_from([0, 1, 7, 30])
)


@given(st.lists(dimensions, min_size=1, max_size=7), st.integers(1, 4))
def test_the_plan_costs_the_least_of_all_divisions_and_each_batch_fits(known: list[Shape], most: int) -> None:
    plans = planned(Counter(known), most)
    expected, shapes = plans[-1]
    assert expected == pytest.approx(by_hand(known, most))
    assert len(shapes) <= most and shapes == sorted(set(shapes))
    chosen = Shapes(known, most)
    for own in known:
        assert chosen.of(own).holds(own)
    assert chosen.shapes == shapes and not chosen.others, "a batch that was known needs no further shape"
    costs = [each for each, _ in plans]
    assert costs == sorted(costs, reverse=True)


def test_training_and_scoring_share_the_shapes_by_what_they_save() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(400, 1200, (2, 300)).tolist()
    trained, scored = ([Shape(tokens, 32, 40, 0) for tokens in each] for each in lengths)
    of_training, of_scoring = planned_together(Counter(trained), dict.fromkeys(scored, 0.01))
    assert len(of_training.shapes) + len(of_scoring.shapes) == SHAPES
    assert len(of_training.shapes) > len(of_scoring.shapes) >= 1
    assert 1 - sum(lengths[0]) / sum(of_training.of(each).tokens for each in trained) < 0.03
    only, nothing = planned_together(Counter(trained), {})
    assert len(only.shapes) == SHAPES and not nothing.shapes


def test_the_shape_of_a_batch_that_was_not_known_does_not_depend_on_those_before() -> None:
    own = Shape(970, 7, 20, 0)
    shapes, continued = (Shapes([Shape(100, 8, 20, 0)], 1) for _ in range(2))
    larger = shapes.of(Shape(1200, 9, 20, 0))
    assert larger == Shape(1216, 9, 24, 0) and 1 - 1200 / larger.tokens < 1 / 16
    assert shapes.of(own) == continued.of(own) == shapes.of(Shape(961, 7, 18, 0)) == Shape(992, 7, 24, 0)
    assert shapes.others == {larger, Shape(992, 7, 24, 0)} and len(shapes.shapes) == 1


def test_filling_keeps_the_rows_of_a_batch_and_has_a_size_of_two_at_least(tmp_path: Path) -> None:
    part = examples_in(tmp_path / "train")
    for rows, shapes in product((1, 5), (Shapes(), Shapes([Shape(200, 40, 30, 0)], 1))):
        batch = collate(part, np.arange(rows), (0, 0))
        found = filled(batch, shapes)
        filling, tokens = found.filling, batch.num_tokens
        assert filling is not None and filling.rows == rows
        assert found.tokens_T[:tokens].tolist() == batch.tokens_T.tolist()
        assert found.targets["labels"][:rows].tolist() == batch.targets["labels"].tolist()
        assert filling.is_real_N.tolist() == [row < rows for row in range(len(filling.is_real_N))]
        assert filling.lengths_S.tolist()[:rows] == batch.lengths and not filling.lengths_S[rows:].any()
        # Each real token stands where its slot says, and each slot of a sequence holds its token.
        slots_SL = filling.slots_SL
        for number, (start, length) in enumerate(zip(batch.starts_S.tolist(), batch.lengths, strict=True)):
            places = slots_SL[number, :length].tolist()
            assert places == list(range(start, start + length))
            assert filling.slot_T[places].tolist() == [number * slots_SL.shape[1] + place for place in range(length)]
        assert (filling.slot_T[tokens:] == -1).all() and 0 <= slots_SL.min() and slots_SL.max() < found.num_tokens
        # A compiler takes a size of 1 for a constant.
        assert min(found.num_tokens, *slots_SL.shape, *found.sequences_KB.shape[1:]) >= 2


def test_a_batch_without_units_has_two_rows_of_filling(tmp_path: Path) -> None:
    batch = replace(collate(examples_in(tmp_path / "train"), np.arange(1)), units_U=torch.zeros(0, dtype=torch.int64))
    found = filled(replace(batch, targets={"tags": torch.zeros(0, dtype=torch.int64)}), Shapes())
    assert found.filling is not None and found.filling.rows == 0 and not found.filling.is_real_N.any()
    # Of 0 rows a compiler makes another graph.
    assert found.num_units == len(found.targets["tags"]) == len(found.filling.is_real_N) == 2
