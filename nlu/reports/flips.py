"""The rows of a set that two configurations predict differently: counted and tested."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from nlu.config.errors import DataError
from nlu.config.sentences import joined_tokens, shortened
from nlu.metrics.kinds import kind_of
from nlu.reports.runs import RunRecord
from nlu.runs.predictions import Predictions, Record, predictions_of

TEXT_ROLES = ("text", "text_a", "text_b", "tokens")
Key = tuple[int, int | None, int | None]
"""id, file and row, which identify an example of a set"""


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
    def p_value(self) -> float:
        """The exact p of McNemar's test, in which each example has one vote however many seeds scored it.

        Predictions of one example by several seeds are not independent, so they cannot be counted one by one. With one
        vote each, it is the sign test over examples.
        """
        return mcnemar(self.examples_lost, self.examples_won)

    def count(self, flip: Flip, was_right: bool, is_right: bool) -> None:
        """Count a row, given whether each of the two runs predicts it right."""
        self.rows += 1
        self.both_right += was_right and is_right
        self.both_wrong += not was_right and not is_right
        if was_right == is_right:
            return
        self.lost, self.won = self.lost + was_right, self.won + is_right
        kept = self.first_lost if was_right else self.first_won
        # Only a few are kept with their texts, however many rows differ.
        if len(kept) < self.shown:
            kept.append(flip)
        # By example, not by prediction: see `p_value`.
        key = key_of(flip.row)
        self.balance[key] = self.balance.get(key, 0) + (1 if is_right else -1)


def mcnemar(first_only: int, second_only: int) -> float:
    """Return the p of two classifiers being right equally often (McNemar, Psychometrika 12, 1947), by its exact form.

    The arguments count the examples that only the first predicts right, and those that only the second does.
    """
    from scipy.stats import binomtest

    discordant = first_only + second_only
    return float(binomtest(first_only, discordant).pvalue) if discordant else 1.0


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


def text_of(values: Mapping[str, object], most: int | None = None) -> str:
    """Return the texts of a row in one line, with at most `most` characters; empty if it kept none."""
    found = [values[role] for role in TEXT_ROLES if values.get(role) is not None]
    texts = [joined_tokens(list(map(str, text))) if isinstance(text, list) else str(text) for text in found]
    # Each text gets its part of the line, so that the second of a pair is seen beside a long first one.
    return " / ".join(shortened(text, most // len(texts)) if most else text for text in texts)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return each p corrected for being one of several (Benjamini and Hochberg, 1995)."""
    from scipy.stats import false_discovery_control

    return false_discovery_control(p_values).tolist()
