"""The result of a check, and running checks so that an error in one does not stop the others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from nlu.config.errors import UserError

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
        return [Check(name, said(error), "broken", remedy)]
    except (KeyError, TypeError) as error:
        # A damaged record, or one of another version.
        return [Check(name, f"a record is damaged, or of another version ({error!r})", "broken", remedy)]


def said(error: Exception) -> str:
    """Return the first line of an error; for an error without a message, its class."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__


def is_broken(sections: Iterable[Section]) -> bool:
    """Whether anything is broken."""
    return any(check.mark == "broken" for section in sections for check in section.checks)


def as_records(sections: Iterable[Section]) -> list[dict[str, Any]]:
    """Return the sections as JSON holds them."""
    return [{"section": section.title, "checks": [vars(check) for check in section.checks]} for section in sections]
