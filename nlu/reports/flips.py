"""The rows of a set that two configurations predict differently: counted, judged, and shown with their text."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from nlu.config.checks.rules import DATA_TARGET, data_folder
from nlu.config.errors import DataError, UserError
from nlu.data.readers import Row as DataRow
from nlu.data.readers import read_rows
from nlu.reports.mcnemar import McNemar, mcnemar
from nlu.reports.runs import Run
from nlu.runs.predictions import Predictions, Record, predictions_of

TEXT_ROLES = ("text", "text_a", "text_b", "tokens")
Key = tuple[int, int | None, int | None]
"""id, file and row: what names an example of a set"""


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
    """How the predictions of one set changed from some runs to others of the same seeds and folds.

    `rows` and what follows it counts predictions: an example that two seeds score counts twice.
    """

    shown: int = 0
    """how many flips each way are kept"""
    pairs: int = 0
    """of runs"""
    rows: int = 0
    both_right: int = 0
    both_wrong: int = 0
    lost: int = 0
    """right in the first, wrong in the second"""
    won: int = 0
    """wrong in the first, right in the second"""
    moved: int = 0
    """of those wrong in both, how many got another wrong prediction"""
    first_lost: list[Flip] = field(default_factory=list)
    first_won: list[Flip] = field(default_factory=list)
    leaning: dict[Key, int] = field(default_factory=dict)
    """by example how much oftener it was won than lost"""

    @property
    def examples_won(self) -> int:
        return sum(count > 0 for count in self.leaning.values())

    @property
    def examples_lost(self) -> int:
        return sum(count < 0 for count in self.leaning.values())

    @property
    def test(self) -> McNemar:
        """McNemar's test over the examples that lean, with one vote each however many seeds scored them.

        Seeds of one example depend on one another. The exact form is then the sign test over examples.
        """
        return mcnemar(self.examples_lost, self.examples_won)

    def count(self, flip: Flip) -> None:
        """Add one row."""
        before, after = (prediction_of(row) == row["label"] for row in (flip.row, flip.other))
        self.rows += 1
        self.both_right += before and after
        self.both_wrong += not before and not after
        self.moved += not before and not after and prediction_of(flip.row) != prediction_of(flip.other)
        if before == after:
            return
        self.lost, self.won = self.lost + before, self.won + after
        kept = self.first_lost if before else self.first_won
        if len(kept) < self.shown:
            kept.append(flip)
        key = key_of(flip.row)
        self.leaning[key] = self.leaning.get(key, 0) + (1 if after else -1)


def compare(pairs: Iterable[tuple[Run, Run]], set_name: str, shown: int = 0) -> Flips:
    """Compare the predictions of a set in each pair of runs, row by row, keeping the first `shown` flips each way.

    Raises DataError where the rows of a pair are not the same (another number, another label or text), and where
    predictions are no answers but numbers or ranks.
    """
    flips = Flips(shown)
    for first, second in pairs:
        flips.pairs += 1
        sides = (predictions_of(first.folder, set_name), predictions_of(second.folder, set_name))
        try:
            for row, other in matched(*sides):
                if not is_answer(prediction_of(row)):
                    raise DataError(
                        f"those of {set_name} are neither right nor wrong by themselves, so none are counted; its "
                        "metrics say how near they are"
                    )
                flips.count(Flip(row, other, first))
        except OtherRows as error:
            raise DataError(
                f"{first.folder} and {second.folder} scored different rows as {set_name} ({error}), so their "
                "predictions cannot be compared"
            ) from None
    return flips


class OtherRows(Exception):
    """Two files of predictions are of different data."""


def matched(first: Predictions, second: Predictions) -> Iterator[tuple[Record, Record]]:
    """Give the records of both files by pairs. Memory grows only by how far their orders differ."""
    waiting: tuple[dict[Key, Record], dict[Key, Record]] = {}, {}
    counts = [0, 0]
    for records in zip_longest(first, second):
        for side, record in enumerate(records):
            if record is None:
                continue
            counts[side] += 1
            key = key_of(record)
            other = waiting[1 - side].pop(key, None)
            if other is None:
                waiting[side][key] = record
                continue
            pair = (other, record) if side else (record, other)
            if difference := _difference(*pair):
                raise OtherRows(f"row {record.get('row', record['id'])} has another {difference}")
            yield pair
    if waiting[0] or waiting[1]:
        raise OtherRows(f"{counts[0]:,} and {counts[1]:,}")


def key_of(record: Record) -> Key:
    return record["id"], record.get("file"), record.get("row")


def _difference(first: Record, second: Record) -> str | None:
    """Return what says that two records are not of the same example."""
    roles = ("label", *TEXT_ROLES)
    return next((role for role in roles if role in first and role in second and first[role] != second[role]), None)


def prediction_of(record: Record) -> object:
    """Return what was predicted: a label, or spans."""
    return record["prediction"] if "prediction" in record else record.get("spans")


def is_answer(prediction: object) -> bool:
    """Whether a prediction is right or wrong: one of a number is near or far, and a ranking has none for each row."""
    return prediction is not None and not isinstance(prediction, float)


def texts_of(flips: Sequence[Flip], set_name: str) -> dict[int, str]:
    """Return the text of each flip by its place.

    It stands in the record. Of a run that kept none it is looked up in its file, as far as that is on this machine and
    still says the same.
    """
    found = {place: text for place, flip in enumerate(flips) if (text := text_of(flip.row) or text_of(flip.other))}
    wanted: dict[Path, dict[int, list[int]]] = {}
    for place, flip in enumerate(flips):
        path = None if place in found else _file_of(flip.run, set_name)
        if path is not None and not flip.row.get("file"):
            wanted.setdefault(path, {}).setdefault(flip.row["row"], []).append(place)
    for path, places in wanted.items():
        run = flips[next(iter(places.values()))[0]].run
        for row in _rows(run, path, set(places)):
            for place in places[row.number]:
                if str(row.values.get("label", flips[place].row["label"])).strip() == str(flips[place].row["label"]):
                    found[place] = text_of(row.values)
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


def text_of(values: Mapping[str, Any]) -> str:
    """Return the texts of a row in a line; empty where it keeps none."""
    texts = [values[role] for role in TEXT_ROLES if values.get(role) is not None]
    return " / ".join(_joined(list(map(str, text))) if isinstance(text, list) else str(text) for text in texts)


def _joined(tokens: Sequence[str]) -> str:
    """Tokens as a text: blanks between them, but none beside Chinese and Japanese letters and marks."""
    parts = list(tokens[:1])
    for before, token in pairwise(tokens):
        parts.append(token if _is_wide(before[-1:]) or _is_wide(token[:1]) else f" {token}")
    return "".join(parts)


def _is_wide(letter: str) -> bool:
    return bool(letter) and unicodedata.east_asian_width(letter) in "WF" and not "가" <= letter <= "힣"
