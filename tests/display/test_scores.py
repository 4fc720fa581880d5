"""The figures of an evaluation, read back: shares by class, numbers of rows, names that can be read."""

import numpy as np
import pytest
from matplotlib.axes import Axes

from nlu.display.scores import confusion_figure


def tick_names(axes: Axes) -> tuple[list[str], list[str]]:
    return [one.get_text() for one in axes.get_xticklabels()], [one.get_text() for one in axes.get_yticklabels()]


def test_shades_are_shares_of_the_rows_of_a_class_and_numbers_its_rows() -> None:
    matrix = np.array([[30, 10, 0], [1, 2, 5], [0, 0, 0]])
    axes = confusion_figure("dev", ["a", "b", "c"], matrix).axes[0]
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(
        np.array([[0.75, 0.25, 0], [0.125, 0.25, 0.625], [0, 0, 0]])
    )
    assert tick_names(axes) == (["a", "b", "c"], ["a", "b", "c"])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "label")
    written = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in axes.texts}
    assert written == {(0, 0): "30", (0, 1): "10", (1, 0): "1", (1, 1): "2", (1, 2): "5"}
    colours = {text.get_text(): text.get_color() for text in axes.texts}
    assert colours["30"] == "white" and colours["2"] == "black"


def test_the_most_confused_of_many_classes_are_shown_and_the_rest_is_summed() -> None:
    rng = np.random.default_rng(3)
    matrix = np.diag(np.full(150, 50))
    for line, column in zip(rng.permutation(150)[:40], rng.permutation(150)[:40], strict=True):
        matrix[line, column] += 9 * (line != column)
    axes = confusion_figure("test", [str(number) for number in range(150)], matrix).axes[0]
    across, down = tick_names(axes)
    assert across == down and len(across) == 60 and across[-1] == "91 others"
    wrong = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
    threshold = sorted(wrong)[-59]
    kept = [int(name) for name in across[:-1]]
    assert kept == sorted(kept) and {place for place in range(150) if wrong[place] > threshold} <= set(kept)
    others = [place for place in range(150) if place not in kept]
    shares = np.asarray(axes.images[0].get_array())
    first = kept[0]
    assert shares[0, 1:3] == pytest.approx(matrix[first, kept[1:3]] / matrix[first].sum())
    assert shares[0, -1] == pytest.approx(matrix[first, others].sum() / matrix[first].sum())
    assert shares[-1, -1] == pytest.approx(matrix[np.ix_(others, others)].sum() / matrix[others].sum())
