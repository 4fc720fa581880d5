"""What every test stands on: a cache of the test session's own, and the same property-test examples each time."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from nlu.config import targets
from tests.put_back import process_put_back
from tests.warm import FOLDER, SESSION

if TYPE_CHECKING:
    from tests.buckets import Server

MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 4 << 30


def to_memory() -> tempfile.TemporaryDirectory[str] | None:
    """Keep temporary files in memory if it is large enough and the environment names no other folder.

    A run syncs each file that it leaves: on a disk that takes most of the time of a small one.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ENOUGH_BYTES:
        return None
    folder = tempfile.TemporaryDirectory(prefix="nlu-", dir=MEMORY)
    # Some tests start processes of other users.
    os.chmod(folder.name, 0o755)
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name
    return folder


# Before any test module is read, since some of them keep the environment for the processes that they start.
if "PYTEST_XDIST_WORKER" not in os.environ:
    IN_MEMORY = to_memory()
    # Workers find in their environment what the process that starts them has set.
    CACHE = TemporaryDirectory(prefix="nlu-tests-")
    os.environ["NLU_CACHE"] = CACHE.name
    SHARED = TemporaryDirectory(prefix="nlu-warm-")
    os.environ[FOLDER], os.environ[SESSION] = SHARED.name, str(os.getpid())
# Bytes are compared, and they are the same only for the same number of threads; read when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


TEST_DEVICE = "NLU_TEST_DEVICE"
LONGEST = (
    "training/test_reasons.py", "jobs/test_signals.py", "training/test_signals.py", "training/test_repeats.py",
    "training/test_lost_ranks.py", "training/test_pages.py", "training/test_memory.py", "storage/test_access.py",
    "launchers/test_continuing.py", "launchers/test_hydra_suites.py", "models/test_bits.py", "test_install.py",
    "training/test_ends.py", "training/test_recipes.py",
)  # fmt: skip
"""The files that take longest. A file runs on one core, so one that starts late keeps the others idle at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files."""

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((place for place, name in enumerate(LONGEST) if path.endswith(name)), len(LONGEST))

    items.sort(key=place)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot do: asked for here, since an import must neither compile nor load libraries."""
    if item.get_closest_marker("gpu") and not (
        os.environ.get(TEST_DEVICE) == "cpu" and "device" in getattr(item, "fixturenames", ())
    ):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    for mark in item.iter_markers("needs"):
        check, reason = mark.args
        if not check():
            pytest.skip(reason)


@pytest.fixture(scope="session")
def device() -> str:
    """The device of a test marked `gpu`; NLU_TEST_DEVICE=cpu tries those that ask for it where there is none."""
    return os.environ.get(TEST_DEVICE, "cuda")


@pytest.fixture(scope="session")
def session_cache() -> Path:
    return Path(os.environ["NLU_CACHE"])


@pytest.fixture(autouse=True)
def leave_process_as_found() -> Iterator[None]:
    with process_put_back():
        yield


@pytest.fixture(autouse=True)
def trusted_by_each_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process forget the packages that a test trusts."""
    monkeypatch.setattr(targets, "_trusted", set(targets._trusted))


@pytest.fixture(autouse=True)
def private_cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests out of the user's cache; one for all of them, since what is in it is found by its content."""
    monkeypatch.setenv("NLU_CACHE", str(session_cache))
    return session_cache


@pytest.fixture(scope="module")
def s3() -> Iterator["Server"]:
    """An S3 server in this process; its `bucket` makes one."""
    # Most tests need none, and its imports take a second.
    from tests.buckets import server

    with server() as running:
        yield running


def pytest_collection_finish() -> None:
    """Leave what imports and collection have built out of every later search for garbage."""
    gc.collect()
    gc.freeze()
