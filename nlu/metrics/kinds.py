"""The kind of a record: whether a prediction is right, how confident it was, and what is shown of it.

A record is one example with its gold label and its prediction, as `predictions/SET.jsonl` keeps it. A task names the
kind of its records in its constant `kind`, and the header of the file repeats the name. Reports, figures, `predict` and
`serve` ask the kind and never guess from the keys of a record.

To add a kind, derive from `Kind` or from the class below that comes closest. docs/extending/task.md has a
complete example.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypedDict

from nlu.config.errors import DataError, UserError
from nlu.config.sentences import joined_tokens
from nlu.config.targets import import_target, trust
from nlu.config.types import ConfigLike
from nlu.metrics.spans import FAULTS, Span, faults_of, span_set
from nlu.runs.predictions import Predictions, Record

if TYPE_CHECKING:
    import numpy as np

Holds = Literal[
    "text", "number", "texts", "numbers", "spans", "spans by start", "lists", "lists of numbers",
    "lists of texts",     "float32", "float16", "int8", "binary",
]  # fmt: skip
"""what the cells of a column hold; the last ones are vectors of such numbers"""
Cell: TypeAlias = "str | float | list[Any] | np.ndarray | None"


class SpanCell(TypedDict):
    """A predicted span, in a list in a cell."""

    type: str
    first: int
    last: int
    text: str


Texts = Mapping[str, str | Sequence[str]]
"""the texts of a row by role; `tokens` is a list"""
PREDICTION, PROBABILITY, SIMILARITY, SCORE = "prediction", "probability", "similarity", "score"
"""names of columns"""
MANY, KEPT = 100, 20
"""with more labels than MANY, predictions/ has the KEPT largest probabilities of a row"""


@dataclass(frozen=True)
class Unit:
    """What is right or wrong in a record: its label, or each of its labels or spans."""

    part: str
    """the row of the table of errors that counts it, such as its label"""
    fault: str = ""
    """empty if it is right"""
    instead: str = ""
    """what was predicted instead, if that is known"""
    is_gold: bool = True
    """False for something predicted that the gold label lacks: an error, but not a row of the part"""


class Kind:
    """The contract, with defaults for a prediction that is right if it equals the label.

    A kind is stateless, and constructed without arguments.
    """

    name: ClassVar[str]
    """in the singular, for clients of a server"""
    plural: ClassVar[str]
    """in the plural, for messages"""
    columns: ClassVar[Mapping[str, Holds]]
    """the columns that predictions add to a row, in order; the first one is what was predicted"""
    is_one_label: ClassVar[bool] = False
    """whether label and prediction are each one of the task's labels; such records have a confusion matrix"""
    has_probabilities: ClassVar[bool] = False
    """whether `probabilities` holds a probability for each of the task's labels"""
    is_binary: ClassVar[bool] = True
    """whether a prediction is right or wrong; False: it has a distance from the label"""
    unjudged: ClassVar[str] = ""
    """why a single record is neither right nor wrong nor near nor far; empty if it is"""
    unpredicted: ClassVar[str] = ""
    """why a row without its target cannot be predicted; empty if it can"""
    unsuspected: ClassVar[str] = "these predictions keep no probability of each label"
    """why confident learning cannot find label errors, for kinds without `has_probabilities`"""
    ranked_by: ClassVar[str] = "confidence"
    """what `confidence` measures, in words"""
    by_part: ClassVar[str] = ""
    """title of the table of errors by `Unit.part`; empty: errors are shown by ranges of the label, a number"""
    faults: ClassVar[tuple[str, ...]] = ()
    """the faults that have a column in that table"""
    instead: ClassVar[tuple[str, int]] = ("predicted instead", 3)
    """title of the column with what was predicted instead, and how many of these it lists"""

    def answer(self, record: Record) -> object:
        """Return what was predicted, in the form of the label."""
        return record[PREDICTION]

    def error(self, record: Record) -> float:
        """Return 0 if the prediction is right; else 1, or its distance from the label."""
        return float(self.answer(record) != record["label"])

    def confidence(self, record: Record, metrics: Mapping[str, float]) -> float:
        """Return how confident a prediction was: among wrong ones, the first to look at has the highest.

        `metrics` are those of the record's set, which hold the threshold if there was one.
        """
        return float(record.get("loss") or 0.0)

    def units(self, record: Record) -> Iterable[Unit]:
        """Yield what is right or wrong in a record."""
        label, answer = str(record["label"]), str(self.answer(record))
        yield Unit(label) if answer == label else Unit(label, "wrong", answer)

    def described(self, record: Record) -> dict[str, str]:
        """Return the cells that describe a mistake, by column: first the label, then the prediction."""
        return {"label": str(record["label"]), "predicted": str(self.answer(record))}

    def cells(self, values: Texts, found: Record) -> dict[str, Cell]:
        """Return the cells of `columns`, for the texts of a row by role and what was predicted for it."""
        return {name: found[name] for name in self.columns}


