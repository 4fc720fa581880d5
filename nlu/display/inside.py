"""Heat maps of inspect.tsv: a row for each module, from the input to the output, over examples seen."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from nlu.display.canvas import TITLE, new_figure, save_drawn, styled, thousands
from nlu.runs.records import INSPECT, Cell, read_rows

Rows = Sequence[Mapping[str, Cell]]

FIGURES = {
    "gradients": ("gradient", "norm of the gradient"),
    "updates": ("update", "norm of the update / norm of the weights"),
    "activations": ("rms", "root mean square of the outputs"),
    "dead": ("dead", "share of dead units among those that a module reads"),
    "attention": ("peak", "largest attention weight, mean over queries"),
}
"""by name: the column, and its meaning"""
SHARES = ("dead", "peak")
"""columns from 0 to 1; the others have a logarithmic scale"""
MAX_ROWS = 120
MAX_COLUMNS = 200
DECADES = 9
"""smaller values than this below the largest one have the colour of the smallest"""
FEW_DECADES = 3
WITHIN = ".*"
"""ends the name of a row of several modules"""
WIDTH_INCHES, ROW_INCHES, AROUND_INCHES = 10.0, 0.155, 1.2
MISSING = "#d9d9d9"


def draw_inside(run_dir: Path) -> list[Path]:
    """Draw plots/inspect-NAME.png for what a run has inspected; returns the files written.

    With more than MAX_ROWS modules, those within a module are joined, and its row shows their largest value; with more
    than MAX_COLUMNS steps, neighboring ones are joined in the same way.
    """
    path = run_dir / INSPECT
    figures = inside_figures(run_dir.resolve().name, read_rows(path)) if path.is_file() else {}
    return [
        written
        for name, draw in figures.items()
        for written in save_drawn(run_dir / "plots" / f"inspect-{name}.png", draw)
    ]


def inside_figures(title: str, rows: Rows) -> dict[str, Callable[[], Figure | None]]:
    """Return a function for each figure, which returns None if its column is empty, or 0 throughout."""
    of_modules = [row for row in rows if row["kind"] != "parameter"]
    return {name: partial(_figure, title, of_modules, *columns) for name, columns in FIGURES.items()}


def _figure(title: str, rows: Rows, column: str, meaning: str) -> Figure | None:
    names, examples, values_MC = _matrix(rows, column)
    if not np.any(values_MC > 0):
        return None
    joined, names, values_MC = _fewer_rows(names, values_MC)
    examples, values_MC = _fewer_columns(examples, values_MC)
    scale = Normalize(0, 1) if column in SHARES else _logarithmic(values_MC)
    with styled():
        height = max(2.5, ROW_INCHES * len(names) + AROUND_INCHES)
        figure, axes = new_figure((WIDTH_INCHES, height), layout="constrained")
        axes.set_facecolor(MISSING)
        axes.grid(False)
        # A column ends where its step ends.
        edges = np.concatenate([[0.0], examples])
        shown = np.ma.masked_where(~(values_MC > 0) if column not in SHARES else np.isnan(values_MC), values_MC)
        mesh = axes.pcolormesh(edges, np.arange(len(names) + 1), shown, norm=scale, cmap="viridis", rasterized=True)
        axes.set_yticks(np.arange(len(names)) + 0.5, names, fontsize=7)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_title(f"{title}: {meaning}", **TITLE)
        joining = f"; a row ending in {WITHIN} shows the largest of its modules" if joined else ""
        axes.set_xlabel(f"examples seen; grey: no value{'' if column in SHARES else ' or 0'}{joining}")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        thousands(axes.xaxis)
        bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=4 * height)
        bar.outline.set_visible(False)  # type: ignore[operator]
        if isinstance(scale, LogNorm):
            # Over few decades, powers of ten are too few ticks.
            wide = math.log10(scale.vmax / scale.vmin) > FEW_DECADES  # type: ignore[operator]
            bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
            bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure


def _matrix(rows: Rows, column: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return names, examples at each step, and the values, NaN where one is missing."""
    kept = [row for row in rows if isinstance(row.get(column), int | float)]
    names = list(dict.fromkeys(str(row["name"]) for row in kept))
    places = {name: place for place, name in enumerate(names)}
    examples = sorted({float(row["examples"] or 0) for row in kept})
    columns = {value: place for place, value in enumerate(examples)}
    values_MC = np.full((len(names), len(examples)), np.nan)
    for row in kept:
        value = float(row[column] or 0)
        values_MC[places[str(row["name"])], columns[float(row["examples"] or 0)]] = (
            value if np.isfinite(value) else np.nan
        )
    return names, np.array(examples), values_MC


def _fewer_rows(names: list[str], values_MC: np.ndarray) -> tuple[bool, list[str], np.ndarray]:
    """Join the modules with the longest names by the module that contains them, until there are at most MAX_ROWS."""
    labels = [name.split(".") for name in names]
    while len({tuple(label) for label in labels}) > MAX_ROWS and (deepest := max(map(len, labels))) > 1:
        labels = [label[:-1] if len(label) == deepest else label for label in labels]
    groups: dict[str, list[int]] = {}
    for place, (label, name) in enumerate(zip(labels, names, strict=True)):
        shown = ".".join(label)
        groups.setdefault(shown if shown == name else f"{shown}{WITHIN}", []).append(place)
    if len(groups) == len(names):
        return False, names, values_MC
    return True, list(groups), np.stack([_largest(values_MC[places], 0) for places in groups.values()])


def _fewer_columns(examples: np.ndarray, values_MC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(examples) <= MAX_COLUMNS:
        return examples, values_MC
    parts = np.array_split(np.arange(len(examples)), MAX_COLUMNS)
    joined = [_largest(values_MC[:, part], 1) for part in parts]
    return np.array([examples[part[-1]] for part in parts]), np.stack(joined, axis=1)


def _largest(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the largest values, NaN only where all are NaN."""
    largest = np.where(np.isnan(values), -np.inf, values).max(axis)
    return np.where(np.isinf(largest), np.nan, largest)


def _logarithmic(values_MC: np.ndarray) -> LogNorm:
    positive = values_MC[values_MC > 0]
    high = positive.max()
    low = max(positive.min(), high / 10**DECADES)
    return LogNorm(low, high if high > low else 10 * low, clip=True)
