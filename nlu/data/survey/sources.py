"""Which files make which set of a survey, and how each is read: as said, or as its columns look."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nlu.config.choices import conf_dir
from nlu.config.errors import DataError, UserError
from nlu.config.nearest import hint
from nlu.config.signature import read_signature
from nlu.config.targets import TARGET
from nlu.data.dataset import Files, SourceFile
from nlu.data.dialect import Dialect
from nlu.data.fields import FORMATS, TEXT_ROLES, chosen_layout
from nlu.data.readers import Fields
from nlu.data.reading import Reading
from nlu.data.survey.columns import Guess, guess
from nlu.data.survey.walk import Source
from nlu.storage.lookup import files_like, is_pattern

SAID = "as given"
FILES = "nlu.data.dataset.Files"


def of_files(
    written: Sequence[str], fields: Fields | None, file_format: str, header: bool | None, max_rows: int | None,
    separator: str | None = None,
) -> list[Source]:  # fmt: skip
    """Return a set for each file, or one of all where each file is the rows of a label.

    Raises DataError for a file that is not there, is empty or lacks a column, UserError for names that occur twice.
    """
    named = [found for text in written for found in _named(text)]
    by_label = file_format == "lines" and all(name for name, _ in named)
    if by_label:
        reading = Reading({}, "lines", None, max_rows, None)
        files = [replace(file, label=name) for name, file in named]
        return [Source("texts", files, reading, "each line is a text, its file says the label")]
    sources, dialect = [], Dialect(separator)
    for name, (_, file) in zip(_names(named), named, strict=True):
        how = _how(file.path, fields, file_format, header, dialect)
        reading = Reading(how.fields, how.file_format, how.header, max_rows, None, dialect)
        sources.append(Source(name, [file], reading, how.sentence()))
    return sources


def _named(text: str) -> list[tuple[str | None, SourceFile]]:
    """The name that an argument gives, if any, and the file or, of a pattern, the files that it means."""
    name, equals, reference = text.partition("=")
    if not equals or "/" in name or "://" in name or Path(text).expanduser().is_file():
        name, reference = "", text
    if is_pattern(reference) and (found := files_like(reference)):
        return [(name or None, SourceFile(path)) for path in found]
    return [(name or None, SourceFile(Files(train=reference).find("FILE", reference), written=reference))]


def _names(named: Sequence[tuple[str | None, SourceFile]]) -> list[str]:
    """A name for each set: as given, else the file's, with as much of its folder as tells it from others."""
    names = [name or file.path.stem for name, file in named]
    if len(set(names)) < len(names):
        names = [name or f"{file.path.parent.name}/{file.path.name}" for name, file in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two sets would be called {twice[0]}; give them names, such as first=FILE second=FILE")
    return names


def _how(path: Path, fields: Fields | None, file_format: str, header: bool | None, dialect: Dialect) -> Guess:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows")
    if fields is None:
        return guess(path, file_format, header, dialect)
    if file_format != "lines" and chosen_layout(list(TEXT_ROLES), fields) is None:
        raise UserError(
            f"--fields names {', '.join(fields)}, but a survey needs a column of texts; give text=COLUMN, "
            "text_a=COLUMN and text_b=COLUMN, or tokens=COLUMN"
        )
    return Guess(fields, header, file_format, dict.fromkeys(fields, SAID))


def of_choice(name: str, max_rows: int | None) -> list[Source]:
    """Return the sets of a choice of the group data, or of a YAML with such keys, fetched where need be.

    Raises UserError where there is no such choice, DataError for files that are nowhere to be found.
    """
    folder = conf_dir() / "data"
    path = next((one for one in (folder / f"{name}.yaml", Path(name)) if one.is_file()), None)
    if path is None:
        raise UserError(
            f"--data is {name}, which is no data set; {hint(name, sorted(p.stem for p in folder.glob('*.yaml')))}"
        )
    files = _files_of(path)
    sources = []
    for set_name, found in files.sets().items():
        fields, header, told = files.fields, files.header, f"as {path.name} says"
        if not fields and files.format != "lines":
            how = guess(found[0].path, files.format, header, files.dialect)
            fields, header, told = how.fields, how.header, how.sentence()
        else:
            told = f"{Guess(fields, header, files.format).sentence()}, {told}"
        reading = Reading(fields, files.format, header, max_rows or files.max_rows, None, files.dialect)
        sources.append(Source(set_name, found, reading, told))
    return sources


def _files_of(path: Path) -> Files:
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--data is {path}, which is no YAML ({str(error).splitlines()[0]}); mend it") from None
    known = read_signature(FILES).parameters
    if not isinstance(content, dict) or content.get(TARGET, FILES) != FILES:
        raise UserError(f"--data is {path}, which does not describe files; name the files themselves")
    values = {key: value for key, value in content.items() if key in known}
    if (file_format := values.get("format", "auto")) not in FORMATS:
        raise UserError(f"{path}: format is {file_format!r}; {hint(str(file_format), FORMATS)}")
    if values.get("train") in (None, "???"):
        raise UserError(f"--data is {path}, which names no files of its own; name the files themselves")
    return Files(**values)
