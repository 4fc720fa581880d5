"""What predictions add to a row: the names of the columns, and what stands in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nlu.config.errors import UserError
from nlu.data.layouts import Values
from nlu.inference.predictor import LOGITS
from nlu.inference.trained import Trained
from nlu.storage.files import json_text
from nlu.tasks.siamese import Retrieve, Siamese

PREDICTION, PROBABILITY, SIMILARITY = "prediction", "probability", "similarity"
Kind = Literal["class", "label_set", "number", "spans", "similarity", "class_by_similarity"]
Holds = Literal["text", "number", "texts", "numbers", "spans", "lists of numbers"]
Cell = str | float | list[Any] | None
OWN: dict[Kind, dict[str, Holds]] = {
    "class": {PREDICTION: "text", PROBABILITY: "number"},
    "label_set": {PREDICTION: "texts", PROBABILITY: "numbers"},
    "number": {PREDICTION: "number"},
    "spans": {PREDICTION: "spans"},
    "similarity": {PREDICTION: "number"},
    "class_by_similarity": {PREDICTION: "text", SIMILARITY: "number"},
}
"""the columns of each kind of prediction, and what a cell of them holds"""


@dataclass(frozen=True)
class Columns:
    """The columns that the predictions of a run add."""

    kind: Kind
    labels: tuple[str, ...]
    prefix: str
    scores: bool
    logits: bool

    @property
    def holds(self) -> dict[str, Holds]:
        """What each column holds, by its name, in order."""
        found = dict(OWN[self.kind])
        if self.scores:
            found |= {f"{PROBABILITY}_{label}": "number" for label in self.labels}
        if self.logits:
            found[LOGITS] = "lists of numbers" if self.kind == "spans" else "numbers"
        return {self.prefix + name: holds for name, holds in found.items()}

    def cells(self, values: Values, found: Mapping[str, Any]) -> dict[str, Cell]:
        """Return what is added to the row that has these values in its fields and this prediction."""
        cells: dict[str, Cell] = {PREDICTION: self._prediction(values, found)}
        if self.kind == "label_set":
            cells[PROBABILITY] = [found["probabilities"][label] for label in found["prediction"]]
        cells |= {name: found[name] for name in OWN[self.kind] if name not in cells}
        if self.scores:
            cells |= {f"{PROBABILITY}_{label}": found["probabilities"][label] for label in self.labels}
        if self.logits:
            cells[LOGITS] = found[LOGITS]
        return {self.prefix + name: cell for name, cell in cells.items()}

    def empty(self) -> dict[str, Cell]:
        """Return what is added to a row that cannot be predicted."""
        return dict.fromkeys(self.holds)

    def _prediction(self, values: Values, found: Mapping[str, Any]) -> Cell:
        if self.kind == "spans":
            units = values["tokens"] if "tokens" in values else values["text"]
            return [
                {"type": kind, "first": first, "last": last, "text": _joined(units[first : last + 1])}
                for first, last, kind in found["spans"]
            ]
        name = SIMILARITY if self.kind == "similarity" else PREDICTION
        return found[name]  # type: ignore[no-any-return]


def columns_of(trained: Trained, *, prefix: str, scores: bool, logits: bool) -> Columns:
    """Return the columns that a run's predictions add. Raises UserError where `scores` asks for what it has not."""
    kind = kind_of(trained)
    if scores and kind not in ("class", "label_set"):
        raise UserError("scores is true, but this run gives its labels no probabilities; leave out scores")
    return Columns(kind, tuple(trained.labels), prefix, scores, logits)


def kind_of(trained: Trained) -> Kind:
    """Return what a run predicts."""
    kinds: dict[str, Kind] = {"label_set": "label_set", "number": "number", "tags": "spans", "classes": "class"}
    if isinstance(trained.task, Retrieve):
        return "similarity"
    if isinstance(trained.task, Siamese) and trained.task.over_cosines:
        return "class_by_similarity"
    if trained.target.kind not in kinds:
        raise UserError(
            f"targets of kind {trained.target.kind} cannot be written as columns; use a run of another task"
        )
    return kinds[trained.target.kind]


def text_of(cell: Cell, separator: str, holds: Holds) -> str:
    """Return a cell of a table: a list of labels with the separator between them, any other list as JSON."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, list):
        if holds == "texts" and not any(separator in item for item in cell):
            return separator.join(cell)
        return json_text(cell)
    return repr(cell)


def _joined(units: Sequence[str]) -> str:
    return units if isinstance(units, str) else " ".join(units)
