"""Figures of a run, drawn only from its tables, so that they can be drawn again at any time.

Every x axis is in examples seen, which is comparable between batch sizes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nlu.display.canvas import (
    BEST_COLOUR,
    SET_COLOURS,
    TITLE,
    logarithmic,
    new_figure,
    save_drawn,
    scientific,
    styled,
    thousands,
)
from nlu.runs.records import PEAK_COLUMN, TIME_COLUMNS, Cell, read_rows

Rows = Sequence[Mapping[str, Cell]]
Points = tuple[np.ndarray, np.ndarray]

MAX_EPOCH_LINES = 20
MAX_EPOCH_LABELS = 10
MAX_LENGTH_BINS = 64
MAX_LEGEND_CHARACTERS = 60
"""a longer legend does not fit beside the title and is placed where it covers least"""
FEW_POINTS = 40
"""up to this many points each is drawn as a dot, since a line through one or two points is invisible"""
TRAIN_COLOUR = "#4c566a"
PHASE_COLOURS = dict(
    zip(
        TIME_COLUMNS,
        ("#d55e00", "#e69f00", "#56b4e9", "#0072b2", "#cc79a7", "#8c6d1f", "#009e73", "#7fc8a9", "#d8d8d8"),
        strict=True,
    )
)
SMALL_PHASE = 0.01
"""phases with less than this share of the time of a run are drawn with the others"""
MAX_TIME_BINS = 100
TITLE_PAD = 22
"""points between a figure and its title, where the names of curves and epochs stand"""


def draw_run(
    run_dir: Path, *, major_metric: str, major_set: str, higher_is_better: bool, epoch_examples: int
) -> list[Path]:
    """Draw plots/loss.png, metric.png, lr.png, gnorm.png and time.png (1000 x 600 pixels) from train.tsv and valid.tsv.

    Returns the files written; a figure without finite values is left out. With `epoch_examples` 0 epochs are not drawn.
    """
    figures = figures_of(run_dir, major_metric, major_set, higher_is_better, epoch_examples)
    return [path for name, draw in figures.items() for path in save_drawn(run_dir / "plots" / f"{name}.png", draw)]


def figures_of(
    run_dir: Path, major_metric: str, major_set: str, higher_is_better: bool, epoch_examples: int
) -> dict[str, Callable[[], Figure | None]]:
    """Return a function for each figure of a run, which returns None without finite values."""
    train, valid = (read_rows(path) if (path := run_dir / name).exists() else [] for name in ("train.tsv", "valid.tsv"))
    sets = list(dict.fromkeys(str(row["set"]) for row in valid))
    colours = {name: SET_COLOURS[index % len(SET_COLOURS)] for index, name in enumerate(sets)}
    end = max((int(row["examples"] or 0) for row in (*train, *valid)), default=0)
    parts: dict[str, Callable[[], Figure | None]] = {
        "loss": lambda: _loss_figure(train, valid, colours),
        "metric": lambda: _metric_figure(valid, colours, major_metric, major_set, higher_is_better),
        "lr": lambda: _column_figure(train, "lr", "learning rate"),
        "gnorm": lambda: _gradient_figure(train),
        "time": lambda: time_figure(train),
    }

    def finished(draw: Callable[[], Figure | None]) -> Figure | None:
        # Lines and legends take their style from the settings that are active when they are created.
        with styled():
            figure = draw()
            if figure is not None:
                _finish_run_axes(figure.axes[0], run_dir, end, epoch_examples)
        return figure

    return {name: partial(finished, draw) for name, draw in parts.items()}


def draw_lengths(path: Path, counts: Mapping[str, Sequence[int]], max_len: int) -> None:
    """Draw the lengths of each split, as shares of its examples, as a PNG at `path`.

    `counts[split][n]` is the number of examples with n tokens; `max_len` is marked, with the share that reaches it.
    """
    title = path.parent.parent.name if path.parent.name == "plots" else path.stem
    save_drawn(path, lambda: lengths_figure(title, counts, max_len))


def lengths_figure(title: str, counts: Mapping[str, Sequence[int]], max_len: int) -> Figure:
    """Return the figure of `draw_lengths`."""
    longest = max([max_len, *(_last_nonzero(split) for split in counts.values())])
    width = math.ceil((longest + 1) / MAX_LENGTH_BINS)
    figure, axes = new_figure()
    for index, (split, values) in enumerate(counts.items()):
        # Shares instead of counts, since the train set has many times the examples of the others.
        lengths = np.asarray(values, dtype=float)
        if lengths.sum() == 0:
            continue
        shares = _binned(lengths, width) / lengths.sum()
        colour = SET_COLOURS[index % len(SET_COLOURS)]
        edges = np.arange(len(shares) + 1) * width
        axes.stairs(shares, edges, color=colour, linewidth=1.6, label=_length_label(split, lengths, max_len))
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.08)
    axes.axvline(max_len, color="#888888", linewidth=1.0, linestyle="--")
    _label_above(axes, max_len, f"max_len {max_len:,}")
    axes.set_title(title, **TITLE, pad=TITLE_PAD)
    axes.set_xlabel(f"tokens per example (bins of {width})" if width > 1 else "tokens per example")
    axes.set_ylabel("share of examples")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    thousands(axes.xaxis)
    axes.set_xlim(0, (longest + 1) * 1.02)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
    return figure


def _points(rows: Iterable[Mapping[str, Cell]], column: str) -> Points:
    """Return examples seen and values of a column, without empty and non-finite cells."""
    cells = [(row["examples"], row[column]) for row in rows]
    kept = [(x, y) for x, y in cells if isinstance(y, (int, float)) and math.isfinite(y)]
    return np.array([x for x, _ in kept], dtype=float), np.array([y for _, y in kept], dtype=float)


def _set_points(valid: Rows, metric: str, name: str) -> Points:
    return _points((row for row in valid if row["metric"] == metric and row["set"] == name), "value")


def _plot(axes: Axes, points: Points, colour: str, label: str | None, *, smooth: bool = False) -> None:
    """Draw a curve; with `smooth`, long curves are drawn faint with their running mean over them."""
    x, y = points
    if not smooth or len(x) <= FEW_POINTS:
        axes.plot(x, y, color=colour, label=label, marker="o" if len(x) <= FEW_POINTS else None)
        return
    axes.plot(x, y, color=colour, alpha=0.25, linewidth=0.9)
    axes.plot(x, smoothed(y), color=colour, label=label)


def smoothed(y_P: np.ndarray) -> np.ndarray:
    """Return the running mean of a curve with many points.

    Without negative values it is computed on a logarithmic scale, so that a spike does not dominate a whole window.
    """
    window = max(len(y_P) // 50, 5)
    return np.expm1(_running_mean(np.log1p(y_P), window)) if y_P.min() >= 0 else _running_mean(y_P, window)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the `window` values around each one, of fewer at both ends."""
    # By differences of cumulative sums, so that the cost does not depend on the window.
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first = np.maximum(index - window // 2, 0)
    last = np.minimum(index + window // 2 + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _loss_figure(train: Rows, valid: Rows, colours: Mapping[str, str]) -> Figure | None:
    curves = {name: _set_points(valid, "loss", name) for name in colours}
    train_points = _points(train, "loss")
    if not len(train_points[0]) and not any(len(x) for x, _ in curves.values()):
        return None
    figure, axes = new_figure()
    if len(train_points[0]):
        _plot(axes, train_points, TRAIN_COLOUR, "train", smooth=True)
    for name, points in curves.items():
        if len(points[0]):
            _plot(axes, points, colours[name], name)
    axes.set_ylabel("loss")
    _draw_legend(axes)
    return figure


def _metric_figure(
    valid: Rows, colours: Mapping[str, str], major_metric: str, major_set: str, higher_is_better: bool
) -> Figure | None:
    curves = {name: _set_points(valid, major_metric, name) for name in colours}
    if not any(len(x) for x, _ in curves.values()):
        return None
    figure, axes = new_figure()
    for name, points in curves.items():
        if len(points[0]):
            _plot(axes, points, colours[name], name)
    # Room for the text at the best point.
    axes.margins(y=0.15)
    x, y = curves.get(major_set, (np.array([]), np.array([])))
    if len(x):
        best = int(np.argmax(y) if higher_is_better else np.argmin(y))
        _mark_best(axes, x[best], y[best], right=x[best] > x[-1] / 2, above=higher_is_better)
    axes.set_ylabel(major_metric)
    _draw_legend(axes)
    return figure


def _mark_best(axes: Axes, x: float, y: float, *, right: bool, above: bool) -> None:
    """Draw a dot at the best point, with a text on the side where the plot has room."""
    axes.plot([x], [y], "o", color=BEST_COLOUR, markersize=9, markeredgecolor="white", zorder=5)
    label = axes.annotate(
        f"best {y:.4g} at {x:,.0f} examples",
        (x, y),
        xytext=(10 if right else -10, 12 if above else -12),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom" if above else "top",
        color=BEST_COLOUR,
        fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        zorder=6,
    )
    # The text may reach beyond the axes; the layout would shrink the plot to make room for it.
    label.set_in_layout(False)


def _column_figure(train: Rows, column: str, label: str) -> Figure | None:
    points = _points(train, column)
    if not len(points[0]):
        return None
    figure, axes = new_figure()
    _plot(axes, points, SET_COLOURS[0], None, smooth=column == "gnorm")
    axes.set_ylabel(label)
    scientific(axes)
    return figure


def _gradient_figure(train: Rows) -> Figure | None:
    """Draw gradient norms, on a logarithmic axis if a few of them would flatten the others."""
    figure = _column_figure(train, "gnorm", "gradient norm")
    if figure is None:
        return None
    _, norms = _points(train, "gnorm")
    # A logarithmic axis cannot show 0.
    if norms.min() > 0 and norms.max() > 30 * np.median(norms):
        logarithmic(figure.axes[0])
    _, clipped = _points(train, "clipped")
    if len(clipped):
        figure.axes[0].set_title(f"{clipped.mean():.1%} of steps clipped", loc="right", fontsize=10, pad=TITLE_PAD)
    return figure


def time_figure(train: Rows) -> Figure | None:
    """Draw the shares of the phases in the time between the rows of train.tsv, stacked, with their shares of the whole.

    Phases are those of `nlu.training.phases`. Many rows are summed to MAX_TIME_BINS.
    """
    ends = np.array([0, *(float(row["examples"] or 0) for row in train)])
    seconds_RP = np.array([[row.get(column) for column in TIME_COLUMNS] for row in train], dtype=float)
    # Rows of an earlier version of this program lack times, which are NaN here.
    known_R = np.isfinite(seconds_RP).all(1) & (seconds_RP.sum(1) > 0) if len(train) else np.zeros(0, bool)
    if not known_R.any():
        return None
    first = int(np.argmax(known_R))
    bins = np.array_split(np.arange(first, len(train)), min(MAX_TIME_BINS, len(train) - first))
    edges = ends[[first, *(int(rows[-1]) + 1 for rows in bins)]]
    seconds_BP = np.array([np.nan_to_num(seconds_RP[rows]).sum(0) for rows in bins])
    total_P = seconds_BP.sum(0) / seconds_BP.sum()
    is_small_P = total_P < SMALL_PHASE
    is_small_P[-1] = False
    seconds_BP[:, -1] += seconds_BP[:, is_small_P].sum(1)
    seconds_BP[:, is_small_P] = 0
    share_BP = seconds_BP / np.maximum(seconds_BP.sum(1, keepdims=True), 1e-9)
    figure, axes = new_figure()
    below_B = np.zeros(len(bins))
    for place in np.flatnonzero(~is_small_P):
        column = TIME_COLUMNS[place]
        above_B = below_B + share_BP[:, place]
        label = f"{column.removesuffix('_s')} {seconds_BP[:, place].sum() / seconds_BP.sum():.0%}"
        axes.stairs(above_B, edges, baseline=below_B, fill=True, color=PHASE_COLOURS[column], label=label)
        below_B = above_B
    # In the order in which they are stacked.
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
    axes.set_ylabel("share of the time")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_ylim(0, 1)
    peak = max((float(row.get(PEAK_COLUMN) or 0) for row in train), default=0.0)
    axes.set_title(
        f"{seconds_BP.sum():,.0f} s of training, peak memory {peak:,.0f} MB", loc="right", fontsize=10, pad=TITLE_PAD
    )
    return figure


def _finish_run_axes(axes: Axes, run_dir: Path, end: int, epoch_examples: int) -> None:
    axes.set_title(run_dir.resolve().name, **TITLE, pad=TITLE_PAD)
    axes.set_xlabel("examples seen")
    axes.set_xlim(0, max(end, 1) * 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    thousands(axes.xaxis)
    _draw_epochs(axes, end, epoch_examples)


def _draw_epochs(axes: Axes, end: int, epoch_examples: int) -> None:
    epochs = end // epoch_examples if epoch_examples > 0 else 0
    stride = _stride(epochs, MAX_EPOCH_LINES)
    # A multiple of the lines' stride, so that every text stands at a line.
    label_stride = stride * _stride(epochs // stride, MAX_EPOCH_LABELS)
    for epoch in range(stride, epochs + 1, stride):
        axes.axvline(epoch * epoch_examples, color="#a0a0a0", linewidth=0.8, linestyle=(0, (4, 4)), zorder=1)
        if epoch % label_stride == 0:
            _label_above(axes, epoch * epoch_examples, f"epoch {epoch:,}")


def _draw_legend(axes: Axes) -> None:
    """Write the names of the curves beside the title, where they hide nothing."""
    _, labels = axes.get_legend_handles_labels()
    if sum(len(label) + 4 for label in labels) > MAX_LEGEND_CHARACTERS:
        axes.legend(loc="best")
    else:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.035), ncols=len(labels), borderaxespad=0, columnspacing=1.2
        )


def _stride(count: int, limit: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that leaves at most `limit` of `count` marks."""
    stride, power = 1, 1
    while count // stride > limit:
        factor = {1: 2, 2: 5, 5: 10}[stride // power]
        stride = power * factor
        power *= 10 if factor == 10 else 1
    return stride


def _label_above(axes: Axes, x: float, text: str) -> None:
    axes.annotate(
        text,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
        color="#777777",
    )


def _last_nonzero(counts: Sequence[int]) -> int:
    used = np.flatnonzero(np.asarray(counts))
    return int(used[-1]) if len(used) else 0


def _binned(lengths: np.ndarray, width: int) -> np.ndarray:
    # Filled up to whole bins, which reshape needs.
    padded = np.pad(lengths, (0, -len(lengths) % width))
    return padded.reshape(-1, width).sum(axis=1)


def _length_label(split: str, lengths: np.ndarray, max_len: int) -> str:
    total = lengths.sum()
    median = int(np.searchsorted(np.cumsum(lengths), total / 2))
    reached = lengths[max_len:].sum() / total
    return f"{split}: {total:,.0f} examples, median {median:,}, {reached:.1%} reach max_len"
