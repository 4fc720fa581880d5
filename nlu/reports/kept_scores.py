"""What a run's kept predictions say beyond their metrics: by length, by class, confusion and calibration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlu.display.curves import KeptScores
from nlu.metrics.calibration import CalibrationScorer
from nlu.metrics.queries import ConfusionScorer
from nlu.runs.predictions import Record, kept_sets, predictions_of

LENGTH_BINS = 8
TEXTS = ("text", "text_a", "text_b")


def kept_scores(run_dirs: Sequence[Path], set_name: str | None) -> KeptScores | str:
    """Read the predictions of a set that the runs of a configuration kept, by default of the set that decides.

    Confusion, calibration and lengths count the rows of all runs; F1 by class and ECE are means over the runs. Returns
    why there are none, where they are no classifier's.
    """
    found, reason = [], "no predictions kept"
    for run_dir in run_dirs:
        one = _of_run(run_dir, set_name)
        if isinstance(one, str):
            reason = one
        else:
            found.append(one)
    if not found:
        return reason
    names = list(dict.fromkeys(name for one in found for name in one.names))
    confusion, calibration = ConfusionScorer(names), CalibrationScorer(names)
    for one in found:
        confusion.merge(one.confusion)
        calibration.merge(one.calibration)
    lengths, right = (np.concatenate([getattr(one, name) for one in found]) for name in ("length_N", "right_N"))
    return KeptScores(
        found[0].set_name, names, [_over_runs(name, found) for name in names], confusion.matrix(), calibration.bins(),
        float(np.mean([one.calibration.result().metrics["ece"] for one in found])),
        _by_length(lengths, right) if lengths.any() else [], len(found),
    )  # fmt: skip


@dataclass
class _OfRun:
    """What one run kept of a set."""

    set_name: str
    names: list[str]
    by_label: dict[str, dict[str, Any]]
    confusion: ConfusionScorer
    calibration: CalibrationScorer
    length_N: np.ndarray
    right_N: np.ndarray


def _of_run(run_dir: Path, set_name: str | None) -> _OfRun | str:
    names = kept_sets(run_dir)
    chosen = set_name if set_name in names else next((name for name in names if name != "test"), None)
    if chosen is None:
        return "no predictions kept"
    found = predictions_of(run_dir, chosen)
    labels = found.labels
    confusion, calibration = ConfusionScorer(labels), CalibrationScorer(labels)
    lengths, right = [], []
    for record in found:
        if not isinstance(record.get("prediction"), str) or "probabilities" not in record:
            return "no probabilities of classes"
        confusion.add(record)
        calibration.add(record)
        lengths.append(_length(record))
        right.append(record["prediction"] == record["label"])
    if not right:
        return "no predictions kept"
    by_label = {entry["label"]: entry for entry in found.header["by_label"]}
    return _OfRun(chosen, labels, by_label, confusion, calibration, np.array(lengths), np.array(right))


def _over_runs(name: str, found: Sequence[_OfRun]) -> dict[str, Any]:
    """A class: its rows in all runs, and mean and sample standard deviation of its F1 over the runs with rows of it."""
    entries = [one.by_label[name] for one in found if name in one.by_label]
    values = [entry["f1"] for entry in entries if entry.get("examples", 1) and entry.get("f1") is not None]
    return {
        "label": name, "examples": sum(entry.get("examples", 0) for entry in entries),
        "f1": float(np.mean(values)) if values else None,
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
    }  # fmt: skip


def _length(record: Record) -> int:
    return sum(len(record.get(name) or "") for name in TEXTS)


def _by_length(length_N: np.ndarray, right_N: np.ndarray) -> list[tuple[float, float, int]]:
    """Parts of the rows with equally many rows each, as far as equal lengths stay together."""
    order_N = np.argsort(length_N, kind="stable")
    length_N, right_N = length_N[order_N], right_N[order_N]
    bounds = np.unique(np.searchsorted(length_N, np.quantile(length_N, np.arange(1, LENGTH_BINS) / LENGTH_BINS)))
    parts = np.split(np.arange(len(length_N)), bounds)
    return [(float(length_N[part].mean()), float(right_N[part].mean()), len(part)) for part in parts if len(part)]
