"""Scores of queries that are answered by their most probable candidate, scores over chosen classes, and confusion."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Self

from nlu.metrics.scores import Record, Scores, ratio


class QueryScorer:
    """Precision, recall and F1 of queries, each answered by its row with the lowest probability of the first class.

    A query is found if the prediction for that row is right and not the first class. It is wrongly answered if the
    prediction is wrong and not the first class. It is missed if one of its rows is not of the first class and it is not
    found. A record holds `id` (the row), `group` (the query), `label`, `prediction` and `probabilities`; of equally
    probable rows the one with the smaller `id` is used. The rows of a query may be spread over scorers that are merged,
    each row in one of them; a scorer that is merged twice counts its rows twice. Memory: a few numbers for each row.
    """

    names = ("query_precision", "query_recall", "query_f1")

    def __init__(self, names: Sequence[str]):
        self._negative = names[0]
        self._rows: Counter[Hashable] = Counter()
        """by query: how many rows were added, each as often as it was"""
        self._distinct: dict[Hashable, set[int]] = {}
        self._best: dict[Hashable, tuple[float, int, bool, bool]] = {}
        """by query: the negative probability, the row, and whether an answer is given and whether it is right"""
        self._asked: set[Hashable] = set()

    def add(self, record: Record) -> None:
        likely = 1 - record["probabilities"][self._negative]
        given = record["prediction"] != self._negative
        entry = (-likely, record["id"], given, given and record["prediction"] == record["label"])
        query = record["group"]
        self._best[query] = min(self._best.get(query, entry), entry)
        if record["label"] != self._negative:
            self._asked.add(query)
        self._rows[query] += 1
        self._distinct.setdefault(query, set()).add(record["id"])

    def merge(self, other: Self) -> None:
        self._rows.update(other._rows)
        for query, rows in other._distinct.items():
            self._distinct[query] = self._distinct.get(query, set()) | rows
        self._asked |= other._asked
        for query, entry in other._best.items():
            self._best[query] = min(self._best.get(query, entry), entry)

    def result(self) -> Scores:
        found = wrong = missed = 0
        for query, (_, _, given, right) in self._best.items():
            # A query that a resample draws twice counts twice.
            times = self._rows[query] // len(self._distinct[query])
            found += times * right
            wrong += times * (given and not right)
            missed += times * (query in self._asked and not right)
        return Scores(
            {
                "query_precision": ratio(found, found + wrong),
                "query_recall": ratio(found, found + missed),
                "query_f1": ratio(2 * found, 2 * found + wrong + missed),
            }
        )


class ChosenScorer:
    """Precision, recall and F1 over some classes: a row counts for its label and for its prediction.

    A record holds `label` and `prediction`.
    """

    names = ("precision_chosen", "recall_chosen", "f1_chosen")

    def __init__(self, classes: Sequence[str]):
        self._classes = frozenset(classes)
        self._right = self._predicted = self._wanted = 0

    def add(self, record: Record) -> None:
        is_predicted, is_wanted = record["prediction"] in self._classes, record["label"] in self._classes
        self._predicted += is_predicted
        self._wanted += is_wanted
        self._right += is_predicted and record["prediction"] == record["label"]

    def merge(self, other: Self) -> None:
        self._right += other._right
        self._predicted += other._predicted
        self._wanted += other._wanted

    def result(self) -> Scores:
        precision, recall = ratio(self._right, self._predicted), ratio(self._right, self._wanted)
        f1 = ratio(2 * self._right, self._predicted + self._wanted)
        return Scores({"precision_chosen": precision, "recall_chosen": recall, "f1_chosen": f1})


class ConfusionScorer:
    """How often each class was predicted for rows of each class. A record holds `label` and `prediction`."""

    def __init__(self, names: Sequence[str]):
        self._names = list(names)
        self._pairs: Counter[tuple[str, str]] = Counter()

    def add(self, record: Record) -> None:
        self._pairs[record["label"], record["prediction"]] += 1

    def merge(self, other: Self) -> None:
        self._pairs.update(other._pairs)

    def result(self) -> Scores:
        return Scores({})

    def matrix(self) -> list[list[int]]:
        """Return the rows of each class (lines) that each class was predicted for (columns)."""
        return [[self._pairs[right, predicted] for predicted in self._names] for right in self._names]
