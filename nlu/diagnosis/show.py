"""Print the results of checks."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from nlu.config.words import counted
from nlu.diagnosis.check import Mark, Section
from nlu.display.tables import print_table

STYLES: dict[Mark, str] = {"ok": "green", "warning": "yellow", "broken": "bold red"}


def print_sections(sections: Sequence[Section]) -> None:
    """Print a table for each section, with a remedy below each problem, and the number of problems."""
    width = max(len(check.name) for section in sections for check in section.checks)
    for section in sections:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(width=len("warning"))
        table.add_column(width=width, overflow="fold")
        table.add_column(overflow="fold")
        for check in section.checks:
            style = STYLES[check.mark]
            table.add_row(Text(check.mark, style), check.name, check.says)
            if check.remedy:
                table.add_row("", "", Text(f"-> {check.remedy}", style))
        print_table(Text(section.title, "bold"), table, "")
    marks = [check.mark for section in sections for check in section.checks]
    broken, warnings = marks.count("broken"), marks.count("warning")
    print_table(f"{broken or 'nothing'} broken, {counted(warnings, 'warning')}, {marks.count('ok')} ok")
