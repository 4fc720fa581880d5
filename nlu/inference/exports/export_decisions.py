"""The decisions of a run about rows, and those of the user of its export.

For a folder that transformers loads, these are the decisions of a pipeline of transformers. Other formats give logits,
and docs/exporting.md has the rule for them. Axes: N rows.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nlu.data.layouts import units_of
from nlu.data.pieces import CUTS
from nlu.data.targets import ONE_CLASS
from nlu.inference.exports.padded import Inputs
from nlu.inference.trained import Trained
from nlu.metrics.classes import log_probabilities
from nlu.metrics.kinds import UnitClassesKind
from nlu.metrics.spans import Span, in_characters, spans_of
from nlu.runs.predictions import Record
from nlu.tasks.classify import Classify
from nlu.tasks.multilabel import Multilabel

Row = dict[str, Any]
Compute = Callable[[Inputs], np.ndarray]
"""returns the logits of padded inputs"""
Decision = str | list[str] | list[Span] | float
"""a class, the labels of a set or of tokens, spans, or a number"""
Decide = Callable[[Sequence[Row], Sequence[np.ndarray]], list[Decision]]
"""returns the decisions about rows, given their texts and logits"""
CLOSE = 1e-3
"""numbers with a smaller difference, relative to the larger one or to 1, are the same prediction"""
PIPELINE_BATCH = 32


def of_run(found: Sequence[Record], trained: Trained) -> list[Decision]:
    """Return the decisions in the predictions of the run."""
    of_spans = trained.target.kind == "tags" and not isinstance(trained.kind, UnitClassesKind)
    column = "spans" if of_spans else next(iter(trained.kind.columns))
    return [one[column] for one in found]


def is_same(one: Decision, other: Decision) -> bool:
    """Whether two decisions are equal, numbers to three digits."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= CLOSE * max(1.0, abs(one), abs(other))
    return one == other


def by_rule(trained: Trained, folder: Path) -> Decide:
    """Return the rule of docs/exporting.md for logits.

    It takes the class of the largest logit (with `task.threshold` the fallback, if its softmax is below that), the
    labels whose sigmoid reaches the threshold of the run, or the number. For a tagger, it takes the largest logit of
    each unit and reads them as BIO tags; the spans of a text are in characters.
    """
    kind, names = _kind(trained), trained.labels

    def one(row: Row, logits: np.ndarray) -> Decision:
        if kind == "classes":
            return _class_of(trained, dict(zip(names, np.exp(log_probabilities(logits)), strict=True)))
        if kind == "label_set":
            return _reaching(trained, dict(zip(names, (1 / (1 + np.exp(-logits.astype(np.float64)))), strict=True)))
        if kind == "tags":
            tags = [names[tag] for tag in logits.argmax(-1)]
            if isinstance(trained.kind, UnitClassesKind):
                return tags
            cut = CUTS[getattr(trained.layout, "cut", "words")]
            return in_characters(spans_of(tags), None if "tokens" in row else units_of(row["text"], cut)[1])
        return float(logits[0])

    return lambda rows, logits_N: list(map(one, rows, logits_N))


def by_pipeline(trained: Trained, folder: Path) -> Decide:
    """Return the decisions of a pipeline of transformers.

    It is text-classification, with the threshold of the run if several labels may apply, or token-classification, which
    takes the first token of each word.
    """
    from transformers import pipeline

    kind, is_tagger = _kind(trained), trained.target.kind == "tags"
    settings: Row = {"model": str(folder), "device": "cpu", "batch_size": PIPELINE_BATCH}
    compute: Any
    if is_tagger:
        compute = pipeline("token-classification", **settings)
    else:
        compute = pipeline("text-classification", **settings)

    def texts(rows: Sequence[Row], logits_N: Sequence[np.ndarray]) -> list[Decision]:
        given = [
            {"text": row["text_a"], "text_pair": row["text_b"]} if "text_b" in row else {"text": row["text"]}
            for row in rows
        ]
        decided: list[Decision] = []
        for found in compute(given, top_k=None, truncation=True):
            if kind == "classes":
                decided.append(_class_of(trained, {one["label"]: one["score"] for one in found}))
            elif kind == "label_set":
                decided.append(_reaching(trained, {one["label"]: one["score"] for one in found}))
            else:
                decided.append(found[0]["score"])
        return decided

    def tags(rows: Sequence[Row], logits_N: Sequence[np.ndarray]) -> list[Decision]:
        decided: list[Decision] = []
        for row in rows:
            words = {"is_split_into_words": True} if "tokens" in row else {}
            text = [row["tokens"]] if words else row["text"]
            if isinstance(trained.kind, UnitClassesKind):
                each = compute(text, aggregation_strategy="none", ignore_labels=[], **words)
                of_start = {one["start"]: one["entity"] for one in (each[0] if words else each)}
                decided.append([of_start[start] for start, _ in _places(row) if start in of_start])
                continue
            found = compute(text, aggregation_strategy="first", **words)
            # For a list of rows, even of one row, it returns a list.
            decided.append(_in_units(row, found[0] if words else found))
        return decided

    return tags if is_tagger else texts


def _kind(trained: Trained) -> str:
    """Return the meaning of the logits of an export."""
    return "classes" if trained.target.kind in ONE_CLASS else trained.target.kind


def _class_of(trained: Trained, probabilities: dict[str, float]) -> str:
    """Return the most probable class or, with `task.threshold`, the fallback of the run if it is below that."""
    best = max(probabilities, key=probabilities.__getitem__)
    if not isinstance(trained.task, Classify):
        return best
    record: dict[str, object] = {"prediction": best, "probabilities": probabilities}
    return str(trained.task.finished(record, trained.decided)["prediction"])


def _reaching(trained: Trained, probabilities: dict[str, float]) -> list[str]:
    in_order = {name: probabilities[name] for name in trained.labels}
    if isinstance(trained.task, Multilabel):
        return trained.task.reaching(in_order, trained.decided)
    # The run compares in float32.
    at_least = np.float32(trained.decided["threshold"])
    return [name for name, probability in in_order.items() if np.float32(probability) >= at_least]


def _in_units(row: Row, found: Sequence[Row]) -> list[Span]:
    """Return entities, whose places are characters, as spans of units.

    An entity that begins or ends within a unit becomes a span that differs from any prediction of a run.
    """
    firsts, ends = zip(*_places(row), strict=True)
    return [
        (_at(firsts, one["start"]), _at(ends, one["end"]), one["entity_group"])
        for one in sorted(found, key=lambda one: one["start"])
    ]


def _at(places: Sequence[int], place: int) -> int:
    return places.index(place) if place in places else -1


def _places(row: Row) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each unit in the text that a pipeline sees: words separated by spaces, or characters."""
    start = 0
    for unit in row["tokens"] if "tokens" in row else row["text"]:
        yield start, start + len(unit)
        start += len(unit) + ("tokens" in row)
