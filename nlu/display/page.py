"""Pages of HTML that need no other file and no network: headings, tables and figures inside cards."""

import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from nlu.storage.files import write_text

LONG_CELL = 30
"""characters of a cell from which on the lines of its column are broken"""


def write_page(
    path: Path,
    title: str,
    counts: str,
    sections: Iterable[str],
    *,
    look: Literal["plain", "survey"] = "plain",
    facts: str = "",
) -> None:
    """Write a page with a heading, a line below it, and sections.

    `title` and `counts` are texts; `facts` above the sections and the sections are HTML. `look` chooses among the rules
    in page.css.
    """
    # string.Template instead of format: the braces of CSS would have to be doubled.
    page = Template(part("page.html")).substitute(
        title=html.escape(title),
        counts=html.escape(counts),
        style=part("page.css"),
        look=look,
        facts=facts,
        sections="\n".join(sections),
    )
    write_text(path, page)


def section(
    content: str, title: str = "", *, note: str = "", remark: str = "", name: str = "", classes: str = "wide"
) -> str:
    """Return a card around HTML. `title`, `note` (above the content) and `remark` (below it) are texts."""
    identity = f' id="{name}"' if name else ""
    look = f' class="{classes}"' if classes else ""
    heading = f"<h2>{html.escape(title)}</h2>" if title else ""
    return f"<section{identity}{look}>{heading}{_remark(note)}{content}{_remark(remark)}</section>"


def _remark(text: str) -> str:
    return f'<p class="remark">{html.escape(text)}</p>' if text else ""


def html_table(header: Sequence[tuple[str, bool]], lines: Sequence[Sequence[str]]) -> str:
    """Return a table; `header` has the name of each column and whether it holds numbers."""
    classes = []
    for place, (_, is_number) in enumerate(header):
        is_long = any(len(line[place]) >= LONG_CELL for line in lines)
        classes.append("" if is_number else " class='text long'" if is_long else " class=text")
    head = "".join(f"<th{'' if is_number else ' class=text'}>{html.escape(name)}</th>" for name, is_number in header)
    # Texts of users are escaped in every cell: a text of a data set may contain HTML.
    body = "".join(
        f"<tr>{''.join(f'<td{look}>{html.escape(cell)}</td>' for look, cell in zip(classes, line, strict=True))}</tr>"
        for line in lines
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def html_list(items: Iterable[str]) -> str:
    """Return a list of texts; empty without any."""
    lines = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def part(name: str) -> str:
    """Return the text of a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
