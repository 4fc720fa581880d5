"""The provenance of a run: its command, code and machine, written before the first step.

A result is useful only if it can be traced to the code that produced it. Secrets are never stored: the environment is
not written, and files and settings with names of secrets are omitted.
"""

import datetime
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nlu
from nlu.config.errors import DataError, UserError
from nlu.config.redaction import command_text, hide_keys, hide_setting, is_secret_file
from nlu.storage.files import write_bytes, write_json, write_text

DISTRIBUTIONS = ("torch", "numpy", "tokenizers", "pyarrow", "safetensors", "hydra-core")
MAX_DIFF_LENGTH = 200_000
MAX_FILE_BYTES = 1_000_000
MAX_TEXT_BYTES = 100_000
GIT_TIMEOUT_S = 20
SNAPSHOT_SUFFIXES = frozenset({".py", ".yaml", ".yml", ".cfg", ".toml", ".md"})
SNAPSHOT_TEXT_SUFFIXES = frozenset({".txt", ".json"})
"""packed only up to MAX_TEXT_BYTES; larger ones are data"""
RUN_FOLDER_FILE = "provenance.json"
DROPPED_OVERRIDE = re.compile(r"[+~]*(hydra\.run\.dir|hydra\.sweep(\..*)?|mirror|resume|take|dry_run)")


def write_provenance(
    run_dir: Path,
    config: Mapping[str, object],
    *,
    devices: Sequence[str],
    world_size: int,
    speeds: Mapping[str, float] | None = None,
) -> None:
    """Append this start to `provenance.json`, which is `{"starts": [first start, each resume, ...]}`.

    `speeds`: GFLOP/s by number format, if precision=auto measured them. Earlier entries are not changed. Raises
    DataError if the file exists but has another form.
    """
    starts = [*starts_of(run_dir), _describe_start(config, devices, world_size) | {"gflops": dict(speeds or {})}]
    write_json(run_dir / RUN_FOLDER_FILE, {"starts": starts})


def write_overrides(run_dir: Path, overrides: Iterable[str]) -> Path:
    """Write the file `overrides`, one quoted override per line, for `xargs -a overrides python -m nlu.train`.

    The location of the run (hydra.run.dir, hydra.sweep, mirror), resume, take and dry_run are omitted.
    A secret value becomes ***.
    """
    kept = [override for override in overrides if not DROPPED_OVERRIDE.fullmatch(override.partition("=")[0])]
    path = run_dir / "overrides"
    write_text(path, "".join(_xargs_quote(hide_setting(override)) + "\n" for override in kept))
    return path


def snapshot_code(run_dir: Path, trusted_packages: Sequence[str] = ()) -> Path:
    """Pack the running code into `code.zip`: nlu, its conf and trusted packages.

    The same code gives the same bytes. An earlier snapshot is kept, and different code is packed as `code-2.zip`, ....
    Only small source and configuration files are packed, without links, hidden folders, run folders and files with
    names of secrets. Raises UserError if a trusted package cannot be found.
    """
    sources = dict(_snapshot_sources(run_dir.resolve(), trusted_packages))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(sources):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            # Date, system and permissions are constants, so that the same code gives the same bytes.
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            # A run waits for this before its first step; the default level would save only a tenth of the bytes.
            archive.writestr(entry, sources[name].read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=1)
    number, path = 1, run_dir / "code.zip"
    while path.exists() and path.read_bytes() != content.getvalue():
        number += 1
        path = run_dir / f"code-{number}.zip"
    if not path.exists():
        write_bytes(path, content.getvalue())
    return path


def code_changes(run_dir: Path, trusted_packages: Sequence[str] = ()) -> dict[Path, dict[str, str]]:
    """Return, for each snapshot of a run's code, oldest first, the modules that differ now: `{name: change}`.

    A change is "changed", "added" or "gone". Raises DataError if a snapshot is damaged, UserError if a trusted package
    cannot be found.
    """
    now = {
        name: source.read_bytes()
        for name, source in _snapshot_sources(run_dir.resolve(), trusted_packages)
        if name.endswith(".py")
    }
    found = {}
    for path in sorted(run_dir.glob("code*.zip"), key=lambda path: (len(path.name), path.name)):
        try:
            with zipfile.ZipFile(path) as archive:
                then = {name: archive.read(name) for name in archive.namelist() if name.endswith(".py")}
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} is damaged ({error}), so the code of the run is unknown") from error
        found[path] = {
            name: "added" if name not in then else "gone" if name not in now else "changed"
            for name in sorted(then.keys() | now.keys())
            if then.get(name) != now.get(name)
        }
    return found


def starts_of(run_dir: Path) -> list[Any]:
    """Return the recorded starts of a run, oldest first. Raises DataError if provenance.json has another form."""
    path = run_dir / RUN_FOLDER_FILE
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["starts"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f'{path} must hold JSON with a list "starts" but does not; correct it or move it away'
        ) from error


