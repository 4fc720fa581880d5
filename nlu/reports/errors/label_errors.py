"""Labels that may be wrong, by confident learning over out-of-fold probabilities, as cleanlab has it (extra `errors`).

Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels", Journal of Artificial
Intelligence Research 70 (2021), sections 3.1 and 3.2: the threshold of a class is the mean probability that rows with
this label have for it. A row counts for the class whose threshold its probability reaches, or for the most probable of
several. If that is not its label, the label is suspected. The counts by label and class are the confident joint.

Axes: N rows, C classes, M suspected rows.
"""

import warnings
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nlu.config.errors import UserError
from nlu.runs.predictions import Record

RankBy = Literal["self-confidence", "normalized-margin"]


@dataclass(frozen=True)
class Suspect:
    """A row whose label may be wrong."""

    number: int
    """of the record in the file, from 0"""
    label: str
    likely: str
    """the most probable class; for label sets the label that the row should have or lack"""
    self_confidence: float
    """the probability of the label"""
    margin: float
    """the probability of the label, less that of the most probable other class"""


@dataclass
class LabelErrors:
    """What was found."""

    method: str
    suspects: list[Suspect]
    """the most probable errors first"""
    rows: int
    thresholds: dict[str, float] = field(default_factory=dict)
    """by class"""
    confused: list[tuple[str, str, float]] = field(default_factory=list)
    """label, class and estimated number of rows, the largest first; empty for label sets"""

    @property
    def estimated(self) -> float:
        """The number of wrong labels that the calibrated joint estimates."""
        return sum(count for _, _, count in self.confused)


class Probabilities:
    """Labels and probabilities of all rows in their order. Memory: 8 bytes for each row and class."""

    def __init__(self, first: Record):
        self.names = list(first["probabilities"])
        self._number = {name: number for number, name in enumerate(self.names)}
        self._values = array("d")
        self.labels: list[list[int]] = []

    def add(self, record: Record) -> None:
        """Add a record."""
        label = record["label"]
        self.labels.append([self._number[name] for name in (label if isinstance(label, list) else [label])])
        of_each = record["probabilities"]
        self._values.extend(np.nan if of_each[name] is None else of_each[name] for name in self.names)

    @property
    def values_NC(self) -> np.ndarray:
        return np.array(self._values).reshape(len(self.labels), len(self.names))


def find_label_errors(known: Probabilities, rank_by: RankBy, are_sets: bool) -> LabelErrors:
    """Return the suspected labels, each a class or a set of labels.

    Probabilities of classes are divided by their sum, since losses that score each class separately give sums other
    than 1. Raises UserError if cleanlab is missing or the rows do not suffice.
    """
    values_NC = known.values_NC
    if not np.isfinite(values_NC).all():
        raise UserError("some probabilities are not finite")
    if len({label for labels in known.labels for label in labels}) < 2:
        raise UserError("all rows have the same label, so it cannot be confused with another")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _require_cleanlab()
        if are_sets:
            return _of_sets(known, values_NC, rank_by)
        return _of_classes(known, values_NC / values_NC.sum(1, keepdims=True), rank_by)


def _require_cleanlab() -> None:
    try:
        import cleanlab.count
        import cleanlab.filter  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"this needs {(error.name or 'cleanlab').partition('.')[0]}; install it with pip install 'nlu[errors]'"
        ) from None


def _of_classes(known: Probabilities, values_NC: np.ndarray, rank_by: RankBy) -> LabelErrors:
    from cleanlab.count import compute_confident_joint, estimate_joint, get_confident_thresholds
    from cleanlab.filter import find_label_issues

    names, label_N = known.names, np.array([label for (label,) in known.labels])
    # One process: the start of more takes longer than this, and they would import everything again.
    found_M = np.asarray(
        find_label_issues(
            label_N,
            values_NC,
            filter_by="confident_learning",
            return_indices_ranked_by=rank_by.replace("-", "_"),
            n_jobs=1,
        )
    )
    joint_CC = compute_confident_joint(label_N, values_NC)
    share_CC = estimate_joint(label_N, values_NC, confident_joint=joint_CC)
    thresholds_C = get_confident_thresholds(label_N, values_NC)
    confused = [
        (names[label], names[other], float(share) * len(label_N))
        for (label, other), share in np.ndenumerate(share_CC)
        if label != other and share > 0
    ]
    return LabelErrors(
        "confident joint",
        [_suspect(row, names, label_N[row], values_NC[row]) for row in found_M.tolist()],
        len(label_N),
        {names[label]: float(thresholds_C[label]) for label in np.unique(label_N)},
        sorted(confused, key=lambda entry: -entry[2]),
    )


def _suspect(row: int, names: Sequence[str], label: int, values_C: np.ndarray) -> Suspect:
    others_C = values_C.copy()
    others_C[label] = -np.inf
    best = int(others_C.argmax())
    return Suspect(row, names[label], names[best], float(values_C[label]), float(values_C[label] - values_C[best]))


def _of_sets(known: Probabilities, values_NC: np.ndarray, rank_by: RankBy) -> LabelErrors:
    """Judge each label separately, as present or absent. A row is suspected if one of its labels is."""
    from cleanlab.multilabel_classification.filter import find_label_issues

    found_M = np.asarray(
        find_label_issues(
            known.labels,
            values_NC,
            filter_by="confident_learning",
            return_indices_ranked_by=rank_by.replace("-", "_"),
            n_jobs=1,
        )
    )
    suspects = []
    for row in found_M.tolist():
        has_C = np.zeros(len(known.names), bool)
        has_C[known.labels[row]] = True
        # The probability that the row has, or lacks, each label as annotated.
        as_annotated_C = np.where(has_C, values_NC[row], 1 - values_NC[row])
        # cleanlab names the row only; the label that fits least is the one to look at.
        worst = int(as_annotated_C.argmin())
        likely = f"{'not ' if has_C[worst] else ''}{known.names[worst]}"
        confidence = float(as_annotated_C[worst])
        shown = ", ".join(known.names[label] for label in known.labels[row]) or "none"
        suspects.append(Suspect(row, shown, likely, confidence, 2 * confidence - 1))
    return LabelErrors("confident joint of each label", suspects, len(known.labels))
