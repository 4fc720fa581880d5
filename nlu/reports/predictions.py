"""Predictions of run folders: two of them row by row, and where the text of a row stands."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nlu.config.checks.rules import DATA_TARGET, data_folder
from nlu.config.errors import DataError, UserError
from nlu.data.readers import Row as DataRow
from nlu.data.readers import read_rows
from nlu.reports.runs import Run

IDENTITY = ("id", "file", "row")
TEXT_ROLES = ("text", "text_a", "text_b", "tokens")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Flip:
    """One row that two runs predict differently."""

    row: Record
    """as the first run has it"""
    other: Record
    run: Run
    """the first run"""


@dataclass
class Flips:
    """How the predictions of one set changed from one run, or several, to others of the same seeds and folds."""

    rows: int = 0
    both_right: int = 0
    both_wrong: int = 0
    lost: list[Flip] = field(default_factory=list)
    """right in the first, wrong in the second"""
    won: list[Flip] = field(default_factory=list)
    """wrong in the first, right in the second"""
    moved: int = 0
    """of those wrong in both, how many got another wrong prediction"""

    @property
    def p_value(self) -> float:
        """Probability of a difference at least this large if each flip went either way by chance.

        The exact two-sided form of McNemar's test (Psychometrika 12, 1947), a sign test on the rows that flipped.
        """
        flips, fewer = len(self.won) + len(self.lost), min(len(self.won), len(self.lost))
        tail = sum(math.comb(flips, count) for count in range(fewer + 1))
        return min(1.0, 2 * tail / 2**flips)


def sets_of(run: Run) -> list[str]:
    """Return the sets whose predictions a run kept."""
    return sorted(path.stem for path in (run.folder / "predictions").glob("*.json"))


def read_predictions(run: Run, set_name: str) -> list[Record]:
    """Return the records of a set. Raises DataError where the file is damaged."""
    path = run.folder / "predictions" / f"{set_name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} holds no predictions ({error!r}); run it again") from error


def compare(pairs: Iterable[tuple[Run, Run]], set_name: str) -> Flips:
    """Compare the predictions of a set in each pair of runs, row by row.

    Raises DataError where the rows of a pair are not the same: another number, or another label.
    """
    flips = Flips()
    for first, second in pairs:
        rows, others = read_predictions(first, set_name), read_predictions(second, set_name)
        by_key = {_key(other): other for other in others}
        same = len(rows) == len(others) and all(
            (other := by_key.get(_key(row))) is not None and other["label"] == row["label"] for row in rows
        )
        if not same:
            raise DataError(
                f"{first.folder} and {second.folder} scored different rows as {set_name} ({len(rows)} and "
                f"{len(others)}), so their predictions cannot be compared"
            )
        for row in rows:
            _count(flips, Flip(row, by_key[_key(row)], first))
    return flips


def _key(row: Record) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in IDENTITY)


def prediction_of(row: Record) -> Any:
    """Return what was predicted: a label, or spans."""
    return row["prediction"] if "prediction" in row else row.get("spans")


def _count(flips: Flips, flip: Flip) -> None:
    before, after = (prediction_of(row) == row["label"] for row in (flip.row, flip.other))
    flips.rows += 1
    flips.both_right += before and after
    flips.both_wrong += not before and not after
    flips.moved += not before and not after and prediction_of(flip.row) != prediction_of(flip.other)
    if before != after:
        (flips.lost if before else flips.won).append(flip)


def texts_of(flips: Iterable[Flip], set_name: str) -> dict[int, str]:
    """Return the text of each flip by its place, as far as its file is on this machine and still says the same."""
    flips = list(flips)
    wanted: dict[Path, dict[int, list[int]]] = {}
    for place, flip in enumerate(flips):
        path = _file_of(flip.run, set_name)
        if path is not None and not flip.row.get("file"):
            wanted.setdefault(path, {}).setdefault(flip.row["row"], []).append(place)
    found: dict[int, str] = {}
    for path, places in wanted.items():
        run = flips[next(iter(places.values()))[0]].run
        for row in _rows(run, path, set(places)):
            for place in places[row.number]:
                if str(row.values.get("label", flips[place].row["label"])).strip() == str(flips[place].row["label"]):
                    found[place] = _text(row.values)
    return found


def _file_of(run: Run, set_name: str) -> Path | None:
    """The file of a set, where it is one local file; the rows held out of training stand in that of training."""
    if run.config.get("data._target_") != DATA_TARGET:
        return None
    held_out = set_name == "dev" and (run.folds or run.config.get("data.dev") is None)
    written = run.config.get("data.train" if held_out else f"data.{set_name}")
    if not isinstance(written, str):
        return None
    return next((path for path in (Path(written), data_folder() / written) if path.is_file()), None)


def _rows(run: Run, path: Path, numbers: set[int]) -> Iterator[DataRow]:
    prefix = "data.fields."
    fields = {key.removeprefix(prefix): value for key, value in run.config.items() if key.startswith(prefix)}
    last = max(numbers)
    try:
        for row in read_rows(path, run.config.get("data.format", "auto"), fields, run.config.get("data.header")):
            if row.number in numbers and isinstance(row, DataRow):
                yield row
            if row.number >= last:
                return
    except UserError:
        # The file is another one by now; the flips are shown without their text.
        return


def _text(values: Mapping[str, Any]) -> str:
    texts = [values[role] for role in TEXT_ROLES if values.get(role) is not None]
    return " / ".join(" ".join(map(str, text)) if isinstance(text, list) else str(text) for text in texts)
