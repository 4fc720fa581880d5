"""The keys that PAI gives a process by its role: short-lived, and renewed by oss2.

PAI's containers read them from the address in `ALIBABA_CLOUD_CREDENTIALS_URI`, as Alibaba's page on RAM roles of DLC
jobs describes. Keys in the environment take precedence. Read in ossfs 2025.5: the attribute `_auth` signs its requests.
"""

import os
from typing import Any

from nlu.config.redaction import KEY, PLACE, name_of

ROLE_URI, OWN_KEY = name_of("alibaba cloud", PLACE), name_of("oss", KEY)


def sign_by_role(filesystem: Any) -> None:
    """Let a filesystem of ossfs sign with the keys of this process's role, unless variables hold keys."""
    if has_role():
        from oss2 import ProviderAuth

        filesystem._auth = ProviderAuth(role_keys())


def has_role(own_key: str = OWN_KEY) -> bool:
    """Whether the keys of this process come from its role; a key in the environment takes precedence."""
    return bool(os.environ.get(ROLE_URI)) and own_key not in os.environ


def role_keys() -> Any:
    """Return a provider of credentials for oss2 and PyODPS, which threads may share.

    It asks the platform again before the keys expire, and keeps them while the platform does not respond.
    """
    # Made for the role of an ECS instance, whose answer has the same fields.
    from oss2.credentials import EcsRamRoleCredentialsProvider

    return EcsRamRoleCredentialsProvider(os.environ[ROLE_URI])
