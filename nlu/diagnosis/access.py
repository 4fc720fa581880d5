"""Which ways in are set up for storages, hubs and services: by name and place, never by what they are.

(This file is not called after what it is about, or it would count as a file of secrets; see `nlu.storage.redaction`.)
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from nlu.diagnosis.check import Check
from nlu.storage.redaction import NAME, found_in

SERVICES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "oss": ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET"),
    "alibaba cloud": ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"),
    "MaxCompute": ("ODPS_ACCESS_ID", "ODPS_ACCESS_KEY"),
}
"""variables of which one is of no use without the other"""
ADDRESSES = ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_REGION", "OSS_ENDPOINT", "HF_ENDPOINT", "PGHOST", "PGUSER")
"""what stands beside them and is no secret"""
PREFIX = "FSSPEC_"
FILES = (
    "~/.aws/credentials", "~/.aws/config", "~/.ossutilconfig", "~/.netrc", "~/.pgpass", "~/.pg_service.conf",
    "~/.pypirc", "~/.cache/huggingface/token", "~/.alibabacloud/credentials", "~/.config/odps.conf",
    "~/.kaggle/kaggle.json",
)  # fmt: skip
READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def access(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Name what is set, and warn of a pair of which one half is missing and of files that others can read."""
    secret = sorted(name for name, value in environment.items() if value and (_is_secret(name) or found_in(value)))
    beside = sorted(name for name in ADDRESSES if environment.get(name) and name not in secret)
    yield Check("variables", ", ".join([*secret, *beside]) or "none")
    for service, pair in SERVICES.items():
        absent = [name for name in pair if not environment.get(name)]
        if len(absent) == 1:
            there = next(name for name in pair if name not in absent)
            yield Check(
                service, f"{there} is set, but {absent[0]} is not", "broken", f"set {absent[0]}, or unset {there}"
            )
    files = [(name, path) for name in FILES if (path := Path(name).expanduser()).is_file()]
    yield Check("files", ", ".join(name for name, _ in files) or "none")
    for name, path in files:
        if path.stat().st_mode & READABLE_BY_OTHERS and not name.endswith("/config"):
            yield Check(name, "other users of this machine can read it", "warning", f"chmod 600 {name}")


def _is_secret(name: str) -> bool:
    paired = any(name in pair for pair in SERVICES.values())
    return paired or name.startswith(PREFIX) or NAME.fullmatch(name) is not None
