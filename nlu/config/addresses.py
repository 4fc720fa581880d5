"""Addresses as a user writes them: `LOCATION[#sha256=HEX]`, where LOCATION is a path or `scheme://...`."""

import os
import re
from dataclasses import dataclass

from nlu.config.errors import DataError, UserError
from nlu.config.redaction import found_in, hide, remedy

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
OBJECTS = ("s3", "oss")


@dataclass(frozen=True)
class Reference:
    """A parsed reference. `scheme` is empty for a local path; messages call what is fetched `what`."""

    location: str
    scheme: str
    sha256: str | None
    what: str

    @property
    def shown(self) -> str:
        """The location for messages and files, without credentials and signed queries."""
        return hide(re.split("[?#]", self.location)[0] if self.scheme in {"http", "https"} else self.location)

    @property
    def name(self) -> str:
        """The last part of the location's path, `file` if it has none."""
        name = SCHEME.sub("", self.shown).rstrip("/").rpartition("/")[2]
        return name if name.strip(".") else "file"

    def digest_error(self, digest: str) -> DataError:
        """Return the error for content whose sha256 is `digest` instead of that of this reference."""
        return DataError(
            f"{self.what} {self.shown} has sha256 {digest} but must have {self.sha256}; "
            "it is another version or damaged: correct the sha256 or the location"
        )


def parse_reference(text: str, what: str) -> Reference:
    """Parse a reference. Raises UserError if it is empty, contains a secret or has a sha256 without 64 hex digits."""
    if found := found_in(text):
        raise UserError(f"{what} {hide(text)} holds {found}; leave it out, and {remedy(text)}")
    location, mark, digest = text.partition("#sha256=")
    if not location.strip():
        raise UserError(f"the reference {text!r} of the {what} is empty; set a path or a URL")
    if mark and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise UserError(f"{what} {location}: sha256={digest} is not 64 hexadecimal digits; write #sha256=HEX in full")
    scheme = SCHEME.match(location)
    return Reference(location, scheme[1].lower() if scheme else "", digest.lower() or None, what)


def is_object(text: str | os.PathLike[str]) -> bool:
    """Return whether a text is the address of an object or of a folder in a bucket."""
    return str(text).lower().startswith(("s3://", "s3a://", "oss://"))


def object_reference(url: str, what: str) -> Reference:
    """Parse the address of a folder in a bucket, which messages call `what`. Raises UserError for any other address."""
    reference = parse_reference(url, what)
    bucket, _, folder = reference.location.partition("://")[2].partition("/")
    if reference.scheme not in (*OBJECTS, "s3a") or not bucket or not folder.strip("/"):
        raise UserError(
            f"{what} is {reference.shown}, which is not a folder in a bucket; write s3://BUCKET/FOLDER or oss://BUCKET/FOLDER"
        )
    if set(folder) & set("*?[]#\\") or ".." in folder.split("/"):
        raise UserError(f"{what} is {reference.shown}, which has '..' or one of *?[]#\\ in it; choose another folder")
    return reference


def address_problems(url: str, what: str) -> list[str]:
    """Return the problems of an address of a folder in a bucket; sends no request."""
    try:
        object_reference(url, what)
    except UserError as error:
        return list(error.problems)
    return []