class ClassKind(Kind):
    """One label, with the probability of each."""

    name, plural = "class", "classes"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "text", PROBABILITY: "number"}
    is_one_label = has_probabilities = True
    ranked_by, by_part = PROBABILITY, "by class"

    def confidence(self, record: Record, metrics: Mapping[str, float]) -> float:
        return float(record[PROBABILITY] or 0.0)

    def described(self, record: Record) -> dict[str, str]:
        return {**super().described(record), PROBABILITY: f"{record[PROBABILITY]:.4f}"}


class SimilarityKind(Kind):
    """Two texts ranked by the cosine of their vectors, which makes a single pair neither right nor wrong."""

    name, plural = "similarity", "rankings"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "number"}
    unjudged = (
        "these predictions rank candidates, so that no row is right or wrong by itself; python -m nlu.evaluate gives "
        "the scores of queries"
    )

    def answer(self, record: Record) -> object:
        return record[SIMILARITY]

    def cells(self, values: Texts, found: Record) -> dict[str, Cell]:
        return {PREDICTION: found[SIMILARITY]}


class ScoreKind(SimilarityKind):
    """How well a text answers another one, as a number that ranks the candidates of a query."""

    name = "score"
    columns: ClassVar[Mapping[str, Holds]] = {SCORE: "number"}

    def answer(self, record: Record) -> object:
        return record[SCORE]

    def cells(self, values: Texts, found: Record) -> dict[str, Cell]:
        return {SCORE: found[SCORE]}


class ClassBySimilarityKind(SimilarityKind):
    """One of two labels, decided by a threshold on the cosine of two texts."""

    name, plural = "class_by_similarity", "classes"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "text", SIMILARITY: "number"}
    is_one_label = True
    unjudged, unsuspected = "", "these predictions keep no probability of each class"
    ranked_by, by_part = "similarity - threshold", "by class"

    def answer(self, record: Record) -> object:
        return record[PREDICTION]

    def confidence(self, record: Record, metrics: Mapping[str, float]) -> float:
        return abs(float(record[SIMILARITY] or 0.0) - float(metrics.get("threshold") or 0.0))

    def described(self, record: Record) -> dict[str, str]:
        return {**super().described(record), SIMILARITY: f"{record[SIMILARITY]:.4f}"}

    def cells(self, values: Texts, found: Record) -> dict[str, Cell]:
        return {name: found[name] for name in self.columns}


