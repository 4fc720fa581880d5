"""The keys of an Alibaba Cloud account: from the environment only, and in nothing that is shown."""

import os
from dataclasses import dataclass, field

from nlu.config.errors import UserError
from nlu.storage.environment import name_of
from nlu.storage.redaction import HIDDEN, hide

ID, SECRET, TOKEN = (name_of("alibaba cloud", role) for role in ("key", "secret", "token"))


@dataclass(frozen=True)
class Credentials:
    """What signs requests; `repr` does not tell it."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    def hidden(self, text: str) -> str:
        """Return a text of the service without these keys, whatever it repeats of them."""
        for value in (self.secret, self.token, self.id):
            if value:
                text = text.replace(value, HIDDEN)
        return hide(text)


def from_environment() -> Credentials:
    """Return the keys of the environment. Raises UserError that names every variable that is not set."""
    if absent := [name for name in (ID, SECRET) if not os.environ.get(name)]:
        raise UserError(
            f"hydra/launcher=pai signs its requests, but {' and '.join(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} not set; set {'it' if len(absent) == 1 else 'them'} in the "
            "environment, and in no configuration"
        )
    return Credentials(os.environ[ID], os.environ[SECRET], os.environ.get(TOKEN))


def refused() -> str:
    """Return what to say where the service knows no such key, or where a signature is wrong."""
    return f"the service does not take the keys of {ID} and {SECRET}; correct these variables"
