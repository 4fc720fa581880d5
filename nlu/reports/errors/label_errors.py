"""Labels that may be wrong, by confident learning over out-of-fold probabilities, which cleanlab computes (extra
`errors`): Northcutt, Jiang and Chuang, Journal of Artificial Intelligence Research 70, 2021.

Axes: N rows, C classes, M suspected rows.
"""

import warnings
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nlu.config.errors import UserError
from nlu.runs.predictions import Record


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


def find_label_errors(known: Probabilities, are_sets: bool) -> list[Suspect]:
    """Return the suspected labels, each a class or a set of labels, the least probable label first.

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
        try:
            from cleanlab.filter import find_label_issues
            from cleanlab.multilabel_classification.filter import find_label_issues as find_in_sets
        except ImportError as error:
            raise UserError(
                f"this needs {(error.name or 'cleanlab').partition('.')[0]}; install it with pip install 'nlu[errors]'"
            ) from None
        if not are_sets:
            values_NC = values_NC / values_NC.sum(1, keepdims=True)
        # One process: the start of more takes longer than this, and they would import everything again.
        asked = {"filter_by": "confident_learning", "return_indices_ranked_by": "self_confidence", "n_jobs": 1}
        if are_sets:
            found_M = find_in_sets(known.labels, values_NC, **asked)
        else:
            found_M = find_label_issues(np.array([label for (label,) in known.labels]), values_NC, **asked)
    suspect = _of_sets if are_sets else _of_classes
    return [suspect(row, known.names, known.labels[row], values_NC[row]) for row in np.asarray(found_M).tolist()]


def _of_classes(row: int, names: Sequence[str], labels: Sequence[int], values_C: np.ndarray) -> Suspect:
    (label,) = labels
    others_C = values_C.copy()
    others_C[label] = -np.inf
    return Suspect(row, names[label], names[int(others_C.argmax())], float(values_C[label]))


def _of_sets(row: int, names: Sequence[str], labels: Sequence[int], values_C: np.ndarray) -> Suspect:
    """Name the label that fits least, since cleanlab names the row only."""
    has_C = np.zeros(len(names), bool)
    has_C[list(labels)] = True
    as_annotated_C = np.where(has_C, values_C, 1 - values_C)
    worst = int(as_annotated_C.argmin())
    likely = f"{'not ' if has_C[worst] else ''}{names[worst]}"
    shown = ", ".join(names[label] for label in labels) or "none"
    return Suspect(row, shown, likely, float(as_annotated_C[worst]))
