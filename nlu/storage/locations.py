"""Addresses that a command reads or writes: their written form, and the checks before anything is read or written.

A reference is `LOCATION[#sha256=HEX]`, where LOCATION is a path or `scheme://...`. A place is a location whose scheme
and key were checked: a local path, `s3://bucket/key`, `oss://bucket/key`, or, read-only, http(s)://, hf:// or pypi://.
Keys that could lead elsewhere when they become paths (`..`, a leading or a double slash) are refused, as is an action
on a whole bucket or disk.

A local path in the group `data` of a configuration means a file in the working folder or else in the folder of data
sets (`named_file`, `files_like`).
"""

import os
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import urlsplit

from nlu.config.addresses import OBJECTS, Reference, parse_reference
from nlu.config.errors import UserError
from nlu.config.sentences import with_origins
from nlu.storage.files import read_digest

READ_ONLY = ("http", "https", "hf", "pypi")
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz", ".zip": "zip"}
"""suffixes of compressed files, and how they are compressed"""
BEGUN = ".begun"
"""an object in a folder of a bucket until all of its files are there"""
DEFAULT_DATA_FOLDER = "../shared/data"


def check_digest(reference: Reference, path: Path, digest: str | None = None) -> None:
    """Raise DataError, with both digests, unless the file has the sha256 of the reference, if there is one."""
    if reference.sha256 is None:
        return
    digest = digest or read_digest(path)
    if digest != reference.sha256:
        raise reference.digest_error(digest)


@dataclass(frozen=True)
class Place:
    """One place. `scheme` is empty for a local one; `bucket` is empty except in a bucket.

    `path` is an absolute local path, a key without a slash at either end, or the reference as it was written.
    `names_folder` says that it was written with a slash at the end.
    """

    scheme: str
    bucket: str
    path: str
    names_folder: bool = False

    @property
    def shown(self) -> str:
        """The place for messages, without credentials and signed queries."""
        if self.bucket:
            return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")
        return Reference(self.path, self.scheme, None, "").shown if self.scheme else with_origins(self.path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        if self.scheme in READ_ONLY:
            return Reference(self.path.partition("#sha256=")[0], self.scheme, None, "").name
        return self.path.rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        return not self.scheme

    @property
    def is_root(self) -> bool:
        """Whether it is a whole bucket or disk."""
        return not self.path.strip("/")

    def within(self, relative: str) -> "Place":
        """Return the place of a relative path below this one."""
        path = f"{self.path.rstrip('/')}/{relative}".lstrip("" if self.is_local else "/")
        return replace(self, path=path, names_folder=False)


def parse_place(text: str, what: str = "path", *, writes: bool = False) -> Place:
    """Parse a place, which messages call `what`; `writes` says that it is to be written.

    Raises UserError if it is empty, contains a secret, has an unknown scheme or a key that could lead elsewhere, and
    if it is read-only but to be written.
    """
    reference = parse_reference(text, what)
    scheme = {"s3a": "s3", "file": ""}.get(reference.scheme, reference.scheme)
    if scheme in READ_ONLY:
        if writes:
            raise UserError(f"{what} is {reference.shown}, which is read-only; write to a local path, s3:// or oss://")
        return Place(scheme, "", text)
    if writes and reference.sha256 is not None:
        raise UserError(f"{what} is {reference.shown}#sha256=..., but a pin is for reading; leave it out")
    if not scheme:
        return _local(reference)
    if scheme not in OBJECTS:
        raise UserError(
            f"{what} {reference.shown} has an unknown scheme; use a local path, s3://, oss:// or, for "
            "reading, http(s)://, hf:// or pypi://"
        )
    return _object(reference, scheme)


def refuse_root(place: Place, action: str) -> None:
    """Raise UserError if an action would change a whole bucket or disk."""
    if place.is_root:
        what = "a whole bucket" if place.bucket else "the whole disk"
        raise UserError(f"{place.shown} is {what}, which is never {action}; name something in it")


def local_path(reference: Reference) -> Path:
    """Return the path of a local reference, which may be written as file://..."""
    text = reference.location
    if reference.scheme:
        # It loads http, which is slow to import, and this module is imported at the start of every command.
        from urllib.request import url2pathname

        text = url2pathname(urlsplit(text).path)
    return Path(text).expanduser()


def _local(reference: Reference) -> Place:
    text = reference.location
    names_folder = text.endswith(("/", "/.", "/..")) or text in (".", "..")
    # Not resolved: a link stays the place that the user named.
    return Place("", "", os.path.abspath(local_path(reference)), names_folder)


def _object(reference: Reference, scheme: str) -> Place:
    bucket, _, key = reference.location.partition("://")[2].partition("/")
    if not bucket:
        raise UserError(f"{reference.what} {reference.shown} does not name a bucket; write {scheme}://BUCKET/KEY")
    names_folder = key.endswith("/") or not key
    parts = key.removesuffix("/").split("/") if key else []
    if {"", ".", ".."} & set(parts) or "\0" in key or "\\.." in key:
        raise UserError(
            f"{reference.what} {reference.shown} has a key with '..', '.' or an empty part, which could lead out of "
            "its folder; write it without"
        )
    return Place(scheme, bucket, "/".join(parts), names_folder)


def plain_name(name: str) -> str:
    """Return the name of a file, or of its path, without the suffix of a compression."""
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and f"{dot}{suffix}".lower() in COMPRESSED else name


def data_folder() -> Path:
    """Return the folder of data sets: $NLU_DATA, or the default."""
    return Path(os.environ.get("NLU_DATA", DEFAULT_DATA_FOLDER)).expanduser()


def is_pattern(reference: str) -> bool:
    """Return whether a path is a pattern for several files (`split*`), and not the name of an existing file."""
    return has_magic(reference) and "://" not in reference and not Path(reference).expanduser().is_file()


def files_like(pattern: str) -> list[Path]:
    """Return the files that match, sorted by name: those in the working folder or, if none, in `data_folder`."""
    for folder in (Path(), data_folder()):
        names = glob(str(folder / Path(pattern).expanduser()), recursive=True)
        found = sorted(path for path in map(Path, names) if path.is_file())
        if found:
            return found
    return []


def named_file(reference: str) -> Path | None:
    """Return the file that a path names, in the working folder or else in `data_folder`; None if neither has it."""
    places = (Path(reference).expanduser(), data_folder() / reference)
    return next((path for path in places if path.is_file()), None)


def path_problem(key: str, reference: str) -> str | None:
    """Return why a path names no file of this machine, with rule and remedy; None if it does.

    `key` is empty for an argument of a command, which is unnamed.
    """
    folder = data_folder()
    subject, remedy = (f"{key} is {reference!r}, which", f"set {key} to") if key else (repr(reference), "give")
    if is_pattern(reference):
        matched = "no file matches" if key else "matches no file"
        missing = f"{subject} {matched} here or in {folder} (NLU_DATA); correct {key or 'it'}"
        return None if files_like(reference) else missing
    if named_file(reference) is not None:
        return None
    if any(path.is_dir() for path in (Path(reference).expanduser(), folder / reference)):
        return f"{subject} is a folder; {remedy} a file in it"
    return f"{subject} does not exist here or in {folder} (NLU_DATA); {remedy} a file or URL"
