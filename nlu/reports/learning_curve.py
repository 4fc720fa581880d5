"""The score of runs by the number of rows they were trained on, and whether more labelled rows would help.

Runs that differ only in how many rows they take are the points of one curve; their seeds are draws of these rows. An
interval holds the mean with 95 % certainty, by Student's t over the draws. A gain is that of the same seeds, since a
draw of more rows contains that of fewer.

Axes: R runs of a point.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from nlu.config.errors import DataError, UserError
from nlu.display.canvas import styled
from nlu.display.console_tables import Column, fitted, metric_text, print_table
from nlu.display.curve_figures import add_legend, figure_of, look
from nlu.reports.differing_keys import labels_of
from nlu.reports.run_table import Configuration, Repeat, as_json, lower_is_better
from nlu.reports.runs import RunRecord
from nlu.reports.show_table import are_other_rows
from nlu.storage.files import read_json

SIZES = ("data.rows_per_class", "data.max_rows")
"""keys in which the points of a curve differ"""
CERTAINTY = 0.95
SMALL_GAIN = 0.005
"""of a score between 0 and 1: an interval below it shows that more rows change little"""


@dataclass
class Point:
    """The runs with one number of rows."""

    rows: int
    row: Configuration
    values: Mapping[tuple[Repeat, int | None], float]
    """by seed, fold and split"""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds of the mean; None for one run."""
        return interval_of(list(self.values.values()))


@dataclass
class Curve:
    """The points of one configuration, by rows."""

    label: str
    metric: str
    lower_is_better: bool
    points: list[Point]

    @property
    def verdict(self) -> str:
        """What the last two points say about more rows, as a sentence."""
        if len(self.points) < 2:
            return (
                f"only {self.points[-1].rows:,} rows; train on fewer, such as data.rows_per_class=8, to see whether "
                "more labels would help"
            )
        before, last = self.points[-2:]
        sign = -1 if self.lower_is_better else 1
        gain, bounds = gain_of(before, last)
        shown = f"from {before.rows:,} to {last.rows:,} rows {self.metric} changes by {_signed(gain)}"
        if bounds is None:
            return f"{shown}; train both with the same seeds, such as seeds=5, to know how sure that is"
        low, high = sorted(sign * bound for bound in bounds)
        shown += f" ({_signed(bounds[0])} to {_signed(bounds[1])})"
        if low > 0:
            return f"{shown}: more labels would help"
        if high < SMALL_GAIN:
            return f"{shown}: more labels would hardly help"
        return f"{shown}: too uncertain to tell; more draws (seeds={2 * len(last.values)}) or more rows would show it"


def _signed(value: float) -> str:
    return f"{value:+.4f}"


def interval_of(values_R: Sequence[float]) -> tuple[float, float] | None:
    """Return the bounds of the mean of what the values were drawn from; None for fewer than two."""
    from scipy.stats import t

    if len(values_R) < 2:
        return None
    mean, sd = statistics.fmean(values_R), statistics.stdev(values_R)
    half = float(t.ppf((1 + CERTAINTY) / 2, len(values_R) - 1)) * sd / math.sqrt(len(values_R))
    return mean - half, mean + half


def gain_of(before: Point, last: Point) -> tuple[float, tuple[float, float] | None]:
    """Return the mean change of runs with the same seed and fold, and its bounds; without two such, of the means."""
    changes = [last.values[key] - value for key, value in before.values.items() if key in last.values]
    return (statistics.fmean(changes), interval_of(changes)) if len(changes) > 1 else (last.mean - before.mean, None)


def curves_of(tables: Sequence[Sequence[Configuration]]) -> list[Curve]:
    """Return a curve for each configuration apart from SIZES. Raises UserError if no run has a score."""
    alike: dict[str, list[Point]] = {}
    for row in (row for table in tables for row in table):
        if row.metric and (point := _point(row)) is not None:
            # The files of rows too: whoever labels more has a longer file, or one for each batch of labels.
            own = {key: value for key, value in row.config.items() if key not in (*SIZES, "data.train")}
            alike.setdefault(as_json([row.metric, own]), []).append(point)
    if not alike:
        raise UserError("no run here has ended with a score; give folders of finished runs")
    groups = [sorted(points, key=lambda point: point.rows) for points in alike.values()]
    labels = labels_of([points[0].row for points in groups])
    return [
        Curve(label, _named(points[0].row), lower_is_better(points[0].row, str(points[0].row.metric)), points)
        for label, points in zip(labels, groups, strict=True)
    ]


def _named(row: Configuration) -> str:
    return next(iter(row.asked.values()), f"{row.set_name}/{row.metric}")


def _point(row: Configuration) -> Point | None:
    set_name, _, metric = _named(row).rpartition("/")
    values = {row.place_of(run): run.value(set_name, metric) for run in row.counted if run.state == "complete"}
    known = {place: value for place, value in values.items() if value is not None and math.isfinite(value)}
    return Point(round(statistics.fmean(map(rows_of_run, row.counted))), row, known) if known else None


def rows_of_run(run: RunRecord) -> int:
    """Return how many rows a run was trained on. Raises DataError if its data.json does not say it."""
    path = run.folder / "data.json"
    try:
        sets = (read_json(path) or {})["sets"]
        # Of a mixture, the training rows of all its sets.
        return sum(facts["examples"] for name, facts in sets.items() if name.split("-")[0] == "train")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not say how many rows were trained on ({error}); leave this run out") from error


def print_curves(curves: Sequence[Curve]) -> None:
    """Print a table of all points, and under it what each curve says about more rows."""
    lines = list(_lines(curves))
    headers = ("curve", "rows", curves[0].metric, "from", "to", "draws")
    columns = [
        Column(header, [line[place] for line in lines], is_number=place > 0) for place, header in enumerate(headers)
    ]
    print_table(fitted(columns)[0])
    print_table("from, to: the mean lies between them with 95 % certainty", style="dim")
    if are_other_rows([point.row for curve in curves for point in curve.points]):
        print_table("some runs were scored on other rows than others, so their values do not compare", style="dim")
    for curve in curves:
        print_table(f"{curve.label}: {curve.verdict}")


def _lines(curves: Sequence[Curve]) -> Iterator[list[str]]:
    for curve in curves:
        for point in curve.points:
            low, high = point.interval or (None, None)
            numbers = [point.mean, low, high]
            yield [curve.label, f"{point.rows:,}", *map(metric_text, numbers), str(len(point.values))]


def draw(curves: Sequence[Curve]) -> Figure:
    """Draw the mean of each point with its interval over rows, on a logarithmic axis."""
    with styled():
        figure, axes = figure_of()
        for number, curve in enumerate(curves):
            colour, line = look(number)
            rows_P = np.array([point.rows for point in curve.points])
            mean_P = np.array([point.mean for point in curve.points])
            bounds = [point.interval or (point.mean, point.mean) for point in curve.points]
            error_2P = np.abs(np.array(bounds).T - mean_P)
            axes.errorbar(
                rows_P, mean_P, error_2P, label=curve.label, color=colour, linestyle=line, marker="o", capsize=4
            )
        every = sorted({point.rows for curve in curves for point in curve.points})
        axes.set_xscale("log")
        axes.set_xticks(every, [f"{rows:,}" for rows in every])
        axes.minorticks_off()
        axes.set_xlabel("labelled rows that were trained on")
        axes.set_ylabel(curves[0].metric)
        axes.set_title("bars: 95 % interval of the mean over draws", loc="right", fontsize=8.5, color="#555555")
        add_legend(figure, axes)
        return figure
