"""The figures of an evaluation, read back: shares by class, numbers of rows, names that can be read."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text

from nlu.display.canvas import drawn, new_figure
from nlu.display.scores import confusion_figure, draw_calibration, print_scores


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


def test_sixty_classes_have_readable_names_and_their_large_mistakes_in_percent() -> None:
    names = [f"intent_{number}" for number in range(60)]
    matrix = np.diag(np.full(60, 90))
    matrix[3, 41], matrix[8, 2] = 30, 4
    figure = confusion_figure("test", names, matrix)
    drawn(figure, "png")
    axes = figure.axes[0]
    assert tick_names(axes) == (names, names)
    assert {text.get_text(): text.get_position() for text in axes.texts} == {"25": (41, 3)}
    boxes = [one.get_window_extent() for one in axes.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 for upper, lower in zip(boxes, boxes[1:], strict=False)), "none lies on another"
    inside = [one for one in figure.findobj(Text) if one.get_visible() and one.get_text()]
    assert all(one.get_window_extent().y1 <= figure.bbox.y1 and one.get_window_extent().y0 >= 0 for one in inside)


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


def test_a_bin_of_the_calibration_is_drawn_at_its_means_in_the_size_of_its_rows() -> None:
    _, axes = new_figure()
    bins = [{"probability": 0.55, "right": 0.25, "rows": 10}, {"probability": 0.8, "right": 0.9, "rows": 40}]
    draw_calibration(axes, bins)
    (points,) = axes.collections
    assert np.asarray(points.get_offsets()).tolist() == [[0.55, 0.25], [0.8, 0.9]]
    assert points.get_sizes().tolist() == [20 + 180 / 4, 200]
    diagonal, line = axes.lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]
    assert list(line.get_xdata()) == [0.55, 0.8] and list(line.get_ydata()) == [0.25, 0.9]


def test_without_intervals_their_columns_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = SimpleNamespace(rows=7, metrics={"accuracy": 0.5, "ece": 0.25}, by_label=[], intervals={}, confusion=None)
    print_scores({"dev": found}, None)
    head, *lines = capsys.readouterr().out.strip().splitlines()
    assert head.split() == ["dev,", "7", "examples", "value"]
    assert [line.split() for line in lines] == [["accuracy", "0.5000"], ["ece", "0.2500"]]
    found.intervals = {"accuracy": [0.25, 0.75], "ece": None}
    print_scores({"dev": found}, None)
    lines = [line.split() for line in capsys.readouterr().out.strip().splitlines()]
    assert lines[1:] == [["accuracy", "0.5000", "0.2500", "0.7500"], ["ece", "0.2500", "-", "-"]]
