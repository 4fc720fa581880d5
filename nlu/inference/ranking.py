"""Rows of a query with a list of candidates, for a reranker: taken apart into pairs, and put together by score."""

from collections.abc import Sequence
from itertools import islice

from nlu.data.layouts import Problem, Values
from nlu.data.lists_in_rows import list_of
from nlu.inference.trained import Trained
from nlu.metrics.kinds import SCORE, Cell, ScoreKind
from nlu.runs.predictions import Record

ROLES = ("text_a", "candidates")
"""the fields of such a row"""


class RankingKind(ScoreKind):
    """The candidates of a query, best first, with their scores."""

    columns = {"ranking": "lists of texts", "scores": "numbers"}

    def cells(self, values: Values, found: Record) -> dict[str, Cell]:
        return {name: found[name] for name in self.columns}


def reads_candidates(reader: object) -> bool:
    """Return whether it is a run that ranks candidates."""
    return isinstance(getattr(reader, "kind", None), ScoreKind)


def pairs_of(values: Values) -> list[Values]:
    """Return the pairs of a row with candidates; of any other row, itself."""
    if "candidates" not in values:
        return [values]
    texts = list_of(values["candidates"])
    return [{**values, "text_b": text} for text in texts] if isinstance(texts, list) else []


def problem_of(trained: Trained, values: Values) -> Problem | None:
    """Return the field of a row that cannot be predicted, and the rule that its value breaks, or None."""
    if not (pairs := pairs_of(values)):
        return "candidates", "is not a list of texts"
    for pair in pairs:
        if (problem := trained.problem(pair)) is not None:
            role, rule = problem
            return (
                problem if pair is values or role == "text_a" else ("candidates", f"holds {pair[role]!r}, which {rule}")
            )
    return None


def joined(rows: Sequence[Values], found: Sequence[Record]) -> list[Record]:
    """Return the prediction for each row, given those for its pairs, one row after another."""
    given, predictions = iter(found), []
    for values in rows:
        own = list(islice(given, len(pairs_of(values))))
        if "candidates" in values:
            texts = [pair["text_b"] for pair in pairs_of(values)]
            # Of equal scores, in the order of the file: `sorted` is stable.
            ranked = sorted(zip(texts, own, strict=True), key=lambda pair: -pair[1][SCORE])
            own = [{"ranking": [text for text, _ in ranked], "scores": [one[SCORE] for _, one in ranked]}]
        predictions += own
    return predictions
