"""Requests to a service of PAI: the keys that sign them, and how they fail."""

import importlib
import os
import re

from nlu.config.errors import Temporary, UserError
from nlu.config.redaction import HIDDEN, hide, name_of
from nlu.storage.temporary import Pauses

ID, SECRET, TOKEN = (name_of("alibaba cloud", role) for role in ("key", "secret", "token"))
PAUSES_S = Pauses(0.5, 20.0, 6)
"""between the attempts at a request that may be repeated"""
FULL_STATUSES = (408, 429)
BUGS = (TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError)
"""errors that a bug of this package raises, never the service"""


class ServiceAway(OSError, Temporary):
    """The service does not answer, or has too many requests; it may have carried the request out."""


class RequestRefused(UserError):
    """The service read a request and refuses it. `status` is that of HTTP."""

    def __init__(self, sentence: str, status: int | None = None):
        self.status = status
        super().__init__(sentence)


def absent_keys() -> list[str]:
    """Return a problem for each variable that is not set, and without which requests cannot be signed."""
    absent = [name for name in (ID, SECRET) if not os.environ.get(name)]
    return [f"{name} is not set; it signs requests to PAI; set it in the environment" for name in absent]


class Credentials:
    """The keys of the environment, which sign requests."""

    def __init__(self) -> None:
        self.id, self.secret, self.token = os.environ[ID], os.environ[SECRET], os.environ.get(TOKEN)

    def hidden(self, text: str) -> str:
        """Return a text of the service without these keys, which it may repeat."""
        for value in (self.secret, self.token, self.id):
            if value:
                text = text.replace(value, HIDDEN)
        return hide(text)

    def failure(self, what: str, message: str, code: str, status: int | None, *, is_overload: bool) -> Exception:
        """Return the error for a failed request: ServiceAway or RequestRefused, in one sentence without keys."""
        said = " ".join(self.hidden(message).split())[:500]
        if status is None or status >= 500 or status in FULL_STATUSES or is_overload:
            return ServiceAway(f"{what}: {said if status is not None else f'no answer ({said})'}")
        # Said in our words: the service's own message is about signatures, and may repeat a key.
        if status in (401, 403) and re.search("Signature|AccessKey|AccessId", f"{code} {said}"):
            return RequestRefused(f"{what}: {keys_refused(code)}", status)
        remedy = "" if status == 404 else "; correct what hydra.launcher sets"
        return RequestRefused(f"{what}: {said}{remedy}", status)


def keys_refused(said: str) -> str:
    """Return the message for unknown keys and wrong signatures."""
    return f"the service does not accept the keys of {ID} and {SECRET} ({said}); correct these variables"


def import_or_say(module: str, package: str, what: str) -> None:
    """Import a package of the extra `pai`. Raises UserError with the command that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{what} needs the package {package}, which is not installed ({error}); pip install {package}, or "
            "pip install 'nlu[pai]'"
        ) from None
