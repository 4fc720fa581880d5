"""The decisions of a search: a row for each step, pause and stop of a trial, with the reason."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nlu.display.page import html_table
from nlu.display.tables import count_text, metric_text
from nlu.storage.files import write_text

MAX_ROWS = 300
"""most rows of the table in a page"""
COLUMNS = ("decision", "trial", "what", "from", "until", "value", "why")


@dataclass(frozen=True)
class DecisionRow:
    """What was decided about a trial."""

    number: int | None
    """the place among the decisions of the scheduler; None of a pruner, which decides about each trial by itself"""
    trial: int
    what: str
    start: int
    """the examples that the trial had seen"""
    until: int | None
    """the examples after which it is decided about again; None if it does not continue, or to the end of a fold"""
    value: float | None
    """its value then"""
    why: str


@dataclass(frozen=True)
class Insight:
    """What a search found out besides its trials."""

    importances: Mapping[str, float] = field(default_factory=dict)
    """the share of each parameter, largest first"""
    importances_note: str = ""
    decisions: Sequence[DecisionRow] = ()


def write_decisions(path: Path, rows: Sequence[DecisionRow]) -> None:
    """Write a tab-separated line for each decision; without any, an existing file is removed."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    text = io.StringIO()
    text.write("\t".join(COLUMNS) + "\n")
    for row in rows:
        cells = [row.number, row.trial, row.what, row.start, row.until, row.value, row.why]
        text.write("\t".join("" if cell is None else str(cell) for cell in cells) + "\n")
    write_text(path, text.getvalue())


def decisions_table(rows: Sequence[DecisionRow], metric: str) -> str:
    """Return the last decisions as a table of HTML, without columns that are empty in all rows."""
    numbers = ["" if row.number is None else f"{row.number:,}" for row in rows]
    untils = ["" if row.until is None else count_text(row.until) for row in rows]
    columns = [
        (("decision", True), numbers),
        (("trial", True), [str(row.trial) for row in rows]),
        (("", False), [row.what for row in rows]),
        (("from", True), [count_text(row.start) for row in rows]),
        (("until", True), untils),
        ((metric, True), ["" if row.value is None else metric_text(row.value) for row in rows]),
        (("why", False), [row.why for row in rows]),
    ]
    shown = [(head, cells[-MAX_ROWS:]) for head, cells in columns if any(cells)]
    return html_table([head for head, _ in shown], list(zip(*(cells for _, cells in shown), strict=True)))


def decisions_note(rows: Sequence[DecisionRow]) -> str:
    """Return what the table leaves out."""
    more = len(rows) > MAX_ROWS
    return f"The last {MAX_ROWS} of {len(rows):,}; decisions.tsv has all." if more else "decisions.tsv has them too."