class LabelSetKind(Kind):
    """Any number of labels, right if the whole set is."""

    name, plural = "label_set", "label sets"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "texts", PROBABILITY: "numbers"}
    has_probabilities = True
    ranked_by, by_part = "the surest wrong label", "by label of the rows that have it"
    faults, instead = ("invented",), ("", 0)

    def error(self, record: Record) -> float:
        return float(set(record["label"]) != set(record[PREDICTION]))

    def confidence(self, record: Record, metrics: Mapping[str, float]) -> float:
        return self._surest(record)[0]

    def units(self, record: Record) -> Iterable[Unit]:
        gold, predicted = set(record["label"]), set(record[PREDICTION])
        yield from (Unit(label, "" if label in predicted else "missed") for label in sorted(gold))
        yield from (Unit(label, "invented", is_gold=False) for label in sorted(predicted - gold))

    def described(self, record: Record) -> dict[str, str]:
        gold, predicted = set(record["label"]), set(record[PREDICTION])
        probability, label = self._surest(record)
        return {
            "labels": _listed(record["label"]),
            "missed": _listed(sorted(gold - predicted)),
            "invented": _listed(sorted(predicted - gold)),
            "surest": f"{label} {probability:.4f}",
        }

    def cells(self, values: Texts, found: Record) -> dict[str, Cell]:
        predicted = found[PREDICTION]
        # Of the predicted labels only, in their order; scores=true adds a column for each label.
        return {PREDICTION: predicted, PROBABILITY: [found["probabilities"][label] for label in predicted]}

    def _surest(self, record: Record) -> tuple[float, str]:
        """Return the wrong label about which the model was most confident, with that confidence.

        It is the probability of an invented label, and 1 less the probability of a missed one.
        """
        probabilities = record.get("probabilities") or {}
        gold, predicted = set(record["label"]), set(record[PREDICTION])
        wrong = [(1 - probabilities.get(label, 0.0), label) for label in gold - predicted]
        wrong += [(probabilities.get(label, 0.0), label) for label in predicted - gold]
        return max(wrong, default=(0.0, ""))


class NumberKind(Kind):
    """A number, near the label or far from it."""

    name, plural = "number", "numbers"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "number"}
    is_binary = False
    unsuspected = "a number has no probability of being another"
    ranked_by = "distance"

    def error(self, record: Record) -> float:
        return abs(float(record[PREDICTION] - record["label"]))

    def confidence(self, record: Record, metrics: Mapping[str, float]) -> float:
        return self.error(record)

    def units(self, record: Record) -> Iterable[Unit]:
        return ()

    def described(self, record: Record) -> dict[str, str]:
        return {
            "label": f"{record['label']:.6g}",
            "predicted": f"{record[PREDICTION]:.6g}",
            "distance": f"{record[PREDICTION] - record['label']:+.4g}",
        }


class SpanKind(Kind):
    """Typed spans, right if all of them are and no other is predicted."""

    name, plural = "spans", "spans"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "spans"}
    unsuspected = "predictions of spans keep no probability of each tag"
    ranked_by, by_part = "loss of the right tags", "by type of wanted spans"
    faults, instead = FAULTS, ("type predicted instead", 1)

    def answer(self, record: Record) -> object:
        # Spans are tuples until a file of JSON has made lists of them.
        return [list(span) for span in record["spans"]]

    def error(self, record: Record) -> float:
        return float(span_set(record["label"]) != span_set(record["spans"]))

    def units(self, record: Record) -> Iterable[Unit]:
        gold, found = span_set(record["label"]), span_set(record["spans"])
        yield from (Unit(type_) for _, _, type_ in sorted(gold & found))
        for fault, span, other in faults_of(gold, found):
            if span is None:
                assert other is not None, "a fault has a span"
                yield Unit(other[2], fault, is_gold=False)
            else:
                yield Unit(span[2], fault, other[2] if other and other[2] != span[2] else "")

    def described(self, record: Record) -> dict[str, str]:
        """Return the faults with the words of the spans, as far as the text is kept."""
        units = record.get("tokens") or record.get("text") or ""
        faults = [
            f"{fault}: {' as '.join(_words_of(one, units) for one in (span, other) if one is not None)}"
            for fault, span, other in faults_of(span_set(record["label"]), span_set(record["spans"]))
        ]
        return {"faults": "; ".join(faults), "loss": f"{record.get('loss') or 0.0:.3f}"}

    def cells(self, values: Texts, found: Record) -> dict[str, Cell]:
        units = values["tokens"] if "tokens" in values else values["text"]
        spans: list[SpanCell] = [
            {"type": type_, "first": first, "last": last, "text": _joined(units[first : last + 1])}
            for first, last, type_ in found["spans"]
        ]
        return {PREDICTION: spans}


