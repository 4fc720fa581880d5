"""What `visualize` draws of runs: curves, one for all seeds and folds of a configuration, and what they predicted.

Axes: P points of a curve, N records.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.display.curve_figures import Curve, Drawing, Points, best_of, points_of, rows_of_run, sample_of
from nlu.display.score_figures import KeptScores
from nlu.metrics.calibration import CalibrationScorer
from nlu.metrics.classes import ConfusionScorer
from nlu.metrics.kinds import kind_of
from nlu.reports.differing_keys import labels_of
from nlu.reports.run_table import Configuration, lower_is_better, spread_of
from nlu.reports.runs import RunRecord, metric_of
from nlu.runs.predictions import Predictions, kept_sets, predictions_of
from nlu.runs.records import SCALARS, TRAIN, VALID, Cell
from nlu.tracking.tracker import OF_SUMMARY

Across = Literal["examples", "steps", "epochs", "time"]
COLUMNS: dict[Across, str] = {"examples": "examples", "steps": "step", "epochs": "epoch", "time": "time_s"}
TITLES: dict[Across, str] = {
    "examples": "examples seen",
    "steps": "optimizer steps",
    "epochs": "epochs",
    "time": "seconds of training",
}
OF_STEPS = {"loss": "training loss", "lr": "learning rate", "gnorm": "gradient norm"}
"""the columns of train.tsv to draw"""
LENGTH_BINS = 8
TEXTS = ("text", "text_a", "text_b")
Table = list[dict[str, Cell]]


def drawings_of(rows: Sequence[Configuration], across: Across, metrics: Sequence[str]) -> list[Drawing]:
    """Return a drawing for each metric, by default the one that decides, and for loss, learning rate and gradient norm.

    A metric is NAME, of the set that decides, SET/NAME, or summary/NAME for numbers that a model recorded. Raises
    UserError for a metric that no run has.
    """
    tables = {run.folder: _tables(run.folder) for row in rows for run in row.runs}
    known = sorted({f"{one['set']}/{one['metric']}" for _, valid in tables.values() for one in valid})
    epochs = {_epoch(table, across) for table in tables.values()}
    wanted = [(_asked(text, rows[0]), False) for text in metrics or [""]] + [((None, name), True) for name in OF_STEPS]
    found = []
    for (set_name, metric), is_of_steps in wanted:
        title = OF_STEPS[metric] if is_of_steps else f"{set_name} {metric}"
        name = metric if is_of_steps else title.replace(" ", "_").replace("/", "_")
        drawing = Drawing(name, title, TITLES[across], is_noisy=is_of_steps and metric != "lr")
        drawing.epochs = next(iter(epochs)) if len(epochs) == 1 else None
        for label, row in zip(labels_of(rows), rows, strict=True):
            held = [_rows_of(tables[run.folder], set_name, metric) for run in row.runs]
            column = metric if is_of_steps else "value"
            curve = joined(label, [points_of(one, COLUMNS[across], column) for one in held])
            if curve is None:
                drawing.without.append(label)
                continue
            curve.sample = None if is_of_steps else next(filter(None, map(sample_of, held)), None)
            if not is_of_steps and set_name != OF_SUMMARY:
                curve.best = best_of(curve.x_P, curve.mean_P, higher_is_better=not lower_is_better(row, metric))
            drawing.curves.append(curve)
        if drawing.curves:
            found.append(drawing)
        elif not is_of_steps:
            asked = f"{set_name}/{metric}"
            raise UserError(f"no run has evaluated {asked}; {hint(asked, known)}; choose --metric")
    return found


def _rows_of(tables: tuple[Table, Table], set_name: str | None, metric: str) -> Table:
    """Return the rows of valid.tsv with a metric of a set, or all rows of train.tsv."""
    train, valid = tables
    return train if set_name is None else [row for row in valid if (row["set"], row["metric"]) == (set_name, metric)]


def joined(label: str, points: Iterable[Points]) -> Curve | None:
    """Return the mean curve of several runs, with its deviation, over the range that all of them reached.

    Each run is interpolated linearly between its points. Without points the result is None.
    """
    curves = [one for one in points if len(one[0])]
    if not curves:
        return None
    if len(curves) == 1:
        return Curve(label, *curves[0])
    # Only where every run has values: where one ends, the mean of the others would jump.
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    # Runs are evaluated at different steps, so each is interpolated at the points of all of them.
    every = np.unique(np.concatenate([x for x, _ in curves]))
    x_P = every[(every >= first) & (every <= last)]
    if not len(x_P):
        return Curve(label, *curves[0])
    # Bands are sample deviations, hence ddof=1.
    values_RP = np.stack([np.interp(x_P, x, y) for x, y in curves])
    return Curve(label, x_P, values_RP.mean(0), values_RP.std(0, ddof=1), len(curves))


def _asked(text: str, row: Configuration) -> tuple[str, str]:
    metric, set_name = row.metric or metric_of(row.runs[0].config)[0] or "loss", row.set_name or "dev"
    if not text:
        return set_name, metric
    if text.startswith(f"{OF_SUMMARY}/"):
        # Names that a model gives to its numbers may contain slashes.
        return OF_SUMMARY, text.partition("/")[2]
    given, slash, name = text.rpartition("/")
    return (given if slash else set_name), name


def _tables(folder: Path) -> tuple[Table, Table]:
    """Return the rows of train.tsv and valid.tsv, each with the seconds of training until then.

    Numbers that the model recorded are added to the latter, as metrics of the set OF_SUMMARY.
    """
    train, valid, recorded = (rows_of_run(folder, name) for name in (TRAIN, VALID, SCALARS))
    valid += [{**row, "set": OF_SUMMARY, "metric": row["name"]} for row in recorded]
    elapsed_s, before = 0.0, 0.0
    for row in train:
        examples, speed = _number(row.get("examples")), _number(row.get("examples_per_s"))
        # train.tsv records speeds, not times: a time of the clock would count the pause of a run that was continued.
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


def _epoch(tables: tuple[Table, Table], across: Across) -> float | None:
    for row in reversed([*tables[0], *tables[1]]):
        epoch, x = _number(row.get("epoch")), _number(row.get(COLUMNS[across]))
        # Rounded, since equal lengths computed from different rows may differ in the last digits.
        if epoch > 0 and across != "time":
            return round(x / epoch, 6)
    return None


def kept_scores(runs: Sequence[RunRecord], set_name: str | None) -> KeptScores | None:
    """Read what the runs of a configuration predicted for a set, by default for the one that decides.

    Confusion, calibration and lengths count the rows of all runs; F1 by class and ECE are means over the runs. None if
    no run kept predictions with probabilities of classes.
    """
    kept = [(run, found) for run in runs if (found := _of_classes(run, set_name)) is not None]
    if not kept:
        return None
    # Folds may know different labels; a class that one of them lacks has zeros there.
    names = list(dict.fromkeys(name for _, found in kept for name in found.labels))
    confusion, calibration, eces = ConfusionScorer(names), CalibrationScorer(names), []
    lengths, right = [], []
    for run, found in kept:
        kind, own = kind_of(found, run.config), CalibrationScorer(names)
        for record in found:
            confusion.add(record)
            own.add(record)
            lengths.append(sum(len(record.get(name) or "") for name in TEXTS))
            right.append(not kind.error(record))
        eces.append(own.result().metrics["ece"])
        calibration.merge(own)
    return KeptScores(
        kept[0][1].path.stem,
        names,
        [_over_runs(name, [found for _, found in kept]) for name in names],
        confusion.matrix(),
        calibration.bins(),
        float(np.mean(eces)),
        _by_length(np.array(lengths), np.array(right)) if any(lengths) else [],
        len(kept),
    )


def _of_classes(run: RunRecord, set_name: str | None) -> Predictions | None:
    """Return the predictions of a run for a set, or for one but test; None without probabilities of classes."""
    names = kept_sets(run.folder)
    chosen = set_name if set_name in names else next((name for name in names if name != "test"), None)
    found = None if chosen is None else predictions_of(run.folder, chosen)
    if found is None or next(iter(found), None) is None:
        return None
    kind = kind_of(found, run.config)
    return found if kind.is_one_label and kind.has_probabilities else None


def _over_runs(name: str, kept: Sequence[Predictions]) -> dict[str, object]:
    """Return a class's rows in all runs, with mean and sample deviation of its F1 over the runs that have such rows."""
    entries = [entry for found in kept for entry in found.header["by_label"] if entry["label"] == name]
    spread = spread_of([entry["f1"] for entry in entries if entry.get("examples", 1)])
    f1, sd = (spread.mean, spread.sd) if spread else (None, None)
    return {"label": name, "examples": sum(entry.get("examples", 0) for entry in entries), "f1": f1, "sd": sd}


def _by_length(length_N: np.ndarray, right_N: np.ndarray) -> list[tuple[float, float, int]]:
    """Return mean length, share right and number of rows of each part of the rows by length.

    The parts are equally large, except that rows of equal length stay together.
    """
    order_N = np.argsort(length_N, kind="stable")
    length_N, right_N = length_N[order_N], right_N[order_N]
    # searchsorted moves each bound to the first row of its length, so rows of equal length are in one part.
    bounds = np.unique(np.searchsorted(length_N, np.quantile(length_N, np.arange(1, LENGTH_BINS) / LENGTH_BINS)))
    parts = np.split(np.arange(len(length_N)), bounds)
    return [(float(length_N[part].mean()), float(right_N[part].mean()), len(part)) for part in parts if len(part)]
