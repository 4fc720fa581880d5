"""The variables of the environment with endpoints and credentials, which drivers, errors and redaction name.

`_fetch.py` of the launcher for PAI cannot read this table, since it runs before nlu is installed.
"""

from collections.abc import Mapping

KEY, SECRET, TOKEN, ENDPOINT, PLACE = "key", "secret", "token", "endpoint", "place"
"""the purpose of a variable; the first three are secrets, the others are addresses or names"""
_NAMES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        KEY: "AWS_ACCESS_KEY_ID",
        SECRET: "AWS_SECRET_ACCESS_KEY",
        TOKEN: "AWS_SESSION_TOKEN",
        ENDPOINT: "AWS_ENDPOINT_URL",
    },
    "oss": {
        KEY: "FSSPEC_OSS_KEY",
        SECRET: "FSSPEC_OSS_SECRET",
        TOKEN: "FSSPEC_OSS_TOKEN",
        ENDPOINT: "OSS_ENDPOINT",
        PLACE: "OSS_ENDPOINTS",
    },
    "alibaba cloud": {
        KEY: "ALIBABA_CLOUD_ACCESS_KEY_ID",
        SECRET: "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
        TOKEN: "ALIBABA_CLOUD_SECURITY_TOKEN",
        PLACE: "ALIBABA_CLOUD_CREDENTIALS_URI",
    },
    "maxcompute": {ENDPOINT: "ODPS_ENDPOINT", PLACE: "ODPS_TUNNEL_ENDPOINT"},
    "hugging face": {ENDPOINT: "HF_ENDPOINT"},
    "postgresql": {SECRET: "PGPASSWORD"},
    "nlu.serve": {TOKEN: "NLU_SERVE_TOKEN"},
}
PREFIXES = ("AWS_", "OSS_", "FSSPEC_", "ALIBABA_CLOUD_")
"""of all variables that the drivers of object stores read"""


def name_of(service: str, role: str) -> str:
    """Return the variable that a service reads for this role."""
    return _NAMES[service][role]


def credentials_of(service: str) -> list[str]:
    """Return the variables with the credentials of a service; [] for an unknown one."""
    return [name for role, name in _NAMES.get(service, {}).items() if role in (KEY, SECRET)]