class UnitClassesKind(Kind):
    """A class for each unit, right if all of them are."""

    name, plural = "classes_of_units", "classes of units"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "texts"}
    unsuspected = "predictions of units keep no probability of each class"
    ranked_by, by_part = "loss of the right classes", "by class of units"

    def units(self, record: Record) -> Iterable[Unit]:
        for wanted, found in zip_longest(record["label"], record[PREDICTION], fillvalue=""):
            yield Unit(wanted) if wanted == found else Unit(wanted, "wrong", found)

    def described(self, record: Record) -> dict[str, str]:
        """Return the wrong units with their words, as far as the text is kept."""
        words = record.get("tokens") or range(len(record["label"]))
        classes = zip_longest(words, record["label"], record[PREDICTION], fillvalue="")
        wrong = [f"{word}: {wanted} as {found or 'cut off'}" for word, wanted, found in classes if wanted != found]
        return {"faults": "; ".join(wrong), "loss": f"{record.get('loss') or 0.0:.3f}"}

    def cells(self, values: Texts, found: Record) -> dict[str, Cell]:
        """Return a class for each token; that of a token which max_len cut off is empty."""
        cut = len(values["tokens"]) - len(found[PREDICTION]) if "tokens" in values else 0
        return {PREDICTION: [*found[PREDICTION], *[""] * cut]}


class WordsKind(Kind):
    """The masked words of a text, some of which are right."""

    name, plural = "words", "masked words"
    columns: ClassVar[Mapping[str, Holds]] = {PREDICTION: "texts"}
    unpredicted = (
        "this run predicts only words that it masks itself; fine-tune it with model.pretrained=RUN and "
        "predict with the new run, or get vectors of texts by nlu.load(RUN).encode"
    )
    unjudged = (
        "these predictions are the sums of the masked words of each row, so that no row is right or wrong; "
        "python -m nlu.evaluate gives loss, perplexity and accuracy"
    )


def kind_named(name: str) -> Kind:
    """Return the kind with this dotted name.

    Raises UserError for a package that is not trusted, and for a class not derived from Kind.
    """
    kind = import_target(name)()
    if not isinstance(kind, Kind):
        raise UserError(f"{name} is not a kind of record; derive it from nlu.metrics.kinds.Kind")
    return kind


def kind_of(predictions: Predictions, config: ConfigLike) -> Kind:
    """Return the kind of the records of a file of a run. Raises DataError if its header does not name one.

    `config` is the configuration of the run, whose packages are trusted.
    """
    name = predictions.header.get("kind")
    if not isinstance(name, str):
        raise DataError(
            f"{predictions.path} does not name the kind of its records; score the run again: python -m nlu.evaluate"
        )
    trust(config)
    return kind_named(name)


def with_largest(record: Record) -> Record:
    """Return the record with the KEPT largest of more than MANY probabilities, the largest first."""
    of_labels = record.get("probabilities")
    if of_labels is None or len(of_labels) <= MANY:
        return record
    return {**record, "probabilities": dict(heapq.nlargest(KEPT, of_labels.items(), key=itemgetter(1)))}


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) or "none"


def _words_of(span: Span, units: Sequence[str]) -> str:
    first, last, type_ = span
    words = _joined(units[first : last + 1])
    return f"{type_} {words!r}" if words else f"{type_} {first}-{last}"


def _joined(units: Sequence[str]) -> str:
    return units if isinstance(units, str) else joined_tokens(units)
