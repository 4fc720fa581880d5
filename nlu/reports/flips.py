"""The rows of a set that two configurations predict differently: counted, tested, and shown with their text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from nlu.config.choices import target_of
from nlu.config.errors import DataError, UserError
from nlu.config.words import joined_tokens
from nlu.data.dialect import KEYS, Dialect
from nlu.data.reader import Row
from nlu.data.readers import read_rows
from nlu.metrics.kinds import kind_of
from nlu.reports.runs import RunRecord
from nlu.runs.predictions import Predictions, Record, predictions_of
from nlu.storage.places import named_file

TEXT_ROLES = ("text", "text_a", "text_b", "tokens")
FEW_DISCORDANT = 25
"""with fewer discordant examples McNemar's test is exact, since chi squared is too coarse for small counts"""
Key = tuple[int, int | None, int | None]
"""id, file and row, which identify an example of a set"""


@dataclass(frozen=True)
class McNemar:
    """The result of one test."""

    method: Literal["exact", "chi squared"]
    statistic: float | None
    """chi squared with one degree of freedom; None for the exact test"""
    p_value: float


@dataclass(frozen=True)
class Flip:
    """A row that exactly one of two runs predicts right."""

    row: Record
    """as the first run has it"""
    other: Record
    run: RunRecord
    """the first run"""
    answers: tuple[object, object]
    """what each predicted"""


@dataclass
class Flips:
    """How predictions of a set changed from some runs to others with the same seeds and folds.

    `rows` and the counts below it are predictions: an example that two seeds score counts twice.
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
    """of those wrong in both, how many are wrong in different ways"""
    first_lost: list[Flip] = field(default_factory=list)
    first_won: list[Flip] = field(default_factory=list)
    balance: dict[Key, int] = field(default_factory=dict)
    """by example: how often it was won, less how often it was lost"""

    @property
    def examples_won(self) -> int:
        return sum(count > 0 for count in self.balance.values())

    @property
    def examples_lost(self) -> int:
        return sum(count < 0 for count in self.balance.values())

    @property
    def test(self) -> McNemar:
        """McNemar's test, in which each example has one vote however many seeds scored it.

        Predictions of one example by several seeds are not independent, so they cannot be counted one by one. With one
        vote each, the exact form is the sign test over examples.
        """
        return mcnemar(self.examples_lost, self.examples_won)

    def count(self, flip: Flip, was_right: bool, is_right: bool) -> None:
        """Count a row, given whether each of the two runs predicts it right."""
        self.rows += 1
        self.both_right += was_right and is_right
        self.both_wrong += not was_right and not is_right
        self.moved += not was_right and not is_right and flip.answers[0] != flip.answers[1]
        if was_right == is_right:
            return
        self.lost, self.won = self.lost + was_right, self.won + is_right
        kept = self.first_lost if was_right else self.first_won
        # Only a few are kept with their texts, however many rows differ.
        if len(kept) < self.shown:
            kept.append(flip)
        # By example, not by prediction: see `test`.
        key = key_of(flip.row)
        self.balance[key] = self.balance.get(key, 0) + (1 if is_right else -1)


def mcnemar(first_only: int, second_only: int) -> McNemar:
    """Test whether two classifiers are right equally often (McNemar, Psychometrika 12, 1947).

    The arguments count the discordant examples: those that only the first predicts right, and those that only the
    second does. With fewer than 25 the test is the exact two-sided binomial test. With more it is chi squared with the
    correction for continuity, (|b - c| - 1)^2 / (b + c) (Edwards, Psychometrika 13, 1948), and 0 if b equals c.
    """
    from scipy.stats import binomtest, chi2

    discordant = first_only + second_only
    if discordant < FEW_DISCORDANT:
        p_value = float(binomtest(first_only, discordant).pvalue) if discordant else 1.0
        return McNemar("exact", None, p_value)
    # Not below 0, or equal counts would give (0 - 1)^2, a difference where none is.
    statistic = max(abs(first_only - second_only) - 1, 0) ** 2 / discordant
    return McNemar("chi squared", statistic, float(chi2.sf(statistic, 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return each p adjusted for being one of several, in their order (Holm, Scandinavian J. of Statistics 6, 1979).

    The smallest of m is multiplied by m, the next by m - 1, and so on. None exceeds 1 or falls below a smaller one.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        # Never smaller than an earlier one: adjusted values keep the order of the original ones.
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def compare(pairs: Iterable[tuple[RunRecord, RunRecord]], set_name: str, shown: int = 0) -> Flips:
    """Compare the predictions of a set in each pair of runs, row by row, keeping the first `shown` flips each way.

    Raises DataError if a pair scored different rows (another number of them, another label or text), or if their
    predictions are neither right nor wrong.
    """
    flips = Flips(shown)
    for first, second in pairs:
        flips.pairs += 1
        sides = (predictions_of(first.folder, set_name), predictions_of(second.folder, set_name))
        # Two runs may have different tasks, such as classes by softmax and by a threshold, and still have the same
        # labels.
        kind, other_kind = (kind_of(side, run.config) for side, run in zip(sides, (first, second), strict=True))
        try:
            for row, other in matched(*sides):
                if kind.unjudged or not kind.is_binary:
                    raise DataError(
                        f"those of {set_name} are neither right nor wrong by themselves, so none are counted; its "
                        "metrics say how near they are"
                    )
                flip = Flip(row, other, first, (kind.answer(row), other_kind.answer(other)))
                flips.count(flip, not kind.error(row), not other_kind.error(other))
        except OtherRows as error:
            raise DataError(
                f"{first.folder} and {second.folder} scored different rows as {set_name} ({error}), so their "
                "predictions cannot be compared"
            ) from None
    return flips


class OtherRows(Exception):
    """Two files of predictions are of different data."""


def matched(first: Predictions, second: Predictions) -> Iterator[tuple[Record, Record]]:
    """Return the records of both files in pairs. Memory depends only on how much their orders differ."""
    waiting: tuple[dict[Key, Record], dict[Key, Record]] = {}, {}
    counts = [0, 0]
    for records in zip_longest(first, second):
        for side, record in enumerate(records):
            if record is None:
                continue
            counts[side] += 1
            key = key_of(record)
            # Both files are usually in the same order, so hardly any record waits.
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
    """Return a field that shows that two records are not of the same example; None without one."""
    roles = ("label", *TEXT_ROLES)
    return next((role for role in roles if role in first and role in second and first[role] != second[role]), None)


def texts_of(flips: Sequence[Flip], set_name: str) -> dict[int, str]:
    """Return the text of each flip by its place in the sequence.

    A run that kept no texts is looked up in its file, if that is on this machine and still has the same label there.
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


