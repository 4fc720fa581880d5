"""Where something lies that a command is told to read or write: checked before anything is asked or touched.

A place is a local path, `s3://bucket/key`, `oss://bucket/key`, or, for reading alone, http(s)://, hf:// or pypi://.
Keys that could lead elsewhere when they become paths (`..`, a leading or a double slash) are refused, and so is what
would change all of a bucket or of a disk.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from nlu.config.errors import UserError
from nlu.config.words import with_origins
from nlu.storage.reference import Reference, parse_reference

OBJECTS = ("s3", "oss")
READ_ONLY = ("http", "https", "hf", "pypi")


@dataclass(frozen=True)
class Place:
    """One place. `scheme` is empty for local ones; `bucket` is empty but for objects.

    `path`: an absolute local path, a key without a slash at its ends, or the reference as it was written.
    `names_folder`: it was written with a slash at its end.
    """

    scheme: str
    bucket: str
    path: str
    names_folder: bool = False

    @property
    def shown(self) -> str:
        """The place as it may stand in messages: without credentials and signed queries."""
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
        """Whether it is all of a bucket or of the disk."""
        return not self.path.strip("/")

    def within(self, relative: str) -> "Place":
        """The place of something below this one."""
        path = f"{self.path.rstrip('/')}/{relative}".lstrip("" if self.is_local else "/")
        return replace(self, path=path, names_folder=False)


def is_object(text: str | os.PathLike[str]) -> bool:
    """Whether a text names something in an object store."""
    return str(text).lower().startswith(("s3://", "s3a://", "oss://"))


def parse_place(text: str, what: str = "path", *, writes: bool = False) -> Place:
    """Read a place; `what` it is called in messages, `writes` whether it is to be written.

    Raises UserError for one that is empty, holds a secret, is of another scheme, or whose key could lead elsewhere.
    """
    reference = parse_reference(text, what)
    scheme = {"s3a": "s3", "file": ""}.get(reference.scheme, reference.scheme)
    if scheme in READ_ONLY:
        if writes:
            raise UserError(
                f"{what} is {reference.shown}, which can be read alone; write to a local path, s3:// or oss://"
            )
        return Place(scheme, "", text)
    if writes and reference.sha256 is not None:
        raise UserError(f"{what} is {reference.shown}#sha256=..., but a pin is for reading; leave it out")
    if not scheme:
        return _local(reference)
    if scheme not in OBJECTS:
        raise UserError(
            f"{what} {reference.shown} is of a scheme that is not known here; use a local path, s3://, oss:// or, for "
            "reading, http(s)://, hf:// or pypi://"
        )
    return _object(reference, scheme)


def object_reference(url: str, what: str) -> Reference:
    """Return the address of a folder of a bucket. Raises UserError for any other, `what` saying what it is for."""
    reference = parse_reference(url, what)
    bucket, _, folder = reference.location.partition("://")[2].partition("/")
    if reference.scheme not in (*OBJECTS, "s3a") or not bucket or not folder.strip("/"):
        raise UserError(
            f"{what} is {reference.shown}, which is no folder of a bucket; write s3://BUCKET/FOLDER or oss://BUCKET/FOLDER"
        )
    if set(folder) & set("*?[]#\\") or ".." in folder.split("/"):
        raise UserError(f"{what} is {reference.shown}, which has '..' or one of *?[]#\\ in it; choose another folder")
    return reference


def address_problems(url: str, what: str) -> list[str]:
    """Return what is wrong with the address of a folder of a bucket, without asking any store."""
    try:
        object_reference(url, what)
    except UserError as error:
        return list(error.problems)
    return []


def refuse_root(place: Place, action: str) -> None:
    """Raise UserError for what would change all of a bucket or of the disk."""
    if place.is_root:
        what = "a whole bucket" if place.bucket else "the whole disk"
        raise UserError(f"{place.shown} is {what}, which is never {action}; name something in it")


def _local(reference: Reference) -> Place:
    text = reference.location
    if reference.scheme:
        # It brings the whole of HTTP with it.
        from urllib.request import url2pathname

        text = url2pathname(urlsplit(text).path)
    path = os.path.abspath(Path(text).expanduser())
    return Place("", "", path, names_folder=text.endswith(("/", "/.", "/..")) or text in (".", ".."))


def _object(reference: Reference, scheme: str) -> Place:
    bucket, _, key = reference.location.partition("://")[2].partition("/")
    if not bucket:
        raise UserError(f"{reference.what} {reference.shown} names no bucket; write {scheme}://BUCKET/KEY")
    names_folder = key.endswith("/") or not key
    parts = key.removesuffix("/").split("/") if key else []
    if {"", ".", ".."} & set(parts) or "\0" in key or "\\.." in key:
        raise UserError(
            f"{reference.what} {reference.shown} has a key with '..', '.' or an empty part, which could lead out of "
            "its folder; write it without"
        )
    return Place(scheme, bucket, "/".join(parts), names_folder)
