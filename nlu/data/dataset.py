"""What `data=...` means: which files make which set, how they are read, and where they are found."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import Any, Literal

from nlu.config.errors import DataError, UserError
from nlu.config.types import Fraction, LayoutNode, NonNegativeInt, PositiveInt, ReaderNode, RowLength
from nlu.config.words import called
from nlu.data.dialect import OWN, Dialect, not_utf_8
from nlu.data.windows import Lengths
from nlu.storage.places import data_folder, files_like, is_pattern, named_file, path_problem
from nlu.storage.redaction import hide
from nlu.storage.resources import fetch, fetch_matching
from nlu.storage.unpacking import unpacked

Source = str | list[str] | dict[str, str]


@dataclass(frozen=True)
class SourceFile:
    """One file of a set; `label` is the class of all of its rows if the file says it, and not a column.

    `written` is the reference that names it; None if a pattern names several files.
    """

    path: Path
    label: str | None = None
    written: str | None = None

    @property
    def name(self) -> str:
        """What names this file in a command or a record; of a fetched file its address with query and sha256."""
        return hide(self.written) if self.written and _is_address(self.written) else called(self.path)


class Files:
    """Your own csv, tsv, jsonl, json, parquet, CoNLL or plain-line files; the named data sets are presets of it."""

    rules_of_config = "nlu.data.rules.file_problems"
    blocks: Any = None
    """what makes rows of lines (`nlu.data.reading.Blocks`); None: the files have rows"""

    def __init__(
        self,
        *,
        train: str | list[str] | dict[str, str],
        dev: str | list[str] | dict[str, str] | None = None,
        test: str | list[str] | dict[str, str] | None = None,
        fields: dict[str, str | int | list[str | int]] | None = None,
        format: Literal["auto", "csv", "tsv", "jsonl", "json", "parquet", "xlsx", "conll", "lines"] = "auto",
        reader: ReaderNode | None = None,
        header: bool | None = None,
        separator: str | None = None,
        quote: str | None = None,
        skip_lines: NonNegativeInt = 0,
        sheet: str | int | None = None,
        records: str | None = None,
        labels: str | list[str] | None = None,
        label_separator: str = "|",
        layout: LayoutNode | None = None,
        max_len: RowLength = 128,
        long: Literal["cut", "windows", "error"] = "cut",
        stride: NonNegativeInt | None = None,
        on_bad_row: Literal["error", "skip"] = "error",
        drop_duplicates: bool = False,
        dev_fraction: Fraction = 0.1,
        exclude_dev_from_train: bool = False,
        max_rows: PositiveInt | None = None,
        urls: dict[str, str] | None = None,
    ):
        """`train`, `dev`, `test`: a path, a pattern (`split*`) or URL, or a list of them. For `dev` a mapping names
        several evaluation sets; with `format=lines` a mapping gives one file per label. `dev=null` splits off
        `dev_fraction` of the training texts. `exclude_dev_from_train` removes the files of `dev` from those of
        `train`. `fields` maps text | text_a, text_b | tokens, tags | text, spans, and label, to a column's name or its
        number from 0, label also to a list of columns of 0 and 1; null: columns that are called like the fields.
        `reader` is your class for another format; null: `format`. `layout` makes sequences of a row's texts; null: that
        of the task. `header` null: a table has one exactly when a field is given by name. `separator` stands between
        the cells of a csv or tsv file, `quote` around those that may hold separators ("": none). `skip_lines` at the
        start of each file are not read. `sheet`: name or number from 0. `records`: where a JSON object has its rows,
        such as data.items.
        `long`: rows with more than `max_len` tokens are cut, read in windows of so many tokens, or are rows that cannot
        be used (error). `stride`: tokens that two neighbouring windows share; null = an eighth of `max_len`.
        `labels`: a list, or a file of one label a line; null: those of the training set. `label_separator` stands
        between the labels of a cell if an example may have several. `on_bad_row=skip` counts and lists what it
        leaves out. `drop_duplicates` keeps the first of the training rows that are equal in text and label. `max_rows`
        reads only the first rows of each file, bad ones included, a header not; a set of three files has up to three
        times as many.
        `urls`: where to fetch a path that is neither here nor under $NLU_DATA."""
        self.train, self.dev, self.test = train, dev, test
        self.fields = dict(fields or {})
        self.format = format if reader is None else OWN
        self.layout: Any = layout
        self.header = header
        self.dialect = Dialect(separator, quote, skip_lines, sheet, records, reader, skips=on_bad_row == "skip")
        self.given_labels = labels
        self.label_separator = label_separator
        if not label_separator:
            raise UserError('data.label_separator is "", which separates nothing; set it to a character such as "|"')
        self.max_len = max_len
        self.lengths = Lengths(max_len, long, stride)
        self.on_bad_row = on_bad_row
        self.drop_duplicates = drop_duplicates
        self.dev_fraction = dev_fraction
        self.exclude_dev_from_train = exclude_dev_from_train
        self.max_rows = max_rows
        self.urls = dict(urls or {})

    @cached_property
    def labels(self) -> list[str] | None:
        """All labels in the order of their numbers; None: those of the training set.

        A file is fetched and read when they are first asked for. Raises DataError if it cannot be found or read, or
        holds no label.
        """
        if not isinstance(self.given_labels, str):
            return self.given_labels
        path = self.find("data.labels", self.given_labels)
        try:
            labels = [line.strip() for line in path.read_text(encoding="utf-8-sig").split("\n")]
        except UnicodeDecodeError as error:
            raise not_utf_8(path, error) from None
        if not any(labels):
            raise DataError(f"{path}: data.labels names this file, which holds no label; write one label a line")
        return list(filter(None, labels))

    def sources(self, only: Collection[str] | None = None) -> dict[str, tuple[str, Source]]:
        """Return the configuration key and its value for each set that has its own files, in order of use.

        `only`: the names of the requested sets; None = all.
        """
        named: dict[str, tuple[str, Source]] = {"train": ("data.train", self.train)}
        if isinstance(self.dev, dict) and self.format != "lines":
            named |= {name: (f"data.dev.{name}", source) for name, source in self.dev.items()}
        elif self.dev is not None:
            named["dev"] = ("data.dev", self.dev)
        if self.test is not None:
            named["test"] = ("data.test", self.test)
        return {name: entry for name, entry in named.items() if only is None or name in only}

    def sets(self, only: Collection[str] | None = None) -> dict[str, list[SourceFile]]:
        """Return the files of each set, fetched if necessary: train, the evaluation sets, test if given, or the
        requested ones of them.

        Raises DataError with every file that cannot be found and every set with an invalid name, and what to set.
        """
        sources = self.sources(only)
        problems = [f"{key} names no file; set it to one" for key, source in sources.values() if not source]
        if isinstance(self.dev, dict) and self.format != "lines":
            problems += [
                f"data.dev names the evaluation set {name!r}; give it a name other than train and test, without a slash"
                for name in self.dev
                if name in ("train", "test", ".", "..") or "/" in name
            ]
            problems += [] if self.dev else ["data.dev is {}; set it to a file, or to null to split the training set"]
        sets = {name: self._files(key, source, problems) for name, (key, source) in sources.items()}
        if problems:
            raise DataError(*problems)
        if self.exclude_dev_from_train and "train" in sets:
            sets["train"] = self._without_dev(sets)
        return sets

    def _without_dev(self, sets: dict[str, list[SourceFile]]) -> list[SourceFile]:
        # Resolved, because a pattern and a path may reach the same file by different names.
        dev = {file.path.resolve() for name, files in sets.items() if name not in ("train", "test") for file in files}
        kept = [file for file in sets["train"] if file.path.resolve() not in dev]
        # A setting without effect, or with nothing left, is a mistake.
        if not kept or len(kept) == len(sets["train"]):
            which = "none is" if kept else "all are"
            raise DataError(
                f"data.exclude_dev_from_train is true, but of data.train's files ({_shown(sets['train'])}) {which} "
                f"in data.dev ({', '.join(sorted(path.name for path in dev))}); set data.dev to some of them"
            )
        return kept

    def _files(self, key: str, source: Source, problems: list[str]) -> list[SourceFile]:
        if isinstance(source, dict):
            entries: list[tuple[str | None, str]] = list(source.items())
        else:
            entries = [(None, path) for path in ([source] if isinstance(source, str) else source)]
        files = []
        # All files are looked for before the first error is raised, so that a user can correct them in one go.
        for label, reference in entries:
            try:
                own_key = key if label is None else f"{key}.{label}"
                found = self._find_all(own_key, reference)
                files += [SourceFile(path, label, reference if len(found) == 1 else None) for path in found]
            except DataError as error:
                problems.extend(error.problems)
        return files

    def _find_all(self, key: str, reference: str) -> list[Path]:
        # The query of an address of the web is no pattern.
        if "://" in reference and has_magic(reference) and not reference.lower().startswith("http"):
            return list(map(unpacked, fetch_matching(reference, what=key)))
        if not is_pattern(reference):
            return [self.find(key, reference)]
        if problem := path_problem(key, reference):
            raise DataError(problem)
        return list(map(unpacked, files_like(reference)))

    def find(self, key: str, reference: str) -> Path:
        """Return the one file that a reference means: here, under $NLU_DATA, or fetched; unpacked if it is compressed.

        Raises DataError, which calls it `key`, if it means no file or several."""
        return unpacked(self._found(key, reference))

    def _found(self, key: str, reference: str) -> Path:
        if _is_address(reference):
            return fetch(reference, what=key)
        if (found := named_file(reference)) is not None:
            return found
        # A local file comes first, so that a run needs no network once its data are there.
        if reference not in self.urls and (problem := path_problem(key, reference)):
            raise DataError(problem)
        if reference not in self.urls:
            names = _listed(map(str, files_like(reference)))
            raise DataError(f"{key} is {reference!r}, a pattern, but must name one file; set {key} to one of {names}")
        try:
            return fetch(self.urls[reference], what=key)
        except DataError as error:
            raise DataError(
                f"{key} is {reference!r}: not here, not in the folder {data_folder()}, not in the cache, and its "
                f"public URL does not answer ({error.problems[0]}); set NLU_DATA to the folder that holds {reference}, "
                f"or {key}=PATH"
            ) from None


def _is_address(reference: str) -> bool:
    return "://" in reference or "#sha256=" in reference


def _shown(files: list[SourceFile]) -> str:
    return _listed(file.path.name for file in files)


def _listed(found: Iterable[str]) -> str:
    names = list(found)
    return ", ".join([*names[:12], "..."] if len(names) > 12 else names)
