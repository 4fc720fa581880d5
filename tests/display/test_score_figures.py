"""What is drawn of one run or several is read back from the figures: shares, numbers, curves, names."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from nlu.display.canvas import drawn
from nlu.display.curve_figures import Curve, Drawing, draw
from nlu.display.score_figures import KeptScores, confusion_figure, draw_by_class


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def kept(names: list[str], f1: dict[str, float | None], runs: int = 1, **changes: object) -> KeptScores:
    by_label = [
        {"label": name, "examples": 10 + place, "f1": f1.get(name), "sd": 0.02 if runs > 1 else None}
        for place, name in enumerate(names)
    ]
    confusion = [[(3 * line + column) % 7 for column in range(len(names))] for line in range(len(names))]
    bins = [{"probability": 0.55, "right": 0.4, "rows": 5}, {"probability": 0.9, "right": 0.95, "rows": 20}]
    return KeptScores("dev", names, by_label, confusion, bins, 0.0625, [(8.5, 0.9, 4), (40.0, 0.7, 4)], runs)


def test_a_curve_has_its_points_its_band_its_best_and_its_name() -> None:
    first = Curve("lr=1e-5", np.array([8.0, 16, 32]), np.array([0.5, 0.875, 0.75]), np.array([0.1, 0.05, 0.02]), 3,
                  (16.0, 0.875))  # fmt: skip
    second = Curve("lr=2e-5", np.array([8.0, 24]), np.array([0.25, 0.625]), best=(24.0, 0.625))
    figure = draw(Drawing("dev_f1", "dev f1", "examples seen", [first, second], epochs=15.0))
    (axes,) = figure.axes
    curves = {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    assert list(curves) == legend_of(figure) == ["lr=1e-5 (mean of 3): 0.8750", "lr=2e-5: 0.6250"]
    for curve, line in zip((first, second), curves.values(), strict=True):
        assert line.get_xdata().tolist() == curve.x_P.tolist() and line.get_ydata().tolist() == curve.mean_P.tolist()
    stars = [line for line in axes.lines if line.get_marker() == "*"]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in stars] == [(16.0, 0.875), (24.0, 0.625)]
    (band,) = [one for one in axes.collections if isinstance(one, PolyCollection)]
    corners = band.get_paths()[0].vertices
    for x, mean, sd in zip(first.x_P, first.mean_P, first.sd_P, strict=True):  # type: ignore[arg-type]
        heights = sorted({round(float(y), 9) for at, y in corners if at == x})
        assert heights == pytest.approx([mean - sd, mean + sd])
    epochs = sorted(line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":")
    assert epochs == [15.0, 30.0] and axes.get_xlabel() == "examples seen" and axes.get_ylabel() == "dev f1"


@pytest.mark.parametrize("count", [1, 3, 24])
def test_a_legend_of_any_length_hides_no_curve(count: int) -> None:
    curves = [
        Curve(f"train=corpus-{number}/of/some/length/train.tsv", np.arange(9.0), np.sin(np.arange(9.0) + number))
        for number in range(count)
    ]
    figure = draw(Drawing("dev_f1", "dev f1", "examples seen", curves))
    drawn(figure, "png")
    (legend,), (axes,) = figure.legends, figure.axes
    box, plot = legend.get_window_extent(), axes.get_tightbbox()
    assert box.y1 <= plot.y0 + 1 and box.y0 >= 0 and box.x1 <= figure.bbox.x1
    assert axes.get_window_extent().height > 300, "the figure grows by its legend, not at the cost of the curves"
    assert len({line.get_color() + str(line.get_linestyle()) for line in axes.lines}) == count


def test_classes_are_sorted_by_mean_f1_with_the_deviation_over_runs() -> None:
    names = ["a", "b", "c"]
    one = kept(names, {"a": 0.5, "b": 0.9, "c": 0.75}, runs=4)
    two = kept(names, {"a": 0.6, "b": None, "c": 0.95})
    figure = draw_by_class({"lr=1": one, "lr=2": two})["by_class"]
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c  (12)", "a  (10)", "b  (11)"]
    assert legend_of(figure) == ["lr=1 (mean of 4)", "lr=2"]
    drawn_f1 = {line.get_label(): line.get_xdata() for line in axes.lines if line.get_marker() == "o"}
    assert drawn_f1["lr=1 (mean of 4)"].tolist() == [0.75, 0.5, 0.9]
    assert drawn_f1["lr=2"] == pytest.approx([0.95, 0.6, np.nan], nan_ok=True)
    (bars,) = axes.containers
    ends = sorted((segment[0][0], segment[1][0]) for segment in bars.lines[2][0].get_segments())
    assert ends == [pytest.approx(pair) for pair in ((0.48, 0.52), (0.73, 0.77), (0.88, 0.92))]


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
