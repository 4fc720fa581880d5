"""Tables on standard output: drawn on a terminal, plain columns that nothing wraps or cuts anywhere else."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

PLAIN_WIDTH = 10_000
MAX_CELL = 40


def print_table(*parts: RenderableType, style: str | None = None) -> None:
    """Print tables and lines on standard output; no line ends in spaces."""
    if sys.stdout.isatty():
        console = Console(markup=False, emoji=False, highlight=False)
        for part in parts:
            console.print(part, style=style)
        return
    console = Console(width=PLAIN_WIDTH, markup=False, emoji=False, highlight=False, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    for line in capture.get().splitlines():
        print(line.rstrip())


def table_of(columns: Iterable[tuple[str, bool]]) -> Table:
    """Return an empty table with columns of (header, whether it holds numbers)."""
    lines: dict[str, Any] = {} if sys.stdout.isatty() else {"box": None}
    table = Table(show_edge=False, pad_edge=False, header_style="bold", **lines)
    for header, is_number in columns:
        table.add_column(header, justify="right" if is_number else "left", overflow="fold")
    return table


def metric_text(value: float | None) -> str:
    """Return a metric with the digits that are worth reading; "-" where there is none."""
    return "-" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def count_text(value: float | None) -> str:
    """Return a number of things."""
    return "-" if value is None else f"{value:,.0f}"


def path_text(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it, absolute otherwise."""
    absolute = Path(os.path.abspath(path))
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def value_text(value: Any) -> str:
    """Return a configuration value: numbers with four digits, long text by its end."""
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_CELL else f"...{text[3 - MAX_CELL :]}"
