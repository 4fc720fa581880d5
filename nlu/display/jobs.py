"""Progress of jobs: a live table on a terminal, a line for each event elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nlu.config.words import counted
from nlu.display.progress import console, format_time, on_terminal

REFRESHES_PER_S = 4
FIRST = ("running", "submitted", "waiting", "stopped", "failed", "cancelled", "lost", "done")
"""states in the order in which jobs are shown if the terminal is too low for all of them"""
LINES_BESIDE = 6
"""lines of a terminal above and below the table"""


@dataclass(frozen=True)
class JobRow:
    """What is shown of one job."""

    name: str = ""
    state: str = ""
    node: str = ""
    examples_per_s: float | None = None
    best: str = ""
    last_line: str = ""
    is_unfinished: bool = False
    """whether the folder holds a run without a result"""


class JobsBoard:
    """A context that shows `count` jobs until it is left."""

    def __init__(self, count: int):
        self._count, self._rows = count, list[JobRow]()
        self._began_s = time.monotonic()
        self.is_live = on_terminal()
        self._display: Live | None = None

    def __enter__(self) -> "JobsBoard":
        self._show()
        return self

    def __exit__(self, *unused: object) -> None:
        self._hide()

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line, above the table if one is shown."""
        console().print(text, style=style, soft_wrap=True)

    def event(self, text: str) -> None:
        """Print a line unless a table shows the same."""
        if not self.is_live:
            self.say(text)

    def draw(self, rows: Sequence[JobRow]) -> None:
        """Show these jobs from now on."""
        # The thread of the display reads the list at any time, so it is replaced, never changed.
        self._rows = list(rows)

    def choose(self, question: str, answers: Mapping[str, str]) -> str:
        """Ask as `choose` does, with the table hidden."""
        self._hide()
        try:
            return choose(question, answers)
        finally:
            self._show()

    def _show(self) -> None:
        if self.is_live:
            self._display = Live(
                console=console(),
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
                # rich would print a redirected standard output on this console.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._display.start()

    def _hide(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None

    def _render(self) -> RenderableType:
        states = Counter(row.state for row in self._rows)
        listed = ", ".join(f"{states[state]} {state}" for state in FIRST if states[state])
        head = (
            f"{counted(self._count, 'job')}: {listed or 'submitted'}, {format_time(time.monotonic() - self._began_s)}"
        )
        return Group(table_of_jobs(shown_rows(self._rows, console().height - LINES_BESIDE)), Text(head))


def choose(question: str, answers: Mapping[str, str]) -> str:
    """Ask on the terminal and return the first letter of the answer; empty without a terminal."""
    # Without a person at the terminal, `input` would wait forever.
    if not (on_terminal() and sys.stdin.isatty()):
        return ""
    offered = ", ".join(f"{key} = {what}" for key, what in answers.items())
    while True:
        console().print(f"{question}: {offered}? ", end="")
        try:
            answer = input().strip().lower()[:1]
        except EOFError:
            return ""
        # Any other answer is asked again.
        if answer in answers:
            return answer


def shown_rows(rows: Sequence[JobRow], most: int) -> list[JobRow]:
    """Return as many rows as fit, running jobs first, in their original order."""
    ranked = sorted(range(len(rows)), key=lambda place: (_rank(rows[place].state), place))
    # In their original order, so that lines do not jump when a state changes.
    return [rows[place] for place in sorted(ranked[: max(most, 1)])]


def _rank(state: str) -> int:
    return FIRST.index(state) if state in FIRST else len(FIRST)


def table_of_jobs(rows: Sequence[JobRow]) -> Table:
    """Return the table; the last column gets the width that the others leave."""
    table = Table(box=None, show_edge=False, pad_edge=False, header_style="bold", expand=True)
    for header in ("job", "state", "node", "examples/s", "best"):
        table.add_column(header, justify="right" if header == "examples/s" else "left", no_wrap=True)
    table.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        speed = "" if row.examples_per_s is None else f"{row.examples_per_s:,.0f}"
        table.add_row(row.name, row.state, row.node, speed, row.best, row.last_line)
    return table
