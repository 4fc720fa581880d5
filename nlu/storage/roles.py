"""Keys that a platform gives a process by its role, short-lived and renewed: PAI's containers have them at an address.

`ALIBABA_CLOUD_CREDENTIALS_URI` is that address, after Alibaba's page on RAM roles of DLC jobs; keys that the
environment has of its own stand above it. Read in ossfs 2025.5: what signs its requests is its attribute `_auth`.
"""

import calendar
import json
import os
import threading
import time
import urllib.request
from typing import Any

from nlu.storage.environment import KEY, PLACE, name_of

URI, OWN_KEY = name_of("alibaba cloud", PLACE), name_of("oss", KEY)
TIMEOUT_S = 30
EARLY_S = 600.0
"""how long before they expire keys are asked for anew"""
HELD_S = 1800.0
"""how long keys are used that do not say when they expire"""


def sign_by_role(filesystem: Any) -> None:
    """Have a filesystem of ossfs sign by the keys of this process's role, if it has one and no keys of its own."""
    if not has_role():
        return
    from oss2 import ProviderAuth

    filesystem._auth = ProviderAuth(RoleKeys(os.environ[URI]))


def has_role() -> bool:
    """Whether the keys of this process come from its role."""
    return bool(os.environ.get(URI)) and OWN_KEY not in os.environ


class RoleKeys:
    """What oss2 calls a provider of credentials. Several threads may ask."""

    def __init__(self, address: str):
        self._address, self._lock = address, threading.Lock()
        self._known: Any = None
        self._until_s = 0.0

    def get_credentials(self) -> Any:
        """Return the keys that hold now. Raises OSError where the platform does not answer and none hold any more."""
        from oss2.credentials import Credentials

        with self._lock:
            if time.time() > self._until_s - EARLY_S:
                try:
                    given = self._ask()
                except OSError:
                    if time.time() > self._until_s:
                        raise
                    return self._known
                self._known = Credentials(given["AccessKeyId"], given["AccessKeySecret"], given["SecurityToken"])
                self._until_s = _seconds(given.get("Expiration")) or time.time() + HELD_S + EARLY_S
            return self._known

    def _ask(self) -> dict[str, str]:
        with urllib.request.urlopen(self._address, timeout=TIMEOUT_S) as answer:
            return json.load(answer)


def _seconds(text: str | None) -> float | None:
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) if text else None
