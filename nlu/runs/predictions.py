"""The predictions of a set, kept beside a run: a header, then one record a line, written and read as a stream.

`predictions/SET.jsonl` holds a JSON object a line, in order of `id`. The first one is the header: the `step` of the
weights, the scores `by_label`, and of retrieval the value of each query, `by_query`. Each other is one example: `id`,
`file`, `row`, `label`, `prediction` (of tagging `spans`), `probability`, `probabilities`, `loss`, and its text. Runs of
earlier versions left one object,
`predictions/SET.json`, with the records as its last value, `rows`; it is read as a stream all the same.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from nlu.config.errors import DataError
from nlu.storage.files import plain, replacing

FOLDER = "predictions"
LINES, WHOLE = ".jsonl", ".json"
"""suffixes of today's form and of the earlier one"""
ROWS = "rows"
CHUNK_CHARACTERS = 1 << 16
Record = Mapping[str, Any]


def write_predictions(path: Path, header: Mapping[str, object], records: Iterable[Record]) -> None:
    """Write `path`, a .jsonl, in one pass over the records: readers see the old or the new file, never a part of it.

    Numbers that JSON lacks (nan, inf) become null. The records must come in the order of their ids. A file of the same
    name in the earlier form goes.
    """
    assert path.suffix == LINES and ROWS not in header, f"{path.name} is no {LINES}, or its header holds {ROWS}"
    with replacing(path) as file:
        file.write(_line(header))
        file.writelines(map(_line, records))
    path.with_suffix(WHOLE).unlink(missing_ok=True)


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain)


def _line(content: Mapping[str, object]) -> bytes:
    try:
        return _encoder.encode(content).encode() + b"\n"
    except ValueError:
        # A number that JSON lacks, or half of a surrogate pair, which UTF-8 lacks.
        return json.dumps(plain(content), allow_nan=False).encode() + b"\n"


def kept_sets(run_dir: Path) -> list[str]:
    """Return the names of the sets whose predictions a run kept."""
    return sorted({path.stem for suffix in (LINES, WHOLE) for path in (run_dir / FOLDER).glob(f"*{suffix}")})


def evaluation_sets(run_dir: Path) -> list[str]:
    """Return the same without `test`, or `test` alone where there is no other."""
    names = kept_sets(run_dir)
    return [name for name in names if name != "test"] or names


def predictions_of(run_dir: Path, set_name: str) -> "Predictions":
    """Return the predictions of a set, in whichever form they were kept. Raises DataError where there are none."""
    paths = [run_dir / FOLDER / f"{set_name}{suffix}" for suffix in (LINES, WHOLE)]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise DataError(f"{paths[0]} does not exist, so the run kept no predictions of {set_name}; run it again")
    return Predictions(found)


class Predictions:
    """A file of predictions: its header, and its records in the order of the file, read anew by each iteration.

    Reading raises DataError with the place where the file is damaged.
    """

    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def header(self) -> dict[str, Any]:
        with self._opened() as file:
            try:
                return _Document(file).header() if self.path.suffix == WHOLE else _mapping(file.readline())
            except (OSError, ValueError) as error:
                raise self._damaged(":1", error) from error

    @property
    def labels(self) -> list[str]:
        """All classes in the order of their numbers; of tagging the types of spans that were there to score."""
        return [entry["label"] for entry in self.header.get("by_label", ())]

    def __iter__(self) -> Iterator[Record]:
        return self._records() if self.path.suffix == WHOLE else self._lines()

    def _opened(self) -> TextIO:
        try:
            return open(self.path, encoding="utf-8", newline="\n")
        except OSError as error:
            raise self._damaged("", error) from error

    def _lines(self) -> Iterator[Record]:
        number = 1
        with self._opened() as file:
            try:
                for number, line in enumerate(file, start=1):
                    if number > 1:
                        yield _checked(_mapping(line))
            except (OSError, ValueError) as error:
                raise self._damaged(f":{number}", error) from error

    def _records(self) -> Iterator[Record]:
        number = 0
        with self._opened() as file:
            try:
                for record in _Document(file).rows():
                    yield record
                    number += 1
            except (OSError, ValueError) as error:
                raise self._damaged(f", behind record {number}", error) from error

    def _damaged(self, place: str, error: Exception) -> DataError:
        said = error.strerror if isinstance(error, OSError) else error
        return DataError(f"{self.path}{place} holds no predictions ({said}); run it again")


def _mapping(line: str) -> dict[str, Any]:
    if not line.endswith("\n"):
        raise ValueError("the line is cut")
    content = json.loads(line)
    if not isinstance(content, dict):
        raise ValueError("the line holds no object")
    return content


def _checked(record: object) -> Record:
    if not isinstance(record, dict) or not isinstance(record.get("id"), int) or "label" not in record:
        raise ValueError("a record has no id or no label")
    return record


class _Document:
    """The earlier form, one JSON object, taken in from its file as far as it is asked for."""

    def __init__(self, file: TextIO):
        self._file, self._text, self._at = file, "", 0
        self._decoder = json.JSONDecoder()

    def header(self) -> dict[str, Any]:
        """Return what stands before the rows, and stop where they begin."""
        found: dict[str, Any] = {}
        self._take("{")
        while True:
            key = self._value()
            self._take(":")
            if key == ROWS:
                return found
            found[key] = self._value()
            self._take(",")

    def rows(self) -> Iterator[Record]:
        """Give the rows one after another; behind them the document must end."""
        self.header()
        self._take("[")
        more = self._peek() != "]"
        while more:
            yield _checked(self._value())
            if more := self._peek() == ",":
                self._take(",")
        self._take("]")
        self._take("}")

    def _value(self) -> Any:
        """Return the next value. It ends before the end of what is read, for the rest of a number may follow."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except ValueError:
                if not self._read_on():
                    raise
                continue
            if end < len(self._text) or not self._read_on():
                self._at = end
                return value

    def _take(self, mark: str) -> None:
        if (found := self._peek()) != mark:
            raise ValueError(f"{mark!r} is wanted, not {found!r}")
        self._at += 1

    def _peek(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def _read_on(self) -> bool:
        # As much again as there is, so that a value of any length is decoded a few times only.
        chunk = self._file.read(max(CHUNK_CHARACTERS, len(self._text) - self._at))
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)