def _describe_start(config: Mapping[str, object], devices: Sequence[str], world_size: int) -> dict[str, object]:
    # torch is slow to import, and packing code does not need it.
    import torch

    package = _package_folder()
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_text(sys.argv),
        "seed": config.get("seed"),
        "package": {"path": str(package), "version": nlu.__version__},
        **describe_code(),
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": {
            "model": cpu_model(),
            "usable_cores": usable_cores(),
            "torch_threads": torch.get_num_threads(),
            "torch_interop_threads": torch.get_num_interop_threads(),
        },
        "devices": list(devices),
        "world_size": world_size,
    }


def describe_code() -> dict[str, Any]:
    """Return the state of the checkout that this code belongs to, as `git`, and the `versions` of its dependencies."""
    return {
        "git": _describe_checkout(_package_folder()),
        "versions": {"python": platform.python_version()} | {name: installed_version(name) for name in DISTRIBUTIONS},
    }


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _package_folder() -> Path:
    return Path(nlu.__file__).resolve().parent


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _describe_checkout(package: Path) -> dict[str, object] | None:
    """Return commit and changes of the checkout that contains the package, None if it is not in a checkout.

    A package installed in a folder that a checkout ignores does not belong to that checkout.
    """
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or _git(package, "check-ignore", "--quiet", ".") is not None:
        return None
    checkout = Path(top.strip())
    status = _git(checkout, "status", "--porcelain") or ""
    commit = _git(checkout, "rev-parse", "--verify", "--quiet", "HEAD")
    # Settings of the user could run other programs for a diff, or hide a part of it.
    plain = ("diff", "--no-ext-diff", "--no-textconv", "--no-renames")
    changed = (_git(checkout, *plain, "--name-only", "-z", "HEAD") or "").split("\0")
    secret = [f":(exclude,top,literal){name}" for name in changed if any(map(is_secret_file, Path(name).parts))]
    diff = _git(checkout, *plain, "HEAD", "--", ":(top)", *secret) or ""
    # Half a key would not be recognized as a secret, so a diff is cut between two lines.
    kept = diff if len(diff) <= MAX_DIFF_LENGTH else diff[: diff.rfind("\n", 0, MAX_DIFF_LENGTH) + 1]
    described = {"commit": commit and commit.strip(), "dirty": bool(status.strip())}
    return {**described, "diff": hide_keys(kept), "diff_cut": kept != diff}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, None if git is not installed, is too slow or fails."""
    # A file system monitor would be started for the checkout and would outlive this process.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    # Without optional locks, `git status` does not write to the index of a checkout in which the user works.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _xargs_quote(argument: str) -> str:
    # xargs reads quotes as a shell does, except that a line break must follow a backslash and not be quoted.
    return "\\\n".join(shlex.quote(line) for line in argument.split("\n"))


def _snapshot_sources(run_dir: Path, trusted_packages: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield names in the archive with the files to pack."""
    package = _package_folder()
    yield from _code_files(package, "nlu", run_dir)
    checkout = package.parent
    # The folder of an installed package contains other projects.
    if checkout.name not in ("site-packages", "dist-packages"):
        yield from _code_files(checkout / "conf", "conf", run_dir)
    for trusted in trusted_packages:
        for folder in _locate(trusted):
            name = trusted.replace(".", "/")
            if folder.is_dir():
                yield from _code_files(folder.resolve(), name, run_dir)
            elif _belongs_in_snapshot(folder):
                yield f"{name}.py", folder


def _locate(trusted: str) -> list[Path]:
    """Return the folders of a package, or the file of a module."""
    try:
        found = importlib.util.find_spec(trusted)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UserError(
            f"trusted_packages names {trusted} but Python finds no such package; "
            "install it, run from the folder that holds it, or take it out of trusted_packages"
        )
    if found.submodule_search_locations is not None:
        return [Path(folder) for folder in found.submodule_search_locations]
    return [Path(found.origin)] if found.has_location and found.origin else []


def _code_files(root: Path, name: str, run_dir: Path) -> Iterator[tuple[str, Path]]:
    for folder, subfolders, files in os.walk(root):
        here = Path(folder)
        subfolders[:] = [sub for sub in subfolders if _is_code_folder(here / sub, run_dir)]
        for file in files:
            if _belongs_in_snapshot(here / file):
                yield f"{name}/{(here / file).relative_to(root).as_posix()}", here / file


def _is_code_folder(folder: Path, run_dir: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name == "__pycache__" or is_secret_file(folder.name)
    return not (hidden or folder.is_symlink() or folder == run_dir or (folder / RUN_FOLDER_FILE).exists())


def _belongs_in_snapshot(file: Path) -> bool:
    if is_secret_file(file.name):
        return False
    if file.suffix in SNAPSHOT_TEXT_SUFFIXES:
        return _is_small(file, MAX_TEXT_BYTES)
    return file.suffix in SNAPSHOT_SUFFIXES and _is_small(file, MAX_FILE_BYTES)


def _is_small(file: Path, max_bytes: int) -> bool:
    return file.is_file() and not file.is_symlink() and file.stat().st_size <= max_bytes
