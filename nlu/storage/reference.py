"""The written form of a reference: `LOCATION[#sha256=HEX]`, where LOCATION is a path or `scheme://...`."""

import re
from dataclasses import dataclass
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.redaction import found_in, hide, remedy

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True)
class Reference:
    """A parsed reference. `scheme` is empty for a local path; `what` says in messages what is being fetched."""

    location: str
    scheme: str
    sha256: str | None
    what: str

    @property
    def shown(self) -> str:
        """The location as it may stand in messages and on disk: without credentials and signed queries."""
        return hide(re.split("[?#]", self.location)[0] if self.scheme in {"http", "https"} else self.location)

    @property
    def name(self) -> str:
        """The last part of the location's path, or `file` where there is none."""
        name = SCHEME.sub("", self.shown).rstrip("/").rpartition("/")[2]
        return name if name.strip(".") else "file"

    def check_digest(self, path: Path, digest: str | None = None) -> None:
        """Raises DataError, with both digests, if the reference has a sha256 that is not the file's."""
        if self.sha256 is None:
            return
        if digest is None:
            # It brings locks and temporary files with it.
            from nlu.storage.cache import read_digest

            digest = read_digest(path)
        if digest != self.sha256:
            raise self.digest_error(digest)

    def digest_error(self, digest: str) -> DataError:
        """The error that says that the content has `digest` where the reference has another."""
        return DataError(
            f"{self.what} {self.shown} has sha256 {digest} but must have {self.sha256}; "
            "it is another version or damaged: correct the sha256 or the location"
        )


def parse_reference(text: str, what: str) -> Reference:
    """Splits a reference. Raises UserError for an empty one, one with a secret, a sha256 that is not 64 hex digits."""
    if found := found_in(text):
        raise UserError(f"{what} {hide(text)} holds {found[0]}; leave it out, and {remedy(text)}")
    location, mark, digest = text.partition("#sha256=")
    if not location.strip():
        raise UserError(f"the reference {text!r} of the {what} is empty; set a path or a URL")
    if mark and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise UserError(f"{what} {location}: sha256={digest} is not 64 hexadecimal digits; write #sha256=HEX in full")
    scheme = SCHEME.match(location)
    return Reference(location, scheme[1].lower() if scheme else "", digest.lower() or None, what)
