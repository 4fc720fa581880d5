"""The archive of the code that goes to a job: the files that git tracks.

Changes that are not committed go along. A link to a file of the project is replaced by its target. Links to folders
stay here, and files whose names look secret. The same files give the same bytes and the same name, and are uploaded
once.
"""

import functools
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hydra_plugins.pai_launcher._command import ENTRY

import nlu
from nlu.config.choices import conf_dir
from nlu.config.errors import UserError
from nlu.config.redaction import is_secret_file

LARGEST_SHOWN = 5
LIMIT_MB = 100
CODE = (".py", ".yaml", ".yml")
"""endings of files that a run imports or composes"""


@dataclass(frozen=True)
class CodePackage:
    """The code of the jobs of this process, as it was when the first of them was checked."""

    content: bytes
    """a tar.gz"""
    names: frozenset[str]
    """the files that jobs find, by path within the project"""
    within: str
    """the folder in which the command was started, by path within the project"""

    @property
    def digest(self) -> str:
        """sha256 of the content, in hexadecimal digits: its name in the store."""
        return hashlib.sha256(self.content).hexdigest()


@functools.cache
def packed() -> CodePackage:
    """Return the code. It is packed once per process, so that all trials of a search run the same code.

    Raises UserError as `code_files` does, and for an archive above the limit, with its largest file.
    """
    here = Path.cwd()
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    files = {name: path.read_bytes() for name, path in sorted(code_files(top).items())}
    if untracked := [name for name in _listed(top, "--others") if name.endswith(CODE) and name not in files]:
        shown = f"{', '.join(untracked[:LARGEST_SHOWN])}{' and others' if len(untracked) > LARGEST_SHOWN else ''}"
        print(
            f"nlu: warning: jobs will not find {shown}, which git does not track: git add what they need",
            file=sys.stderr,
        )
    files[ENTRY] = Path(__file__).with_name("_entry.py").read_bytes()
    content = _tar(files)
    if len(content) > LIMIT_MB * 1e6:
        largest = max(files, key=lambda name: len(files[name]))
        raise UserError(
            f"the archive of the code has {len(content) / 1e6:.1f} MB, more than {LIMIT_MB}; the largest file is "
            f"{largest} ({len(files[largest]) / 1e6:.1f} MB); take such files out of git, and put data on the store"
        )
    return CodePackage(content, frozenset(files), Path(os.path.relpath(Path.cwd(), top)).as_posix())


def code_files(top: Path) -> dict[str, Path]:
    """Return the files that go to a job, by their names there: tracked ones, and nlu.

    Raises UserError if git does not know `top` as a checkout.
    """
    found = {name: top / name for name in _listed(top, "--cached", "--recurse-submodules") if _goes(top, name)}
    if not any(name.startswith("nlu/") for name in found):
        # The project uses an installed nlu; jobs get the same one.
        package, conf = Path(nlu.__file__).resolve().parent, conf_dir().resolve()
        found |= {f"nlu/{name}": path for name, path in _files_of(package)}
        if conf.parent != package:
            # In a checkout the folder conf lies beside the package.
            found |= {f"conf/{name}": path for name, path in _files_of(conf)}
    return found


def is_secret(name: str) -> bool:
    """Whether a part of a path looks like the name of a secret."""
    return any(map(is_secret_file, Path(name).parts))


def _goes(top: Path, name: str) -> bool:
    """Whether a tracked name is a file, or a link to one in the project, and neither looks secret."""
    target, root = (top / name).resolve(), top.resolve()
    within = target.is_file() and target.is_relative_to(root)
    return within and not is_secret(name) and not is_secret(target.relative_to(root).as_posix())


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        is_ours = path.is_file() and not path.is_symlink()
        if is_ours and not any(part == "__pycache__" or part.startswith(".git") for part in inner.parts):
            yield inner.as_posix(), path


def _listed(top: Path, *which: str) -> list[str]:
    command = ["git", "-C", str(top), "ls-files", "-z", "--exclude-standard", *which]
    try:
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UserError(f"git is not installed ({error}), but it lists the files of the code; install it") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise UserError(
            f"{top} is not a checkout of git ({reason[-1] if reason else 'no reason given'}), which lists the files of "
            f"the code; start in the folder of your project, after git init and git add"
        )
    # git prints names as bytes, which need not be UTF-8.
    return [name.decode(errors="surrogateescape") for name in done.stdout.split(b"\0") if name]


def _tar(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with (
        # Without the time and a file name in the header, so that the same files give the same bytes.
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()
