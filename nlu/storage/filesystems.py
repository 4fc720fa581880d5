"""The file systems of remote places: s3fs, ossfs and fsspec's for http(s).

There is one for each scheme, endpoint, process and environment. Endpoints and credentials come from the environment;
OSS_ENDPOINTS gives single buckets of OSS another endpoint, so that one process uses several regions. Listings are never
remembered, since other processes write to the same folders.
"""

import logging
import os
import re
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from nlu.config.errors import UserError
from nlu.config.redaction import ENDPOINT, PLACE, PREFIXES, name_of
from nlu.storage.locations import Place

ENDPOINT_OF_ALL, OWN_ENDPOINTS = name_of("oss", ENDPOINT), name_of("oss", PLACE)
_PLACE = re.compile(r"(https?://)?[\w.-]+(:\d+)?/?")


def filesystem_of(place: Place) -> tuple[Any, str]:
    """Return the file system of a place in a bucket or on the web, and the path in it; sends no request.

    Raises UserError if the driver of the scheme is not installed, or if the endpoint of OSS is missing.
    """
    # The variables are part of the key of the cache, so that a changed endpoint or key makes a new connection.
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(PREFIXES)))
    endpoint = endpoint_of(place.bucket)[0] if place.scheme == "oss" else None
    filesystem = _connected(place.scheme, endpoint, os.getpid(), settings)
    return filesystem, f"{place.bucket}/{place.path}".rstrip("/") if place.bucket else place.path.partition("#")[0]


@lru_cache(maxsize=16)
def _connected(scheme: str, endpoint: str | None, process: int, settings: tuple[tuple[str, str], ...]) -> Any:
    """Return a driver. It is cached because it is slow to make, per process because it does not survive a fork."""
    try:
        if scheme == "s3":
            from nlu.storage.s3 import S3

            own = _oss_options(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
            # `nlu.storage.refusals.asked` retries, so the driver does not.
            config = {**own, "retries": {"total_max_attempts": 1}}
            return S3(skip_instance_cache=True, config_kwargs=config)
        if scheme != "oss":
            from nlu.storage.web import Web

            return Web(skip_instance_cache=True)
        # ossfs warns about a missing endpoint, for which an error is raised here.
        logging.getLogger("ossfs").setLevel(logging.ERROR)
        from nlu.storage.oss import Oss
    except ImportError as error:
        hint = "pip install 'nlu[oss]', or use s3:// with AWS_ENDPOINT_URL" if scheme == "oss" else "install it"
        raise UserError(f"{scheme}:// needs a package that is missing ({error}); {hint}") from error
    if not endpoint:
        raise UserError(
            f"oss:// needs an endpoint; set {ENDPOINT_OF_ALL} in the environment, or {OWN_ENDPOINTS}=BUCKET=REGION"
        )
    return Oss(endpoint=endpoint, skip_instance_cache=True)


def own_endpoints() -> dict[str, str]:
    """Return the endpoints of buckets in OSS_ENDPOINTS. Raises UserError if it cannot be read."""
    found = {}
    for entry in filter(None, map(str.strip, os.environ.get(OWN_ENDPOINTS, "").split(","))):
        bucket, _, place = map(str.strip, entry.partition("="))
        if not bucket or not _PLACE.fullmatch(place):
            raise UserError(
                f"{OWN_ENDPOINTS} holds {entry!r}, but must be written BUCKET=REGION or BUCKET=ENDPOINT with commas "
                "between several, such as data=cn-beijing,runs=https://oss-cn-hangzhou.aliyuncs.com; correct it"
            )
        if "." not in place and "://" not in place:
            place = f"https://oss-{place.removeprefix('oss-')}.aliyuncs.com"
        found[bucket] = place
    return found


def endpoint_of(bucket: str) -> tuple[str | None, str]:
    """Return the endpoint of a bucket of OSS, None if it is not set, and the variable to correct."""
    if (own := own_endpoints().get(bucket)) is not None:
        return own, OWN_ENDPOINTS
    return os.environ.get(ENDPOINT_OF_ALL) or None, ENDPOINT_OF_ALL


def _oss_options(endpoint: str) -> dict[str, object]:
    """Return botocore's options for OSS's S3-compatible endpoint, none for other endpoints.

    As Alibaba's page on S3 SDKs requires: virtual-hosted addresses, and no chunks that are signed one by one, which
    newer drivers send for checksums and for signatures of version 4.
    """
    if not (urlsplit(endpoint).hostname or "").endswith(".aliyuncs.com"):
        return {}
    return {
        "signature_version": "s3",
        "s3": {"addressing_style": "virtual"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
