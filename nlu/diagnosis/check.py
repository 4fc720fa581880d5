"""What doctor says of one thing, and what keeps a check that fails from taking the others along."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from nlu.config.errors import UserError

Mark = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    says: str
    """what was found"""
    mark: Mark = "ok"
    """warning: it costs time, or may change a score; broken: it keeps nlu from working"""
    remedy: str = ""
    """what to do about a warning or what is broken"""


@dataclass
class Section:
    """Checks that belong together."""

    title: str
    checks: list[Check] = field(default_factory=list)


def checked(name: str, look: Callable[[], Check | Iterable[Check]], remedy: str) -> list[Check]:
    """Return what `look` found; what the system or a library refuses is itself a finding, with this remedy.

    What a user must mend is told as it tells itself.
    """
    try:
        found = look()
        return [found] if isinstance(found, Check) else list(found)
    except UserError as error:
        return [Check(name, "; ".join(error.sentences), "broken")]
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        return [Check(name, said(error), "broken", remedy)]
    except (KeyError, TypeError) as error:
        # A record that was damaged, or left by a version that wrote other ones.
        return [Check(name, f"a record of it lacks what is read from it ({error!r})", "broken", remedy)]


def said(error: Exception) -> str:
    """Return the first line of what an error says; of one without words its kind."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__


def is_broken(sections: Iterable[Section]) -> bool:
    """Whether anything is broken."""
    return any(check.mark == "broken" for section in sections for check in section.checks)


def as_records(sections: Iterable[Section]) -> list[dict[str, Any]]:
    """Return the sections as JSON holds them."""
    return [{"section": section.title, "checks": [vars(check) for check in section.checks]} for section in sections]
