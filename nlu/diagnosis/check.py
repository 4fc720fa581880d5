"""The results of checks, printed; an error in one check does not stop the others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table
from rich.text import Text

from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.display.console_tables import print_table

Mark = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    says: str
    """the finding"""
    mark: Mark = "ok"
    """warning: may cost time or change a score; broken: prevents nlu from working"""
    remedy: str = ""
    """what to do about a warning or a broken part"""


def warning(name: str, says: str, remedy: str) -> Check:
    """Return what may cost time or change a score."""
    return Check(name, says, "warning", remedy)


def broken(name: str, says: str, remedy: str) -> Check:
    """Return what prevents nlu from working."""
    return Check(name, says, "broken", remedy)


@dataclass
class Section:
    """Checks that belong together."""

    title: str
    checks: list[Check] = field(default_factory=list)


def checked(name: str, look: Callable[[], Check | Iterable[Check]], remedy: str) -> list[Check]:
    """Return the results of `look`. An error of the system or of a library becomes a broken check with `remedy`.

    A UserError is shown with its own message.
    """
    try:
        found = look()
        return [found] if isinstance(found, Check) else list(found)
    except UserError as error:
        return [Check(name, "; ".join(error.sentences), "broken")]
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        return [broken(name, said(error), remedy)]
    except (KeyError, TypeError) as error:
        # A damaged record, or one of another version.
        return [broken(name, f"a record is damaged, or of another version ({error!r})", remedy)]


def said(error: Exception) -> str:
    """Return the first line of an error; for an error without a message, its class."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__


def is_broken(sections: Iterable[Section]) -> bool:
    """Whether anything is broken."""
    return any(check.mark == "broken" for section in sections for check in section.checks)


STYLES: dict[Mark, str] = {"ok": "green", "warning": "yellow", "broken": "bold red"}


def print_sections(sections: Sequence[Section]) -> None:
    """Print a table for each section, with a remedy below each problem, and the number of problems."""
    # One width for all tables, so that their columns stand below one another.
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
    warnings = counted(marks.count("warning"), "warning")
    print_table(f"{marks.count('broken') or 'nothing'} broken, {warnings}, {marks.count('ok')} ok")
