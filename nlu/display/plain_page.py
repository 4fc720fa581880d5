"""A page of HTML with tables and figures that needs no other file, in the looks of the page of a search."""

import html
from collections.abc import Sequence
from pathlib import Path

from nlu.display.document import document
from nlu.storage.files import write_text

LONG_CELL = 30
"""characters from which on the lines of a column are broken"""


def html_table(header: Sequence[tuple[str, bool]], lines: Sequence[Sequence[str]]) -> str:
    """Return a table; `header` has the name of each column and whether it holds numbers."""
    classes = [
        "" if is_number else " class='text long'" if any(len(line[place]) >= LONG_CELL for line in lines)
        else " class=text"
        for place, (_, is_number) in enumerate(header)
    ]  # fmt: skip
    head = "".join(
        f"<th{'' if is_number else ' class=text'}>{html.escape(name)}</th>" for name, is_number in header
    )  # fmt: skip
    body = "".join(
        "<tr>" + "".join(f"<td{look}>{html.escape(cell)}</td>"
                         for look, cell in zip(classes, line, strict=True)) + "</tr>"
        for line in lines
    )  # fmt: skip
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def html_section(content: str, title: str = "", remark: str = "") -> str:
    """Return a card of a page around what is given as HTML; `title` and `remark` are texts."""
    heading = f"<h2>{html.escape(title)}</h2>" if title else ""
    below = f'<p class="remark">{html.escape(remark)}</p>' if remark else ""
    return f'<section class="wide">{heading}{content}{below}</section>'


def write_plain_page(path: Path, title: str, counts: str, sections: Sequence[str]) -> None:
    """Write a page with a heading, a line below it, and sections, which are HTML."""
    text = document("plain_page.html", title, counts, ["page.css", "plain_page.css"], sections="".join(sections))
    write_text(path, text)
