"""What is wrong with the spans of a row: missed, invented, of a wrong type, with wrong ends."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from nlu.metrics.spans import Span
from nlu.reports.errors.slices import Slice, rate
from nlu.runs.predictions import Record

Fault = Literal["wrong type", "wrong ends", "wrong type and ends", "missed", "invented"]
FAULTS: tuple[Fault, ...] = ("wrong type", "wrong ends", "wrong type and ends", "missed", "invented")


def faults_of(wanted: set[Span], found: set[Span]) -> list[tuple[Fault, Span | None, Span | None]]:
    """Return what is wrong, each with the span that is wanted and the one that was found, in order of the text.

    A wanted span that was not found exactly has the wrong type where one with the same ends was found, wrong ends where
    one of its type overlaps it, both where another one overlaps it, and is missed where none does. A found span that
    overlaps no wanted one is invented.
    """
    faults: list[tuple[Fault, Span | None, Span | None]] = []
    for span in wanted - found:
        near = [other for other in found if _overlap(span, other)]
        same_ends = [other for other in near if other[:2] == span[:2]]
        same_type = [other for other in near if other[2] == span[2]]
        for fault, others in zip(FAULTS, (same_ends, same_type, near), strict=False):
            if others:
                faults.append((fault, span, min(others)))
                break
        else:
            faults.append(("missed", span, None))
    faults += [("invented", None, span) for span in found if not any(_overlap(span, other) for other in wanted)]
    return sorted(faults, key=lambda fault: fault[1] or fault[2] or (0, 0, ""))


def _overlap(span: Span, other: Span) -> bool:
    return span[0] <= other[1] and other[0] <= span[1]


class SpanJudge:
    """Spans: a row is wrong unless all its spans are right and there is no other."""

    kind, is_rate = "spans", True
    ranked_by, by_class = "loss of the right tags", "by type of wanted spans"

    def __init__(self, first: Record, threshold: Callable[[Record], float]):
        self._wanted: Counter[str] = Counter()
        self._faults: dict[str, Counter[Fault]] = defaultdict(Counter)
        self._confused: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, record: Record) -> tuple[float, float]:
        wanted, found = _spans(record["label"]), _spans(record["spans"])
        self._wanted.update(kind for _, _, kind in wanted)
        for fault, span, other in faults_of(wanted, found):
            kind = (span or other or (0, 0, ""))[2]
            self._faults[kind][fault] += 1
            if span and other and span[2] != other[2]:
                self._confused[kind][other[2]] += 1
        return float(wanted != found), float(record.get("loss") or 0.0)

    def classes(self) -> list[Slice]:
        """Return how many of the spans of each type were not found exactly."""
        found = []
        for kind in self._wanted.keys() | self._faults.keys():
            faults, confused = self._faults[kind], self._confused[kind].most_common(1)
            more: dict[str, int | str] = {fault: faults[fault] for fault in FAULTS}
            more["type predicted instead"] = ", ".join(f"{name} {count:,}" for name, count in confused)
            found.append(rate(kind, self._wanted[kind], faults.total() - faults["invented"], more))
        return sorted(found, key=lambda one: (-(one.wrong or 0), one.name))

    def told(self, record: Record) -> dict[str, str]:
        """Return the faults with the words of the spans, as far as the text is kept."""
        units = record.get("tokens") or record.get("text") or ""
        said = []
        for fault, span, other in faults_of(_spans(record["label"]), _spans(record["spans"])):
            shown = [_shown(one, units) for one in (span, other) if one is not None]
            said.append(f"{fault}: {' as '.join(shown)}")
        return {"faults": "; ".join(said), "loss": f"{record.get('loss') or 0.0:.3f}"}


def _spans(spans: Sequence[Sequence[Any]]) -> set[Span]:
    return {(first, last, kind) for first, last, kind in spans}


def _shown(span: Span, units: Sequence[str]) -> str:
    first, last, kind = span
    words = units[first : last + 1]
    shown = words if isinstance(words, str) else " ".join(words)
    return f"{kind} {shown!r}" if shown else f"{kind} {first}-{last}"
