"""The columns that predictions add to a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nlu.config.errors import UserError
from nlu.data.layouts import Values
from nlu.inference.predictor import LOGITS
from nlu.inference.trained import Trained
from nlu.metrics.kinds import PROBABILITY, Cell, Holds, Kind
from nlu.storage.files import json_text


@dataclass(frozen=True)
class Columns:
    """The columns that the predictions of a run add."""

    kind: Kind
    labels: tuple[str, ...]
    prefix: str
    scores: bool
    logits: bool
    logits_hold: Holds = "numbers"

    @property
    def holds(self) -> dict[str, Holds]:
        """The type of each column, by its name, in order."""
        found = dict(self.kind.columns)
        if self.scores:
            found |= {f"{PROBABILITY}_{label}": "number" for label in self.labels}
        if self.logits:
            found[LOGITS] = self.logits_hold
        return {self.prefix + name: holds for name, holds in found.items()}

    def cells(self, values: Values, found: Mapping[str, Any]) -> dict[str, Cell]:
        """Return the cells of a row, given its texts by role and its prediction."""
        cells = self.kind.cells(values, found)
        if self.scores:
            cells |= {f"{PROBABILITY}_{label}": found["probabilities"][label] for label in self.labels}
        if self.logits:
            cells[LOGITS] = found[LOGITS]
        return {self.prefix + name: cell for name, cell in cells.items()}

    def empty(self) -> dict[str, Cell]:
        """Return the cells of a row that cannot be predicted."""
        return dict.fromkeys(self.holds)


def columns_of(trained: Trained, *, prefix: str, scores: bool, logits: bool) -> Columns:
    """Return the columns that a run's predictions add. Raises UserError if `scores` asks for absent probabilities."""
    if scores and not trained.kind.has_probabilities:
        raise UserError("scores is true, but this run predicts no probabilities; leave out scores")
    # A tagged row has logits for each of its units.
    logits_hold: Holds = "lists of numbers" if trained.layout.name == "units" else "numbers"
    return Columns(trained.kind, tuple(trained.labels), prefix, scores, logits, logits_hold)


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
