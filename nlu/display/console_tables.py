"""Tables on standard output: drawn on a terminal, elsewhere plain columns that are never wrapped or cut."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from nlu.config.console import printing

PLAIN_WIDTH = 10_000
MAX_CELL = 40


def print_table(*parts: RenderableType, style: str | None = None, plain_width: int = PLAIN_WIDTH) -> None:
    """Print tables and lines on standard output, without spaces at the ends of lines.

    Parts that are texts are not wrapped. A reader such as `head` may close the pipe early without causing an error.
    """
    is_terminal = sys.stdout.isatty()
    console = Console(
        markup=False,
        emoji=False,
        highlight=False,
        width=None if is_terminal else plain_width,
        color_system="auto" if is_terminal else None,
        force_jupyter=False,
    )
    # Captured, since rich fills lines with spaces up to the width of a column, which a file should not have.
    with nullcontext() if is_terminal else console.capture() as capture:
        for part in parts:
            console.print(part, style=style if is_terminal else None, soft_wrap=isinstance(part, str))
    if capture is None:
        return
    with printing():
        for line in capture.get().splitlines():
            print(line.rstrip())


Header = tuple[str, bool]
"""the name of a column, and whether it holds numbers"""


def texts(*names: str) -> list[Header]:
    """Return columns that hold texts."""
    return [(name, False) for name in names]


def numbers(*names: str) -> list[Header]:
    """Return columns that hold numbers."""
    return [(name, True) for name in names]


def table_of(columns: Iterable[Header], lines: Iterable[Sequence[str]] = ()) -> Table:
    """Return a table with these columns and lines."""
    lines_between = box.HEAVY_HEAD if sys.stdout.isatty() else None
    table = Table(box=lines_between, show_edge=False, pad_edge=False, header_style="bold")
    for header, is_number in columns:
        table.add_column(header, justify="right" if is_number else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


@dataclass
class Column:
    """One column of a table that must fit a terminal."""

    header: str
    cells: list[str]
    is_number: bool = True
    may_go: int = 0
    """0 = stays; if the terminal is too narrow, the column with the highest number is dropped first"""


def fitted(columns: Sequence[Column], plain_width: int = PLAIN_WIDTH) -> tuple[Table, list[str]]:
    """Return a table that fits the terminal, and the headers of the columns that were dropped.

    On a terminal headers are broken after dots and slashes before a column is dropped. Elsewhere a line may have
    `plain_width` characters and headers are not broken, so that programs find them.
    """
    columns, gone = list(columns), []
    on_terminal = sys.stdout.isatty()
    width = Console().width if on_terminal else plain_width
    table = _whole(columns, is_broken=False)
    # Measured on a wide console, since a table on the real one never reports more than its width.
    while Console(width=PLAIN_WIDTH).measure(table).maximum > width:
        table = _whole(columns, is_broken=on_terminal)
        dispensable = [column for column in columns if column.may_go]
        if Console(width=PLAIN_WIDTH).measure(table).maximum <= width or not dispensable:
            break
        columns.remove(last := max(dispensable, key=lambda column: column.may_go))
        gone.append(last.header)
    return table, gone


def _whole(columns: Sequence[Column], is_broken: bool) -> Table:
    headers = [_broken(column.header) if is_broken else column.header for column in columns]
    shown = zip(headers, (column.is_number for column in columns), strict=True)
    return table_of(shown, zip(*(column.cells for column in columns), strict=True))


def _broken(header: str) -> str:
    return header.replace(".", ".\n").replace("/", "/\n").replace(" ", "\n")


def metric_text(value: float | None) -> str:
    """Return a metric with four digits, fewer from 1,000 on; "-" without a value."""
    return "-" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def count_text(value: float | None) -> str:
    """Return a count with thousands separators; "-" without a value."""
    return "-" if value is None else f"{value:,.0f}"


def value_text(value: object) -> str:
    """Return a configuration value: numbers with four digits, the end of a long text."""
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_CELL else f"...{text[3 - MAX_CELL :]}"
