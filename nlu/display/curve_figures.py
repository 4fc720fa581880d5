"""Figures of curves over examples, steps, epochs or time, of one run or of several, drawn only from their tables."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from nlu.display.canvas import SET_COLOURS, new_figure, save_drawn, styled, thousands
from nlu.runs.records import PEAK_COLUMN, TIME_COLUMNS, TRAIN, VALID, Cell, read_rows
from nlu.storage.files import read_json

Rows = Sequence[Mapping[str, Cell]]
Points = tuple[np.ndarray, np.ndarray]

MAX_EPOCH_LINES = 20
MAX_LENGTH_BINS = 64
FEW_POINTS = 40
"""up to this many points of a curve each may be drawn as a dot; longer noisy curves are drawn as running means"""
COLOURS = (*SET_COLOURS, "#332288", "#117733", "#882255")
LINES = ("-", "--", ":", "-.")
MOST_MARKED = 6
"""up to this many curves, points are marked"""
FEW_CURVES = 3
"""up to this many curves, raw values are drawn behind a running mean"""
LEGEND_CHARACTERS = 130
"""in a line of a legend below the axes"""
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


@dataclass
class Curve:
    """One quantity of one configuration."""

    label: str
    x_P: np.ndarray
    mean_P: np.ndarray
    sd_P: np.ndarray | None = None
    """sample standard deviation over its runs; None for a single run"""
    runs: int = 1
    best: tuple[float, float] | None = None
    """the point of its best evaluation, if the metric decides"""
    sample: int | None = None
    """the number of rows that were scored, if they were a sample of the set"""


@dataclass
class Drawing:
    """Curves of one quantity."""

    name: str
    """of the file"""
    title: str
    across: str
    curves: list[Curve] = field(default_factory=list)
    epochs: float | None = None
    """length of an epoch on the x axis, if it is equal for all runs"""
    is_noisy: bool = False
    """whether long curves are drawn as running means"""
    without: list[str] = field(default_factory=list)
    """configurations without such a quantity"""
    heading: str = ""


def draw(drawing: Drawing) -> Figure:
    """Draw curves over each other, with deviations as bands and best points as stars; the legend has their values."""
    # Lines and legends take their style from the settings that are active when they are created.
    with styled():
        return _draw(drawing)


def _draw(drawing: Drawing) -> Figure:
    figure, axes = figure_of()
    count = len(drawing.curves)
    for number, curve in enumerate(drawing.curves):
        colour, line = look(number)
        x_P, mean_P, marker = curve.x_P, curve.mean_P, None
        if drawing.is_noisy and len(x_P) > FEW_POINTS:
            if count <= FEW_CURVES:
                axes.plot(x_P, mean_P, color=colour, alpha=0.2, linewidth=0.8)
            mean_P = smoothed(mean_P)
        elif len(x_P) <= FEW_POINTS and count <= MOST_MARKED:
            marker = "o"
        axes.plot(x_P, mean_P, label=_legend_text(curve), color=colour, linestyle=line, marker=marker, markersize=3.5)
        if curve.sd_P is not None and not drawing.is_noisy:
            low_P, high_P = mean_P - curve.sd_P, mean_P + curve.sd_P
            axes.fill_between(x_P, low_P, high_P, color=colour, alpha=0.15, linewidth=0)
        if curve.best is not None:
            axes.plot(*curve.best, marker="*", markersize=12, color=colour, markeredgecolor="white", zorder=5)
    _mark_epochs(axes, drawing)
    axes.set_xlabel(drawing.across)
    axes.set_ylabel(drawing.title)
    axes.set_title(drawing.heading, loc="left", fontsize=10, color="#444444")
    axes.set_title(_remark(drawing), loc="right", fontsize=8.5, color="#555555")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if drawing.name == "lr":
        axes.set_ylim(bottom=0)
    add_legend(figure, axes)
    return figure


def figure_of(width: float = 10.0, height: float = 6.0) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes and room for a legend."""
    return new_figure((width, height), layout="constrained")


def _legend_text(curve: Curve) -> str:
    runs = "" if curve.runs == 1 else f" (mean of {curve.runs})"
    sample = "" if curve.sample is None else f" (of a sample of {curve.sample:,} rows)"
    return f"{curve.label}{runs}{sample}" + ("" if curve.best is None else f": {curve.best[1]:.4f}")


