"""The figures of an evaluation, read back: shares by class, numbers of rows, names that can be read."""

import numpy as np
import pytest
from matplotlib.axes import Axes

from nlu.display.score_figures import confusion_figure


def tick_names(axes: Axes) -> tuple[list[str], list[str]]:
    return [one.get_text() for one in axes.get_xticklabels()], [one.get_text() for one in axes.get_yticklabels()]


def test_shades_are_shares_of_the_rows_of_a_class_and_numbers_its_rows() -> None:
    matrix = np.array([[30, 10, 0], [1, 2, 5], [0, 0, 0]])
    axes = confusion_figure("dev", ["a", "b", "c"], matrix).axes[0]
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(
        np.array([[0.75, 0.25, 0], [0.125, 0.25, 0.625], [0, 0, 0]])
    )
    assert tick_names(axes) == (["a", "b", "c"], ["a", "b", "c (no rows)"])
    (grey,) = [patch for patch in axes.patches if patch.get_facecolor()[0] == pytest.approx(0xD9 / 255)]
    assert (grey.get_y(), grey.get_height()) == (1.5, 1), "the line of the class without rows is not white"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "label")
    written = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in axes.texts}
    assert written == {(0, 0): "30", (0, 1): "10", (1, 0): "1", (1, 1): "2", (1, 2): "5"}
    colours = {text.get_text(): text.get_color() for text in axes.texts}
    assert colours["30"] == "white" and colours["2"] == "black"
