"""Pages of the API from docstrings: one page for each package, with its modules.

Docstrings are written as Markdown is, and autodoc reads reStructuredText. So `code` and what is set in columns becomes
literal here, and nothing else is markup.
"""

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

What the docstrings of the code say, a page for each package. How to add a part of one's own: [](../../CONTRIBUTING.md).

```{toctree}
:maxdepth: 1

"""


def write_pages(source: Path, folder: Path) -> None:
    """Write a page for each package in and below `source`, and one that lists them; older pages go."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pages = {name: page_of(modules) for name, modules in packages(source)}
    texts = {f"{name}.rst": text for name, text in pages.items()}
    texts["index.md"] = HEAD + "\n".join(pages) + "\n```\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def packages(source: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each package with the names of its modules, itself the first of them; a name with _ is private."""
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
    """Replace the lines of a docstring by the same in reStructuredText; what autodoc calls for each."""
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
    """Return a signature with PositiveInt and its like, where autodoc writes out what they stand for."""
    for alias, text in NAMES.items():
        arguments, returns = (part and part.replace(text, alias) for part in (arguments, returns))
    return arguments, returns


def is_in_columns(row: str) -> bool:
    """Return whether the ends and the spaces of a line mean something, though it is not indented: commands, tables."""
    return row.startswith(("|", "python -m ")) or not row.startswith(" ") and "   " in row.strip()


def literal(rows: Iterable[str]) -> list[str]:
    """Return lines as they stand, in a block of their own."""
    return ["", "::", "", *(f"    {row}" for row in rows), ""]


def paragraph(rows: Iterable[str]) -> list[str]:
    """Return lines of which only `code` is marked."""
    return "".join(map(marked, SPAN.split("\n".join(rows)))).split("\n")


def marked(text: str) -> str:
    """Return a piece of a paragraph, `code` or not."""
    if SPAN.fullmatch(text):
        # An escaped space is none, and lets a letter follow.
        return f"\\ `{text}`\\ "
    return MARKUP.sub(r"\\\g<0>", text)