def _remark(drawing: Drawing) -> str:
    """Return the meaning of the marks in a figure."""
    parts = ["star and number: the best of a curve"] if any(curve.best for curve in drawing.curves) else []
    if drawing.is_noisy and any(len(curve.x_P) > FEW_POINTS for curve in drawing.curves):
        parts.append("running means")
    elif any(curve.sd_P is not None for curve in drawing.curves):
        parts.append("band: 1 sd over seeds and folds")
    return "; ".join(parts)


def look(number: int) -> tuple[str, str]:
    """Return the colour and the line of a curve."""
    return COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]


def _mark_epochs(axes: Axes, drawing: Drawing) -> None:
    end = max(float(curve.x_P[-1]) for curve in drawing.curves)
    if not drawing.epochs or end / drawing.epochs > MAX_EPOCH_LINES:
        return
    for number in range(1, int(end / drawing.epochs) + 1):
        axes.axvline(number * drawing.epochs, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)


def add_legend(figure: Figure, axes: Axes) -> None:
    """Write the names of the curves below the axes, where they hide nothing; the figure grows by their lines."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(len(labels), LEGEND_CHARACTERS // (longest + 6)))
    # Rounded up.
    lines = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, lines - 2))
    with styled():
        figure.legend(handles, labels, loc="outside lower left", fontsize=8.5, ncols=columns, handlelength=2.4)


def smoothed(y_P: np.ndarray) -> np.ndarray:
    """Return the running mean of a curve with many points.

    Without negative values it is computed on a logarithmic scale, so that a spike does not dominate a whole window.
    """
    from scipy.ndimage import uniform_filter1d

    window = max(len(y_P) // 50, 5)
    # Beyond both ends the first and the last value count.
    mean = partial(uniform_filter1d, size=window, mode="nearest")
    return np.expm1(mean(np.log1p(y_P))) if y_P.min() >= 0 else mean(y_P)


def rows_of_run(run_dir: Path, name: str) -> list[dict[str, Cell]]:
    """Return the rows of a table, after those of the run with whose state this one began, if that is still there.

    Of the other run they are those before the first step of this one.
    """
    own = read_rows(run_dir / name) if (run_dir / name).is_file() else []
    origin = (read_json(run_dir / "checkpoints" / "taken_from.json") or {}).get("place")
    if not origin or not own or Path(origin).parents[1].resolve() == run_dir.resolve():
        return own
    begin = int(own[0]["step"] or 0)
    return [row for row in rows_of_run(Path(origin).parents[1], name) if int(row["step"] or 0) < begin] + own


def points_of(rows: Iterable[Mapping[str, Cell]], across: str, column: str) -> Points:
    """Return two columns, without rows whose cells are empty or not finite."""
    cells = [(row.get(across), row.get(column)) for row in rows]
    kept = [
        (float(x), float(y))
        for x, y in cells
        if isinstance(x, int | float) and isinstance(y, int | float) and math.isfinite(y)
    ]
    return np.array([x for x, _ in kept]), np.array([y for _, y in kept])


def best_of(x_P: np.ndarray, y_P: np.ndarray, *, higher_is_better: bool) -> tuple[float, float]:
    """Return the best point of a curve, of equal ones the first."""
    place = int(y_P.argmax() if higher_is_better else y_P.argmin())
    return float(x_P[place]), float(y_P[place])


def draw_run(
    run_dir: Path, *, major_metric: str, major_set: str, higher_is_better: bool, epoch_examples: int
) -> list[Path]:
    """Draw plots/loss.png, metric.png, lr.png, gnorm.png and time.png from train.tsv and valid.tsv.

    Returns the files written; a figure without finite values is left out. With `epoch_examples` 0 epochs are not drawn.
    """
    figures = figures_of(run_dir, major_metric, major_set, higher_is_better, epoch_examples)
    return [path for name, draw in figures.items() for path in save_drawn(run_dir / "plots" / f"{name}.png", draw)]


def figures_of(
    run_dir: Path, major_metric: str, major_set: str, higher_is_better: bool, epoch_examples: int
) -> dict[str, Callable[[], Figure | None]]:
    """Return a function for each figure of a run, which returns None without finite values."""
    train, valid = (rows_of_run(run_dir, name) for name in (TRAIN, VALID))
    sets = list(dict.fromkeys(str(row["set"]) for row in valid))
    name = run_dir.resolve().name

    def of_sets(metric: str) -> list[Curve]:
        rows = {each: [row for row in valid if (row["set"], row["metric"]) == (each, metric)] for each in sets}
        return [Curve(each, *points_of(own, "examples", "value"), sample=sample_of(own)) for each, own in rows.items()]

    metric = of_sets(major_metric)
    for curve in metric:
        if curve.label == major_set and len(curve.x_P):
            curve.best = best_of(curve.x_P, curve.mean_P, higher_is_better=higher_is_better)
    clipped = points_of(train, "examples", "clipped")[1]
    norm = "gradient norm" + (f" ({clipped.mean():.1%} of steps clipped)" if len(clipped) else "")
    of_train = {
        column: Curve(title, *points_of(train, "examples", column))
        for column, title in (("loss", "train"), ("lr", "learning rate"), ("gnorm", norm))
    }
    drawings = [
        Drawing("loss", "loss", "examples seen", [of_train["loss"], *of_sets("loss")], is_noisy=True),
        Drawing("metric", major_metric, "examples seen", metric),
        Drawing("lr", "learning rate", "examples seen", [of_train["lr"]]),
        Drawing("gnorm", "gradient norm", "examples seen", [of_train["gnorm"]], is_noisy=True),
    ]
    for drawing in drawings:
        drawing.heading, drawing.epochs = name, epoch_examples or None
        drawing.curves = [curve for curve in drawing.curves if len(curve.x_P)]
    found: dict[str, Callable[[], Figure | None]] = {one.name: partial(_if_any, one) for one in drawings}
    return found | {"time": partial(time_figure, train, name)}


def _if_any(drawing: Drawing) -> Figure | None:
    return draw(drawing) if drawing.curves else None


def sample_of(rows: Rows) -> int | None:
    """Return how many rows of a set were scored on the way, if they were a sample (`trainer.eval_rows`)."""
    counts = [rows_scored for row in rows if isinstance(rows_scored := row.get("rows"), int)]
    return counts[-1] if counts else None


def time_figure(train: Rows, name: str) -> Figure | None:
    """Draw the shares of the phases in the time between the rows of train.tsv, stacked, with their shares of the whole.

    Phases are those of `nlu.training.phases`. Many rows are summed to MAX_TIME_BINS.
    """
    ends = np.array([0, *(float(row["examples"] or 0) for row in train)])
    seconds_RP = np.array([[row.get(column) for column in TIME_COLUMNS] for row in train], dtype=float)
    if not np.nansum(seconds_RP):
        return None
    bins = np.array_split(np.arange(len(train)), min(MAX_TIME_BINS, len(train)))
    edges = ends[[0, *(int(rows[-1]) + 1 for rows in bins)]]
    seconds_BP = np.array([np.nan_to_num(seconds_RP[rows]).sum(0) for rows in bins])
    total_P = seconds_BP.sum(0) / seconds_BP.sum()
    is_small_P = total_P < SMALL_PHASE
    is_small_P[-1] = False
    seconds_BP[:, -1] += seconds_BP[:, is_small_P].sum(1)
    seconds_BP[:, is_small_P] = 0
    share_BP = seconds_BP / np.maximum(seconds_BP.sum(1, keepdims=True), 1e-9)
    figure, axes = figure_of()
    below_B = np.zeros(len(bins))
    for place in np.flatnonzero(~is_small_P):
        column = TIME_COLUMNS[place]
        above_B = below_B + share_BP[:, place]
        label = f"{column.removesuffix('_s')} {seconds_BP[:, place].sum() / seconds_BP.sum():.0%}"
        axes.stairs(above_B, edges, baseline=below_B, fill=True, color=PHASE_COLOURS[column], label=label)
        below_B = above_B
    # In the order in which they are stacked.
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
    axes.set_xlabel("examples seen")
    thousands(axes.xaxis)
    axes.set_title(name, loc="left", fontsize=10, color="#444444")
    axes.set_ylabel("share of the time")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_ylim(0, 1)
    peak = max((float(row.get(PEAK_COLUMN) or 0) for row in train), default=0.0)
    axes.set_title(f"{seconds_BP.sum():,.0f} s of training, peak memory {peak:,.0f} MB", loc="right", fontsize=10)
    return figure


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
    figure, axes = figure_of()
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
    axes.axvline(max_len, color="#888888", linewidth=1.0, linestyle="--", label=f"max_len {max_len:,}")
    axes.set_title(title, loc="left", fontsize=10, color="#444444")
    axes.set_xlabel(f"tokens per example (bins of {width})" if width > 1 else "tokens per example")
    axes.set_ylabel("share of examples")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    thousands(axes.xaxis)
    axes.set_xlim(0, (longest + 1) * 1.02)
    axes.set_ylim(bottom=0)
    add_legend(figure, axes)
    return figure


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
