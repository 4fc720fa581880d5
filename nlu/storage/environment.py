"""Where endpoints and credentials come from: variables of the environment, and the keys that PAI gives a process.

`VARIABLES` is the only table of such names. Drivers, errors and redaction (`nlu.storage.redaction`) read it.
`_fetch.py` of the launcher for PAI cannot, since it runs before nlu is installed; a test compares the two.

Keys by role are short-lived and renewed. PAI's containers read them from the address in
`ALIBABA_CLOUD_CREDENTIALS_URI`, as Alibaba's page on RAM roles of DLC jobs describes. Keys in the environment take
precedence. Read in ossfs 2025.5: the attribute `_auth` signs its requests.
"""

import calendar
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY, SECRET, TOKEN, ENDPOINT, PLACE = "key", "secret", "token", "endpoint", "place"
"""the purpose of a variable; the first three are secrets, the others are addresses or names"""


@dataclass(frozen=True)
class Variable:
    """One variable of the environment."""

    name: str
    service: str
    role: str

    @property
    def is_secret(self) -> bool:
        """Whether its value must never be shown."""
        return self.role in (KEY, SECRET, TOKEN)


_SERVICES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_SESSION_TOKEN", TOKEN),
        ("AWS_ENDPOINT_URL", ENDPOINT), ("AWS_ENDPOINT_URL_S3", ENDPOINT), ("AWS_PROFILE", PLACE),
        ("AWS_DEFAULT_REGION", PLACE),
    ),
    "oss": (
        ("FSSPEC_OSS_KEY", KEY), ("FSSPEC_OSS_SECRET", SECRET), ("FSSPEC_OSS_TOKEN", TOKEN), ("OSS_ENDPOINT", ENDPOINT),
        ("OSS_ENDPOINTS", PLACE),
    ),
    "alibaba cloud": (
        ("ALIBABA_CLOUD_ACCESS_KEY_ID", KEY), ("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET),
        ("ALIBABA_CLOUD_SECURITY_TOKEN", TOKEN), ("ALIBABA_CLOUD_CREDENTIALS_URI", PLACE),
    ),
    "maxcompute": (("ODPS_ENDPOINT", ENDPOINT), ("ODPS_TUNNEL_ENDPOINT", PLACE)),
    "hugging face": (("HF_TOKEN", TOKEN), ("HUGGING_FACE_HUB_TOKEN", TOKEN), ("HF_ENDPOINT", ENDPOINT)),
    "github": (("GITHUB_TOKEN", TOKEN), ("GH_TOKEN", TOKEN)),
    "wandb": (("WANDB_API_KEY", SECRET), ("WANDB_BASE_URL", ENDPOINT)),
    "mlflow": (
        ("MLFLOW_TRACKING_PASSWORD", SECRET), ("MLFLOW_TRACKING_TOKEN", TOKEN), ("MLFLOW_TRACKING_URI", ENDPOINT),
        ("MLFLOW_TRACKING_USERNAME", PLACE),
    ),
    "postgresql": (
        ("PGPASSWORD", SECRET), ("PGPASSFILE", PLACE), ("PGSERVICEFILE", PLACE), ("PGHOST", ENDPOINT),
        ("PGUSER", PLACE),
    ),
    "nlu.serve": (("NLU_SERVE_TOKEN", TOKEN),),
}  # fmt: skip
VARIABLES = tuple(Variable(name, service, role) for service, own in _SERVICES.items() for name, role in own)
SECRET_NAMES = frozenset(variable.name.lower() for variable in VARIABLES if variable.is_secret)
"""in lower case"""
PREFIXES = ("AWS_", "OSS_", "FSSPEC_", "ALIBABA_CLOUD_")
"""of all variables that the drivers of object stores read"""


def name_of(service: str, role: str) -> str:
    """Return the first variable that a service reads for this role."""
    return next(variable.name for variable in VARIABLES if (variable.service, variable.role) == (service, role))


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
