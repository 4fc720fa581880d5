"""Credentials for storages, hubs and services: the names of variables and files, never their values.

(A file named after credentials would count as a file of secrets; see `nlu.storage.redaction`.)
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from nlu.diagnosis.check import Check
from nlu.storage.environment import VARIABLES, pairs
from nlu.storage.redaction import found_in, is_secret_name

PREFIX = "FSSPEC_"
"""the prefix of variables that fsspec reads for any driver"""
FILES = (
    "~/.aws/credentials", "~/.aws/config", "~/.ossutilconfig", "~/.netrc", "~/.pgpass", "~/.pg_service.conf",
    "~/.pypirc", "~/.cache/huggingface/token", "~/.alibabacloud/credentials", "~/.config/odps.conf",
    "~/.kaggle/kaggle.json",
)  # fmt: skip
READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def access(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """List what is set, and warn about incomplete pairs of variables and about files that other users can read."""
    secret = sorted(name for name, value in environment.items() if value and (_is_listed(name) or found_in(value)))
    beside = sorted(one.name for one in VARIABLES if environment.get(one.name) and one.name not in secret)
    yield Check("variables", ", ".join([*secret, *beside]) or "none")
    for service, *pair in pairs():
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


def _is_listed(name: str) -> bool:
    return name.startswith(PREFIX) or is_secret_name(name)
