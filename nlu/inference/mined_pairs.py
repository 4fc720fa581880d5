"""What hard negatives are mined from: queries, the texts that answer them, and the texts of a corpus."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nlu.config.command_keys import Input
from nlu.config.errors import DataError
from nlu.config.sentences import counted
from nlu.config.types import ConfigLike
from nlu.data import keys as schemas
from nlu.data.dataset import Files, SourceFile
from nlu.data.dialect import KEYS
from nlu.data.fields import has_rows, usual_fields
from nlu.data.layouts import LAYOUTS, check_text
from nlu.data.reader import BadRow, BadRows, Row
from nlu.data.readers import column_names, read_rows
from nlu.data.reading import Reading, fields_of, layout_of
from nlu.data.targets.classes import Relevance


@dataclass(frozen=True)
class MinedPairs:
    """Queries with their answers, and all texts that may become negatives."""

    answers: dict[str, dict[str, None]]
    """the texts that answer each query, in the order of the file"""
    corpus: dict[str, int]
    """the number of each distinct text: first those of the corpus, then the second texts of all pairs"""
    reading: Reading
    """how the pairs were read"""

    @classmethod
    def of(cls, asked: Input, own: ConfigLike, path: Path, corpus: Path | None) -> "MinedPairs":
        """Read pairs and corpus; `own`: `data.fields` of a run, for a file whose columns have no usual names.

        Raises DataError for a row that cannot be used, and for a file without answers.
        """
        dialect = {key: value for key in KEYS if (value := getattr(asked, key)) is not None}
        given = {"fields": asked.fields, "format": asked.format, "header": asked.header, **dialect}
        files = Files(schemas.Files(train=str(path), **given))
        usual = usual_fields(column_names(path, files.format, files.dialect), ("text_a", "text_b"))
        if not asked.fields and len(usual) < 2 and {"text_a", "text_b"} <= set(own):
            files = Files(schemas.Files(train=str(path), **{**given, "fields": dict(own)}))
        (source,) = files.sets()["train"]
        fields = fields_of(files, [source], ("label",))
        layout_of(fields, ("pair",), (), files, [source])
        reading = Reading.of(files, fields, None)
        found = cls({}, {} if corpus is None else dict.fromkeys(_texts_of(corpus), 0), reading)
        for query, text, is_answer in _pairs(reading, source):
            found.corpus[text] = 0
            if is_answer:
                found.answers.setdefault(query, {})[text] = None
        if not found.answers:
            raise DataError(
                f"{path}: no row has an answer, which is a label above 0; give rows with some, or leave label out of "
                "input.fields if every row is one"
            )
        found.corpus.update(zip(found.corpus, range(len(found.corpus)), strict=True))
        return found


def _pairs(reading: Reading, source: SourceFile) -> Iterator[tuple[str, str, bool]]:
    """Yield the texts of each row, and whether the second one answers the first."""
    target, bad, count = Relevance(Files(schemas.Files(train="rows"))), BadRows(), 0
    for row in reading.rows(source):
        count += 1
        row = reading.checked(row, LAYOUTS["pair"]) if isinstance(row, Row) else row
        if isinstance(row, Row):
            stored, problem = target.read(row.values)
            if problem is None:
                yield row.values["text_a"], row.values["text_b"], stored > 0  # type: ignore[operator]
                continue
            row = reading.bad(row, *problem)
        if isinstance(row, BadRow):
            bad.add(source.path, row)
    if bad.count:
        raise bad.error(counted(count, "row"), "correct these rows, or leave them out")


def _texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a corpus: its lines, or the column `text` of a file of rows."""
    for row in read_rows(path, "auto" if has_rows(path) else "lines", {"text": "text"}, None):
        if isinstance(row, Row) and (rule := check_text(row.values["text"])):
            row = BadRow.of(row.number, "text", row.values["text"], rule)
        if isinstance(row, BadRow):
            raise DataError(f"{row.describe(path)}; correct the row, or leave it out")
        if isinstance(row, Row):
            yield row.values["text"]
