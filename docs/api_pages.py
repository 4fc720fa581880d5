"""Pages of the API from docstrings: one page for each package, with its modules, and a list of all files.

Docstrings are Markdown, but autodoc reads reStructuredText. `code` and text in columns therefore become literal, and
everything else is escaped.
"""

import ast
import re
import shutil
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, get_origin

from sphinx.util.typing import stringify_annotation

from nlu.config import types

SPAN = re.compile(r"(`[^`]+`)")
MARKUP = re.compile(r"[\\*`|]|(?<=\w)_(?!\w)")
NAMES = {
    name: stringify_annotation(value, "smart") for name, value in vars(types).items() if get_origin(value) is Annotated
}
HEAD = """# API

The docstrings of the code, a page for each package. [](../extending/index.md) explains how to add your own parts.
[](files.md) lists every file with what it does.

```{toctree}
:maxdepth: 1
:titlesonly:

files
"""


def write_pages(source: Path, folder: Path) -> None:
    """Write a page for each package in and below `source`, and one that lists them; remove older pages."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pages = {name: page_of(modules) for name, modules in packages(source)}
    texts = {f"{name}.rst": text for name, text in pages.items()}
    texts["files.md"] = files_page(source.parent, [source.name, "launchers"])
    texts["index.md"] = HEAD + "\n".join(pages) + "\n```\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def files_page(root: Path, folders: Iterable[str]) -> str:
    """Return a page with a table for each package: its files, their lines, and the first sentence of each docstring."""
    found = (path for folder in folders for path in (root / folder).rglob("*.py"))
    paths = sorted(found, key=lambda path: (path.parent, path.name))
    tables = []
    for folder, files in groupby(paths, lambda path: path.parent):
        rows = []
        for path in files:
            code = path.read_text(encoding="utf-8")
            about = " ".join((ast.get_docstring(ast.parse(code)) or "").partition("\n\n")[0].split())
            sentence = re.split(r"(?<=\.) (?=[A-Z`])", about)[0].replace("|", "\\|")
            rows.append((len(code.splitlines()), f"| {path.name} | {len(code.splitlines())} | {sentence} |"))
        if total := sum(lines for lines, _ in rows):
            title = f"## {folder.relative_to(root)}\n\n{len(rows)} files, {total:,} lines"
            tables.append(
                "\n".join([title, "", "| file | lines | what it does |", "|---|---:|---|", *(row for _, row in rows)])
            )
    return "# Files\n\n" + "\n\n".join(tables) + "\n"


def packages(source: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each package with the names of its public modules, starting with the package itself."""
    for init in sorted(source.rglob("__init__.py")):
        name = ".".join([source.name, *init.parent.relative_to(source).parts])
        yield name, [name, *(f"{name}.{path.stem}" for path in sorted(init.parent.glob("[!_]*.py")))]


def page_of(modules: list[str]) -> str:
    """Return a page with a section for each module."""
    sections = []
    for number, name in enumerate(modules):
        line = ("=" if number == 0 else "-") * len(name)
        sections.append(f"{name}\n{line}\n\n.. automodule:: {name}\n   :members:\n   :show-inheritance:\n")
    return "\n".join(sections)


def as_restructured_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert the lines of a docstring to reStructuredText; autodoc calls this for each docstring."""
    written: list[str] = []
    for is_empty, block in groupby(lines, lambda line: not line.strip()):
        rows = list(block)
        if is_empty:
            written += rows
        elif any(map(is_in_columns, rows)):
            written += literal(rows)
        else:
            for is_indented, part in groupby(rows, lambda row: row.startswith("    ")):
                convert = literal if is_indented else paragraph
                written += convert(part)
    lines[:] = written


def with_names_of_types(
    app: Any, what: str, name: str, obj: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Return a signature with names such as PositiveInt, which autodoc would expand."""
    for alias, text in NAMES.items():
        arguments, returns = (part and part.replace(text, alias) for part in (arguments, returns))
    return arguments, returns


def is_in_columns(row: str) -> bool:
    """Return whether the layout of an unindented line matters, as in commands and tables."""
    return row.startswith(("|", "python -m ")) or not row.startswith(" ") and "   " in row.strip()


def literal(rows: Iterable[str]) -> list[str]:
    """Return lines unchanged, in a literal block."""
    return ["", "::", "", *(f"    {row}" for row in rows), ""]


def paragraph(rows: Iterable[str]) -> list[str]:
    """Return lines in which only `code` is markup."""
    return "".join(map(marked, SPAN.split("\n".join(rows)))).split("\n")


def marked(text: str) -> str:
    """Return a piece of a paragraph, `code` or not."""
    if SPAN.fullmatch(text):
        # An escaped space disappears, and allows a letter to follow.
        return f"\\ `{text}`\\ "
    return MARKUP.sub(r"\\\g<0>", text)
