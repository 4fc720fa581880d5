"""The predictions of a set in a run folder: a header, then one record per line, written and read as a stream.

`predictions/SET.jsonl` has one JSON object per line, in order of `id`. The first one is the header: the `step` of the
weights, the `kind` of the records (nlu/metrics/kinds.py), the scores `by_label`, and for retrieval the value of each
query, `by_query`. Each other object is one example: `id`, `file`, `row`, `label`, `prediction` (for tagging `spans`),
`probability`, `probabilities`, `loss`, and its text.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from nlu.config.errors import DataError
from nlu.storage.files import plain, replacing

FOLDER, SUFFIX = "predictions", ".jsonl"
Record = Mapping[str, Any]


def write_predictions(path: Path, header: Mapping[str, object], records: Iterable[Record]) -> None:
    """Write `path`, a .jsonl, in one pass over the records, atomically: readers see the old or the new file.

    Numbers that JSON does not have (nan, inf) become null. The records must be in the order of their ids.
    """
    assert path.suffix == SUFFIX, f"{path.name} ends in {SUFFIX}"
    with replacing(path) as file:
        file.write(_line(header))
        file.writelines(map(_line, records))


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain)


def _line(content: Mapping[str, object]) -> bytes:
    try:
        return _encoder.encode(content).encode() + b"\n"
    except ValueError:
        # A number that JSON does not have, or half of a surrogate pair, which UTF-8 cannot encode.
        return json.dumps(plain(content), allow_nan=False).encode() + b"\n"


def kept_sets(run_dir: Path) -> list[str]:
    """Return the names of the sets whose predictions a run kept."""
    return sorted(path.stem for path in (run_dir / FOLDER).glob(f"*{SUFFIX}"))


def evaluation_sets(run_dir: Path, head_name: str | None = None) -> list[str]:
    """Return the same without `test`, or only `test` if only it exists; with `head_name` only those of this head."""
    names, test = kept_sets(run_dir), "test"
    if head_name is not None:
        names, test = [name for name in names if name.rpartition("-")[2] == head_name], f"test-{head_name}"
    return [name for name in names if name != test] or names


def predictions_of(run_dir: Path, set_name: str) -> "Predictions":
    """Return the predictions of a set. Raises DataError if the run kept none."""
    path = run_dir / FOLDER / f"{set_name}{SUFFIX}"
    if not path.is_file():
        raise DataError(f"{path} does not exist, so the run kept no predictions of {set_name}; run it again")
    return Predictions(path)


class Predictions:
    """A file of predictions: its header and its records in order. Each iteration reads the file again.

    Reading raises DataError, with file and line, if the file is damaged.
    """

    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def header(self) -> dict[str, Any]:
        with self._opened() as file:
            try:
                return _mapping(file.readline())
            except (OSError, ValueError) as error:
                raise self._damaged(":1", error) from error

    @property
    def labels(self) -> list[str]:
        """All classes in the order of their numbers; for tagging, the types of spans that occur."""
        return [entry["label"] for entry in self.header.get("by_label", ())]

    def __iter__(self) -> Iterator[Record]:
        number = 1
        with self._opened() as file:
            try:
                for number, line in enumerate(file, start=1):
                    if number > 1:
                        yield _checked(_mapping(line))
            except (OSError, ValueError) as error:
                raise self._damaged(f":{number}", error) from error

    def _opened(self) -> TextIO:
        try:
            # Lines end only with a line feed; other separators may occur within texts.
            return open(self.path, encoding="utf-8", newline="\n")
        except OSError as error:
            raise self._damaged("", error) from error

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
