"""What a run's kept predictions say beyond their metrics: by length, by class, confusion and calibration."""

from pathlib import Path

import numpy as np

from nlu.display.curves import KeptScores
from nlu.metrics.calibration import CalibrationScorer
from nlu.metrics.queries import ConfusionScorer
from nlu.runs.predictions import Record, kept_sets, predictions_of

LENGTH_BINS = 8
TEXTS = ("text", "text_a", "text_b")


def kept_scores(run_dir: Path, set_name: str | None) -> KeptScores | str:
    """Read a set's predictions, by default those of the set that decides; why not, where they are no classifier's."""
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
    by_length = _by_length(np.array(lengths), np.array(right)) if any(lengths) else []
    return KeptScores(
        chosen, labels, found.header["by_label"], confusion.matrix(), calibration.bins(),
        calibration.result().metrics["ece"], by_length,
    )  # fmt: skip


def _length(record: Record) -> int:
    return sum(len(record.get(name) or "") for name in TEXTS)


def _by_length(length_N: np.ndarray, right_N: np.ndarray) -> list[tuple[float, float, int]]:
    """Parts of the rows with equally many rows each, as far as equal lengths stay together."""
    order_N = np.argsort(length_N, kind="stable")
    length_N, right_N = length_N[order_N], right_N[order_N]
    bounds = np.unique(np.searchsorted(length_N, np.quantile(length_N, np.arange(1, LENGTH_BINS) / LENGTH_BINS)))
    parts = np.split(np.arange(len(length_N)), bounds)
    return [(float(length_N[part].mean()), float(right_N[part].mean()), len(part)) for part in parts if len(part)]
