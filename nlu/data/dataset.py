"""What `data=...` means: which files make which set, how they are read, and where they are found."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.config.keys import takes
from nlu.config.redaction import hide
from nlu.config.sentences import called
from nlu.data import keys as schemas
from nlu.data.dialect import OWN, Dialect, not_utf_8
from nlu.data.windows import Lengths
from nlu.storage.archives import unpacked
from nlu.storage.locations import data_folder, files_like, is_pattern, named_file, path_problem
from nlu.storage.resources import fetch, fetch_matching

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


@takes(schemas.Files)
class Files:
    """Your own csv, tsv, jsonl, json, parquet, CoNLL or plain-line files; the named data sets are presets of it."""

    blocks: Any = None
    """what makes rows of lines (`nlu.data.reading.Blocks`); None: the files have rows"""

    def __init__(self, keys: schemas.Files):
        self.train: Source = _named_by_text(keys.train)
        self.dev: Source | None = _named_by_text(keys.dev)
        self.test: Source | None = _named_by_text(keys.test)
        self.fields = dict(keys.fields or {})
        self.format: str = keys.format if keys.reader is None else OWN
        self.layout: Any = keys.layout
        self.header = keys.header
        self.dialect = Dialect(
            keys.separator,
            keys.quote,
            keys.skip_lines,
            keys.sheet,
            keys.records,
            keys.reader,
            skips=keys.on_bad_row == "skip",
        )
        self.given_labels = keys.labels
        self.label_separator = keys.label_separator
        if not keys.label_separator:
            raise UserError('data.label_separator is "", which separates nothing; set it to a character such as "|"')
        self.max_len = keys.max_len
        self.lengths = Lengths(keys.max_len, keys.long, keys.stride, keys.prompts or {})
        self.on_bad_row = keys.on_bad_row
        self.drop_duplicates = keys.drop_duplicates
        self.dev_fraction = keys.dev_fraction
        self.exclude_dev_from_train = keys.exclude_dev_from_train
        self.max_rows = keys.max_rows
        self.rows_per_class = keys.rows_per_class
        self.urls = dict(keys.urls or {})

    @cached_property
    def labels(self) -> list[str] | None:
        """All labels in the order of their numbers; None: those of the training set.

        A file is fetched and read when they are first asked for. Raises DataError if it cannot be found or read, or
        holds no label.
        """
        if not isinstance(self.given_labels, str):
            return self.given_labels
        path = find_file("data.labels", self.given_labels, self.urls)
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
            return [find_file(key, reference, self.urls)]
        if problem := path_problem(key, reference):
            raise DataError(problem)
        return list(map(unpacked, files_like(reference)))


def find_file(key: str, reference: str, urls: Mapping[str, str] | None = None) -> Path:
    """Return the one file that a reference means: here, under $NLU_DATA, or fetched; unpacked if it is compressed.

    `urls`: where a path is fetched from that is in neither folder. Raises DataError, which calls the reference `key`,
    if it means no file or several.
    """
    return unpacked(_found(key, reference, urls or {}))


def _found(key: str, reference: str, urls: Mapping[str, str]) -> Path:
    if _is_address(reference):
        return fetch(reference, what=key)
    if (found := named_file(reference)) is not None:
        return found
    # A local file comes first, so that a run needs no network once its data are there.
    if reference not in urls and (problem := path_problem(key, reference)):
        raise DataError(problem)
    if reference not in urls:
        names = _listed(map(str, files_like(reference)))
        raise DataError(f"{key} is {reference!r}, a pattern, but must name one file; set {key} to one of {names}")
    try:
        return fetch(urls[reference], what=key)
    except DataError as error:
        raise DataError(
            f"{key} is {reference!r}: not here, not in the folder {data_folder()}, not in the cache, and its "
            f"public URL does not answer ({error.problems[0]}); set NLU_DATA to the folder that holds {reference}, "
            f"or {key}=PATH"
        ) from None


def _named_by_text(source: Any) -> Any:
    # YAML makes a number of a name such as 1.
    return {str(name): path for name, path in source.items()} if isinstance(source, dict) else source


def _is_address(reference: str) -> bool:
    return "://" in reference or "#sha256=" in reference


def _shown(files: list[SourceFile]) -> str:
    return _listed(file.path.name for file in files)


def _listed(found: Iterable[str]) -> str:
    names = list(found)
    return ", ".join([*names[:12], "..."] if len(names) > 12 else names)
