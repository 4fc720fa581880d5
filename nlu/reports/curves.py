"""What runs left of their way, as curves that can lie over each other: seeds and folds of a configuration as one.

Axes: P points of a curve.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.display.curves import Curve, Drawing, with_whole_windows
from nlu.reports.aggregate import Row
from nlu.reports.labels import labels_of
from nlu.reports.runs import Run, metric_of, task_constants
from nlu.runs.records import SCALARS, TRAIN, VALID, Cell, read_rows
from nlu.tracking.points import OF_SUMMARY

Across = Literal["examples", "steps", "epochs", "time"]
COLUMNS: dict[Across, str] = {"examples": "examples", "steps": "step", "epochs": "epoch", "time": "time_s"}
TITLES: dict[Across, str] = {
    "examples": "examples seen", "steps": "optimizer steps", "epochs": "epochs", "time": "seconds of training",
}  # fmt: skip
OF_STEPS = {"loss": "training loss", "lr": "learning rate", "gnorm": "gradient norm"}
"""columns of train.tsv that are drawn"""
Points = tuple[np.ndarray, np.ndarray]


def drawings_of(rows: Sequence[Row], across: Across, metrics: Sequence[str]) -> list[Drawing]:
    """Return a drawing for each metric, by default the one that decides, and for loss, learning rate and gradient norm.

    A metric is NAME, of the set that decides, SET/NAME, or summary/NAME of what a model recorded. Raises UserError
    where no run has it.
    """
    labels = labels_of(rows)
    tables = {run.folder: _tables(run.folder) for row in rows for run in row.runs}
    wanted = [_asked(text, rows[0]) for text in metrics or [""]]
    known = sorted({f"{one['set']}/{one['metric']}" for _, valid in tables.values() for one in valid})
    found = []
    for set_name, metric in wanted:
        drawing = Drawing(f"{set_name}_{metric}".replace("/", "_"), f"{set_name} {metric}", TITLES[across])
        for label, row in zip(labels, rows, strict=True):
            points = [_of_metric(tables[run.folder], across, set_name, metric) for run in row.runs]
            curve = joined(label, points)
            if curve is None:
                drawing.without.append(label)
            else:
                curve.best = _best(row.runs, curve, metric) if set_name != OF_SUMMARY else None
                drawing.curves.append(curve)
        if not drawing.curves:
            asked = f"{set_name}/{metric}"
            raise UserError(f"no run has evaluated {asked}; {hint(asked, known)}; choose --metric")
        found.append(drawing)
    for column, title in OF_STEPS.items():
        drawing = Drawing(column, title, TITLES[across], is_noisy=column != "lr")
        for label, row in zip(labels, rows, strict=True):
            points = [_points(tables[run.folder][0], COLUMNS[across], column) for run in row.runs]
            if (curve := joined(label, points)) is not None:
                drawing.curves.append(curve)
            else:
                drawing.without.append(label)
        found += [drawing] if drawing.curves else []
    epochs = {_epoch(tables[run.folder], across) for row in rows for run in row.runs}
    for drawing in found:
        drawing.epochs = next(iter(epochs)) if len(epochs) == 1 else None
    return found


def joined(label: str, points: Iterable[Points]) -> Curve | None:
    """Return the mean of several runs' curves where all of them have gone, with its deviation; None without points.

    Between the points of a run its curve is a straight line.
    """
    curves = [one for one in points if len(one[0])]
    if not curves:
        return None
    if len(curves) == 1:
        return Curve(label, *curves[0])
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    every = np.unique(np.concatenate([x for x, _ in curves]))
    x_P = every[(every >= first) & (every <= last)]
    if not len(x_P):
        return Curve(label, *curves[0])
    values_RP = np.stack([np.interp(x_P, x, y) for x, y in curves])
    return Curve(label, x_P, values_RP.mean(0), values_RP.std(0, ddof=1), len(curves))


def _asked(text: str, row: Row) -> tuple[str, str]:
    metric, set_name = row.metric or metric_of(row.runs[0].config)[0] or "loss", row.set_name or "dev"
    if not text:
        return set_name, metric
    if text.startswith(f"{OF_SUMMARY}/"):
        # What a model calls a number may have slashes.
        return OF_SUMMARY, text.partition("/")[2]
    given, slash, name = text.rpartition("/")
    return (given if slash else set_name), name


def _tables(folder: Path) -> tuple[list[dict[str, Cell]], list[dict[str, Cell]]]:
    """Return the rows of train.tsv and valid.tsv, each with the seconds that training had taken by then.

    What the model recorded stands among the latter, as metrics of a set of its own.
    """
    train, valid, recorded = (
        read_rows(path) if (path := folder / name).is_file() else [] for name in (TRAIN, VALID, SCALARS)
    )
    train = with_whole_windows(train)
    valid += [{**row, "set": OF_SUMMARY, "metric": row["name"]} for row in recorded]
    elapsed_s, before = 0.0, 0.0
    for row in train:
        examples, speed = _number(row.get("examples")), _number(row.get("examples_per_s"))
        elapsed_s += (examples - before) / speed if speed > 0 else 0.0
        before = examples
        row["time_s"] = elapsed_s
    seen = np.array([0.0, *(_number(row["examples"]) for row in train)])
    times = np.array([0.0, *(_number(row["time_s"]) for row in train)])
    for row in valid:
        row["time_s"] = float(np.interp(_number(row["examples"]), seen, times))
    return train, valid


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _points(rows: Iterable[dict[str, Cell]], across: str, column: str) -> Points:
    cells = [(row.get(across), row.get(column)) for row in rows]
    kept = [
        (float(x), float(y))
        for x, y in cells
        if isinstance(x, int | float) and isinstance(y, int | float) and math.isfinite(y)
    ]
    return np.array([x for x, _ in kept]), np.array([y for _, y in kept])


def _of_metric(
    tables: tuple[list[dict[str, Cell]], list[dict[str, Cell]]], across: Across, set_name: str, metric: str
) -> Points:
    rows = (row for row in tables[1] if (row["set"], row["metric"]) == (set_name, metric))
    return _points(rows, COLUMNS[across], "value")


def _best(runs: Sequence[Run], curve: Curve, metric: str) -> tuple[float, float]:
    """Where the curve is best."""
    lower = metric in task_constants(runs[0].config).get("lower_is_better", ())
    place = int(curve.mean_P.argmin() if lower else curve.mean_P.argmax())
    return float(curve.x_P[place]), float(curve.mean_P[place])


def _epoch(tables: tuple[list[dict[str, Cell]], list[dict[str, Cell]]], across: Across) -> float | None:
    for row in reversed([*tables[0], *tables[1]]):
        epoch, x = _number(row.get("epoch")), _number(row.get(COLUMNS[across]))
        if epoch > 0 and across != "time":
            return round(x / epoch, 6)
    return None
