"""The keys that PAI gives a process by its role: short-lived, and renewed.

PAI's containers read them from the address in `ALIBABA_CLOUD_CREDENTIALS_URI`, as Alibaba's page on RAM roles of DLC
jobs describes. Keys in the environment take precedence. Read in ossfs 2025.5: the attribute `_auth` signs its requests.
"""

import calendar
import json
import os
import threading
import time
from typing import Any

from nlu.config.variables import KEY, PLACE, name_of

ROLE_URI, OWN_KEY = name_of("alibaba cloud", PLACE), name_of("oss", KEY)
TIMEOUT_S = 30
RENEWED_EARLY_S = 600.0
"""how long before their expiration keys are renewed"""
KEPT_S = 1800.0
"""how long keys without an expiration are used"""


def sign_by_role(filesystem: Any) -> None:
    """Let a filesystem of ossfs sign with the keys of this process's role, unless variables hold keys."""
    if not has_role():
        return
    from oss2 import ProviderAuth

    filesystem._auth = ProviderAuth(RoleKeys(os.environ[ROLE_URI]))


def has_role(own_key: str = OWN_KEY) -> bool:
    """Whether the keys of this process come from its role; a key in the environment takes precedence."""
    return bool(os.environ.get(ROLE_URI)) and own_key not in os.environ


class RoleKeys:
    """A provider of credentials for oss2, which may be used by several threads."""

    def __init__(self, address: str):
        self._address, self._lock = address, threading.Lock()
        self._keys: object = None
        self._expires_s = 0.0

    def get_credentials(self) -> object:
        """Return keys that have not expired. Raises OSError if all have, and the platform does not respond."""
        with self._lock:
            if time.time() > self._expires_s - RENEWED_EARLY_S:
                try:
                    self._renew()
                # Keys are renewed before they expire, so there is time for further tries.
                except OSError:
                    if time.time() > self._expires_s:
                        raise
            return self._keys

    def _renew(self) -> None:
        # urllib.request loads ssl; this module is imported at the start of every command.
        import urllib.request

        from oss2.credentials import Credentials

        with urllib.request.urlopen(self._address, timeout=TIMEOUT_S) as answer:
            given = json.load(answer)
        self._keys = Credentials(given["AccessKeyId"], given["AccessKeySecret"], given["SecurityToken"])
        if expiration := given.get("Expiration"):
            # The time is UTC, which time.mktime would take for local time.
            self._expires_s = calendar.timegm(time.strptime(expiration, "%Y-%m-%dT%H:%M:%SZ"))
        else:
            self._expires_s = time.time() + KEPT_S + RENEWED_EARLY_S
