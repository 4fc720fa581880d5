"""A page of HTML with tables and figures that needs no other file. Its texts are texts, shown in the reader's fonts."""

import html
from collections.abc import Sequence
from pathlib import Path
from string import Template

from nlu.storage.files import write_text

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; }
figure { margin: 2rem 0; } figure svg { background: #fff; border-radius: 6px; height: auto; max-width: 100%; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
th { vertical-align: bottom; }
th.number, td.number { font-variant-numeric: tabular-nums; text-align: right; }
td { white-space: nowrap; } td.long { min-width: 18rem; overflow-wrap: anywhere; white-space: normal; }
.wide { margin: 1.2rem 0; overflow-x: auto; }
</style></head><body><h1>$title</h1>$content</body></html>
""")
LONG_CELL = 30
"""characters from which on the lines of a column are broken"""


def html_table(header: Sequence[tuple[str, bool]], lines: Sequence[Sequence[str]]) -> str:
    """Return a table; `header` has the name of each column and whether it holds numbers."""
    classes = [
        " class=number" if is_number else " class=long" if any(len(line[place]) >= LONG_CELL for line in lines) else ""
        for place, (_, is_number) in enumerate(header)
    ]
    head = "".join(f"<th{' class=number' if is_number else ''}>{html.escape(name)}</th>" for name, is_number in header)
    body = "".join(
        "<tr>" + "".join(f"<td{look}>{html.escape(cell)}</td>"
                         for look, cell in zip(classes, line, strict=True)) + "</tr>"
        for line in lines
    )  # fmt: skip
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def write_plain_page(path: Path, title: str, content: str) -> None:
    """Write a page with a heading above what is given as HTML."""
    write_text(path, PAGE.substitute(title=html.escape(title), content=content))