def _file_of(run: RunRecord, set_name: str) -> Path | None:
    """Return the file of a set if it is one local file. Rows held out of training are in the file of training rows."""
    if run.config.get("data._target_") != target_of("data", "files"):
        return None
    held_out = set_name == "dev" and (run.folds or run.config.get("data.dev") is None)
    written = run.config.get("data.train" if held_out else f"data.{set_name}")
    return named_file(written) if isinstance(written, str) else None


def _rows(run: RunRecord, path: Path, numbers: set[int]) -> Iterator[Row]:
    prefix = "data.fields."
    fields = {key.removeprefix(prefix): value for key, value in run.config.items() if key.startswith(prefix)}
    last = max(numbers)
    try:
        dialect = Dialect.of({key: run.config.get(f"data.{key}") for key in KEYS})
        file_format = run.config.get("data.format", "auto")
        for row in read_rows(path, file_format, fields, run.config.get("data.header"), dialect=dialect):
            if row.number in numbers and isinstance(row, Row):
                yield row
            if row.number >= last:
                return
    except UserError:
        # The file has changed since the run read it. The flips are shown without their text.
        return


def text_of(values: Mapping[str, object]) -> str:
    """Return the texts of a row in one line; empty if it kept none."""
    texts = [values[role] for role in TEXT_ROLES if values.get(role) is not None]
    return " / ".join(joined_tokens(list(map(str, text))) if isinstance(text, list) else str(text) for text in texts)
