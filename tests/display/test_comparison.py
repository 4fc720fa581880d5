"""What is drawn of several runs is read back from the figures."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from nlu.display.canvas import drawn
from nlu.display.comparison import (
    Curve,
    Drawing,
    KeptScores,
    draw,
    draw_by_class,
    draw_by_length,
    draw_calibration_of,
    draw_confusion_of,
)


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def texts_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.findobj(Text) if text.get_text()]


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


def test_many_noisy_points_are_drawn_as_their_running_mean() -> None:
    rng = np.random.default_rng(1)
    y_P = rng.normal(0, 1, 250)
    figure = draw(Drawing("loss", "training loss", "steps", [Curve("a", np.arange(250.0), y_P)], is_noisy=True))
    faint, mean = figure.axes[0].lines
    assert faint.get_ydata().tolist() == y_P.tolist()
    assert mean.get_ydata()[100] == pytest.approx(y_P[98:103].mean()), "of 250 points each has the mean of 5"
    assert mean.get_ydata()[0] == pytest.approx(y_P[:3].mean())


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


def test_many_configurations_are_columns_of_numbers() -> None:
    names = [f"class {number}" for number in range(3)]
    found = {f"run {run}": kept(names, {name: (run + 2 * place) / 20 for place, name in enumerate(names)})
             for run in range(9)}  # fmt: skip
    (axes,) = draw_by_class(found)["by_class"].axes
    (image,) = axes.images
    assert image.get_array().shape == (3, 9), "classes by configurations"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["class 2  (12)", "class 1  (11)", "class 0  (10)"]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(found)
    expected = [[(run + 2 * place) / 20 for run in range(9)] for place in (2, 1, 0)]
    assert np.asarray(image.get_array()) == pytest.approx(np.array(expected))
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written[8, 0] == "0.60" and written[1, 2] == "0.05"


def test_configurations_of_other_classes_have_a_separate_figure() -> None:
    found = draw_by_class({"a": kept(["x"], {"x": 0.5}), "b": kept(["y", "z"], {}), "c": kept(["x"], {"x": 0.25})})
    assert list(found) == ["by_class", "by_class_1"]
    assert legend_of(found["by_class"]) == ["a", "c"] and legend_of(found["by_class_1"]) == ["b"]


def test_lengths_confusion_and_calibration_are_those_of_the_scores(tmp_path: Path) -> None:
    one = kept(["a", "b", "c"], {}, runs=2)
    (line,) = draw_by_length({"run": one}).axes[0].lines
    assert list(line.get_xdata()) == [8.5, 40.0] and list(line.get_ydata()) == [0.9, 0.7]
    axes = draw_confusion_of("run", one).axes[0]
    counts = np.array(one.confusion)
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(counts / counts.sum(1)[:, None])
    assert "dev: run, rows of 2 runs" in texts_of(axes)
    calibration = draw_calibration_of("run", one).axes[0]
    points = calibration.collections[0].get_offsets()
    assert np.asarray(points).tolist() == [[0.55, 0.4], [0.9, 0.95]]
    assert "dev: run\nmean ECE of 2 runs 0.0625" in texts_of(calibration)
