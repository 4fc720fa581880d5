"""Connections of fsspec to object stores and other servers; endpoints and credentials come from the environment."""

import logging
import os
import threading
from typing import Any
from urllib.parse import urlsplit

from nlu.config.errors import UserError
from nlu.storage.environment import sign_by_role
from nlu.storage.places import Reference


def connect(reference: Reference, **options: Any) -> tuple[Any, str]:
    """A filesystem of fsspec that no other caller shares, and the location's path in it.

    `options` go to the driver. Raises UserError for a scheme that is not known or whose package is missing.
    """
    import fsspec

    if reference.scheme in {"s3", "s3a", "oss"}:
        options = {"use_listings_cache": False, **options}
    if reference.scheme in {"s3", "s3a"}:
        own = compatible(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
        options = {**options, "config_kwargs": {**own, **options.get("config_kwargs", {})}}
    # Without an endpoint it warns of what is refused here in a sentence.
    logging.getLogger("ossfs").setLevel(logging.ERROR)
    try:
        filesystem, path = fsspec.url_to_fs(reference.location, skip_instance_cache=True, **options)
    except ImportError as error:
        of_oss = "pip install 'nlu[oss]', or use s3:// with AWS_ENDPOINT_URL"
        hint = of_oss if reference.scheme == "oss" else "install it"
        raise UserError(
            f"{reference.what} {reference.shown} needs a package that is missing ({error}); {hint}"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{reference.what} {reference.shown}: {error}; use a path, http(s)://, s3://, pypi://, hf:// "
            "or another scheme of fsspec"
        ) from error
    if reference.scheme == "oss":
        filesystem.dircache = ReadOnce()
        sign_by_role(filesystem)
    return filesystem, path


class ReadOnce(dict):
    """A cache of listings that forgets each once it was read, by the thread that made it.

    ossfs (2025.5) reads what it lists out of its cache, and with the cache turned off every listing is an error.
    """

    def __contains__(self, key: object) -> bool:
        return False

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((threading.get_ident(), key), value)

    def __getitem__(self, key: Any) -> Any:
        return self.pop((threading.get_ident(), key))


def compatible(endpoint: str) -> dict[str, Any]:
    """How the driver is to speak to an endpoint of OSS that understands S3; nothing for others.

    From Alibaba's page on access by SDKs of S3: the bucket in the host's name, and no chunks that are signed one by
    one, which newer drivers send with their checksums, and with signatures of version 4.
    """
    if not (urlsplit(endpoint).hostname or "").endswith(".aliyuncs.com"):
        return {}
    return {
        "signature_version": "s3",
        "s3": {"addressing_style": "virtual"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
