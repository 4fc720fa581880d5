"""What would be on a disk after a power cut: which contents and names had been synced when a file got its name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """Follows os.fsync, os.rename and os.replace, which are carried out, and notes what is not in order."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.named: list[Path] = []
        """what was renamed, by its new path, in order"""
        self._synced: dict[int, tuple[int, int]] = {}
        self._unsynced: dict[int, str] = {}
        """folders in which names are not on the disk yet"""

    def synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._synced[status.st_ino] = status.st_size, status.st_mtime_ns
        self._unsynced.pop(status.st_ino, None)

    def is_synced(self, path: Path) -> bool:
        """Whether the content of a file is on the disk as it is."""
        status = path.stat()
        return self._synced.get(status.st_ino, (0, 0))[0] == status.st_size and status.st_ino in self._synced

    def names(self, source: Path, target: Path) -> None:
        """Judge a file, or a folder of files, that is about to get the name that counts."""
        files = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
        late = [path for path in files if not self.is_synced(path)]
        self.problems += [f"{path} was not synced before it became {target}" for path in late]
        self.named.append(target)
        self._unsynced[target.parent.stat().st_ino] = str(target.parent)

    def require_on_disk(self) -> None:
        """Raise AssertionError where a content or a name could be lost."""
        assert self.named and not self.problems, self.problems
        assert not self._unsynced, f"names in {list(self._unsynced.values())} are not on the disk"


@contextmanager
def followed() -> Iterator[Disk]:
    """Follow what the block does to disks."""
    disk, real = Disk(), {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def fsync(descriptor: int) -> None:
        real["fsync"](descriptor)
        disk.synced(descriptor)

    def naming(name: str) -> Any:
        def call(source: Any, target: Any, **options: Any) -> None:
            disk.names(Path(source), Path(target))
            real[name](source, target, **options)

        return call

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        for name in ("rename", "replace"):
            patched.setattr(os, name, naming(name))
        yield disk
