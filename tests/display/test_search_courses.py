"""The figure of ranks: labels that can be read."""

import pytest

from nlu.display.insight import Ranking
from nlu.display.search_courses import draw_ranks
from nlu.display.trials import Summary


def test_the_labels_of_trials_with_equal_ranks_do_not_overlap() -> None:
    ranks: dict[int, list[float]] = {0: [1, 3], 1: [2, 3], 2: [3, 3], 3: [4, 1], 4: [5, 5]}
    figure = draw_ranks(Summary("s", "f1", maximize=True, trials=[], params=[]), Ranking([8, 16], ranks, [1.0, 1.0], 5))
    assert figure is not None
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
    assert sorted(boxes) == [f"trial {number}" for number in range(5)]
    for one in boxes:
        for other in boxes:
            assert one == other or not boxes[one].overlaps(boxes[other]), f"{one} and {other}"
    # The label of a trial that shares its rank with no other one is at the height of its point.
    axes = figure.axes[0]
    for number, rank in ((3, 1), (4, 5)):
        box = boxes[f"trial {number}"]
        assert (box.y0 + box.y1) / 2 == pytest.approx(axes.transData.transform((1, rank))[1], abs=2)


def test_many_numbers_of_examples_are_turned_so_that_they_do_not_overlap() -> None:
    examples = [1_000_000 * 2**place for place in range(8)]
    ranks: dict[int, list[float]] = {0: [1.0] * 8, 1: [2.0] * 8}
    summary = Summary("s", "f1", maximize=True, trials=[], params=[])
    for found, angle in ((examples, 25), ([8, 16, 24], 0)):
        rank_S = {number: each[: len(found)] for number, each in ranks.items()}
        figure = draw_ranks(summary, Ranking(found, rank_S, [1.0] * len(found), 5))
        assert figure is not None
        assert {label.get_rotation() for axes in figure.axes for label in axes.get_xticklabels()} == {angle}
