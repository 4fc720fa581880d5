"""Which scored rows have the same text as a training row: texts are compared in Unicode's NFKC form and lower case, by
their letters and digits only."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nlu.config.errors import DataError, UserError
from nlu.config.keys import facts_of
from nlu.config.targets import TARGET, build
from nlu.config.words import called
from nlu.data.dataset import Files, SourceFile
from nlu.data.layouts import SEPARATOR, Layout
from nlu.data.reader import Row
from nlu.data.reading import Reading, fields_of
from nlu.data.seeds import text_hash
from nlu.metrics.repeats import HELD_OUT
from nlu.reports.errors.subject import ErrorSource, has_text
from nlu.runs.predictions import Record, predictions_of

NO_FOLD = -1
Known = tuple[int, int, str | None]
"""a record with some text: its number, its fold, and its label if that is a single name"""


@dataclass
class Overlap:
    """The first training text that equals the text of a record, by number of the record."""

    places: dict[int, str] = field(default_factory=dict)
    """file:row"""
    labels: dict[int, str] = field(default_factory=dict)
    """if they are single names"""
    contrary: set[int] = field(default_factory=set)
    """records whose text train has with another label; none for labels that are not single names"""
    held_out: int = 0
    """texts of the training files that were held out"""
    gone: int = 0
    """how many of them are no longer in the files"""


class SetTexts:
    """The texts of a set's records, which are compared with the training texts."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self._known: dict[str, list[Known]] = defaultdict(list)

    def add(self, number: int, record: Record) -> None:
        """Add a record, if it kept its text."""
        if has_text(record, self.layout):
            label = record["label"] if isinstance(record["label"], str) else None
            self._known[self._normal(record)].append((number, record.get("fold", NO_FOLD), label))

    def overlap(self, source: ErrorSource) -> Overlap:
        """Compare them with every training text. Raises UserError if the training files are not there or not known."""
        files = files_of(source)
        sources = files.sets(["train"])["train"]
        roles = facts_of(facts_of(source.config["task"][TARGET]).get("target", "")).get("roles", ())
        fields = fields_of(files, sources, roles)
        reading = Reading(fields, files.format, files.header, files.max_rows, None, files.dialect)
        held_out = _held_out(source, self.layout)
        found, seen = Overlap(held_out=len(held_out)), set()
        for one in sources:
            for row in reading.rows(one):
                if not isinstance(row, Row) or self.layout.problem(row.values) is not None:
                    continue
                hashed = text_hash(self.layout.identity(row.values))
                if hashed in held_out:
                    seen.add(hashed)
                    # Of a single run nobody trains on it; of folds all but the one that holds it out do.
                    if source.joined is None:
                        continue
                for known in self._known.get(self._normal(row.values), ()):
                    if held_out.get(hashed) != known[1]:
                        _compare(found, known, f"{called(one.path)}:{row.number}", row.values.get("label"))
        found.gone = len(held_out) - len(seen)
        return found

    def _normal(self, values: Record) -> str:
        if "tokens" in values:
            return normalised("".join(values["tokens"]))
        return SEPARATOR.join(map(normalised, self.layout.shown(values).values()))

    @property
    def are_kept(self) -> bool:
        return bool(self._known)


def _compare(found: Overlap, known: Known, place: str, value: object) -> None:
    number, _, own = known
    label = str(value).strip() if isinstance(value, (str, int)) else None
    if own is not None and label not in (None, own):
        found.contrary.add(number)
    if number not in found.places:
        found.places[number] = place
        if own is not None and label is not None:
            found.labels[number] = label


def files_of(source: ErrorSource) -> Files:
    """Return the files of a run. Raises UserError if its data is of a class that does not name files."""
    node = source.config["data"]
    files = build(node)
    if not isinstance(files, Files):
        raise UserError(f"data is {node[TARGET]}, of which no files are known")
    return files


def files_of_set(source: ErrorSource) -> list[SourceFile]:
    """Return the files of the set, which name the places of records; none if they are gone."""
    name = "train" if source.is_held_out else source.set_name
    try:
        return files_of(source).sets([name])[name]
    except (UserError, OSError, KeyError):
        return []


def normalised(text: str) -> str:
    """Return the letters and digits of a text in NFKC form and lower case, or all of it if it has neither."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, folded)) or folded


def _held_out(source: ErrorSource, layout: Layout) -> dict[int, int]:
    """Return the hash of each text of the training files that was held out, with its fold.

    Equal texts are on the same side of every split.
    """
    if source.joined is not None:
        return {hashed: fold for fold, part in source.joined.parts.items() for hashed in _hashes(part, layout)}
    if source.run.fold is None and source.config["data"].get("dev") is not None:
        return {}
    return dict.fromkeys(_hashes(predictions_of(source.run.folder, HELD_OUT), layout), NO_FOLD)


def _hashes(records: Iterable[Record], layout: Layout) -> Iterator[int]:
    for record in records:
        if not has_text(record, layout):
            raise DataError("some held-out rows kept no text, so they cannot be left out of the training texts")
        yield text_hash(layout.identity(record))
