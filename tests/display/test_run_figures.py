"""What the figures of a run hold, read back from them and compared with the rows of its tables."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

from nlu.display.curve_figures import figures_of
from nlu.runs.records import COST_COLUMNS, TIME_COLUMNS, TRAIN_COLUMNS, VALID_COLUMNS, Table

TRAIN = [  # step, examples, loss, gnorm, clipped, lr
    (2, 16, 1.5, 4.0, 0.5, 1e-5), (4, 29, 1.25, 2.0, 0.25, 3e-5), (6, 45, 0.5, 8.0, 0.0, 2e-5),
]  # fmt: skip
VALID = {"dev": [(29, 0.5, 0.9), (45, 0.75, 0.8), (61, 0.625, 0.85)], "test": [(45, 0.25, 1.1)]}
"""examples, accuracy, loss"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    train, valid = Table(tmp_path / "run/train.tsv", TRAIN_COLUMNS), Table(tmp_path / "run/valid.tsv", VALID_COLUMNS)
    for step, examples, loss, gnorm, clipped, lr in TRAIN:
        train.append(step=step, epoch=0.5, examples=examples, loss=loss, gnorm=gnorm, clipped=clipped, lr=lr)
    for name, rows in VALID.items():
        for examples, accuracy, loss in rows:
            for metric, value in (("accuracy", accuracy), ("loss", loss)):
                valid.append(step=1, epoch=0.5, examples=examples, set=name, metric=metric, value=value)
    return tmp_path / "run"


def axes_of(run: Path, name: str, metric: str = "accuracy", higher: bool = True) -> Axes:
    figure = figures_of(run, metric, "dev", higher, 13)[name]()
    assert figure is not None
    return figure.axes[0]


def curves(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The curves that the legend names."""
    return {
        str(line.get_label()): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def test_losses_of_training_and_of_each_set_are_drawn_at_their_examples(run: Path) -> None:
    axes = axes_of(run, "loss")
    assert curves(axes) == {
        "train": [(examples, loss) for _, examples, loss, *_ in TRAIN],
        "dev": [(examples, loss) for examples, _, loss in VALID["dev"]],
        "test": [(45, 1.1)],
    }
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left")) == ("examples seen", "loss", "run")
    epochs = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]  # type: ignore[index]
    assert epochs == [13, 26, 39, 52]


@pytest.mark.parametrize(("metric", "higher", "best"), [("accuracy", True, (45, 0.75)), ("accuracy", False, (29, 0.5)),
                                                       ("loss", False, (45, 0.8))])  # fmt: skip
def test_the_best_point_of_the_deciding_set_is_marked_with_its_value(
    run: Path, metric: str, higher: bool, best: tuple[float, float]
) -> None:
    axes = axes_of(run, "metric", metric, higher)
    (star,) = [line for line in axes.lines if line.get_marker() == "*"]
    assert (*star.get_xdata(), *star.get_ydata()) == best
    assert set(curves(axes)) == {f"dev: {best[1]:.4f}", "test"}
    assert curves(axes)["test"] == [(45, 0.25 if metric == "accuracy" else 1.1)] and axes.get_ylabel() == metric


def test_the_figure_of_norms_counts_clipped_steps(run: Path) -> None:
    axes = axes_of(run, "gnorm")
    (name,) = curves(axes)
    assert name == "gradient norm (25.0% of steps clipped)"
    assert [list(line.get_ydata()) for line in axes.lines][0] == [4.0, 2.0, 8.0]


def test_shares_of_time_are_stacked_between_rows_and_small_ones_are_with_the_others(tmp_path: Path) -> None:
    train = Table(tmp_path / "run/train.tsv", (*TRAIN_COLUMNS, *COST_COLUMNS))
    for examples, data, forward, saving in ((20, 1, 3, 0), (50, 1, 1, 0.01)):
        seconds = dict.fromkeys(TIME_COLUMNS, 0) | {"data_s": data, "forward_s": forward, "saving_s": saving}
        train.append(step=1, epoch=0.5, examples=examples, **seconds, peak_mb=4321.5 - examples)
    axes = axes_of(tmp_path / "run", "time")
    drawn = {patch.get_label(): patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)}
    assert list(drawn) == ["data 33%", "forward 67%", "other 0%"]
    assert all(list(one.edges) == [0, 20, 50] for one in drawn.values())
    assert list(drawn["data 33%"].values) == pytest.approx([0.25, 1 / 2.01])
    assert list(drawn["forward 67%"].baseline) == list(drawn["data 33%"].values)
    assert list(drawn["other 0%"].values) == pytest.approx([1, 1])
    assert axes.get_title("right") == "6 s of training, peak memory 4,302 MB"
    assert figures_of(tmp_path / "none", "f1", "dev", True, 0)["time"]() is None
