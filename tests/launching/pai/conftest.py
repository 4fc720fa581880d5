"""Doubles of PAI on loopback, and keys for them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services"))  # where the doubles are

from nlu.launching.pai import calls, service
from nlu.launching.pai.archive import Archive
from nlu.launching.pai.credentials import Credentials
from nlu.launching.pai.dlc import DlcQueue
from nlu.launching.pai.maxcompute import MaxComputeQueue
from nlu.launching.pai.packed import Packed
from nlu.storage.objects import ObjectStore


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(calls, "LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(service, "SETTLE_S", 0.0)
    for queue in (DlcQueue, MaxComputeQueue):
        # Names of jobs come again in other tests, as they never do elsewhere.
        queue.doubts.clear()


@pytest.fixture
def code() -> Packed:
    """What the jobs run."""
    return Packed(Archive(b"the code", ".zip"), frozenset(), ".")


@pytest.fixture
def keys() -> Credentials:
    from pai_server import ID, SECRET

    return Credentials(ID, SECRET)


@pytest.fixture
def server(tmp_path: Path) -> Iterator["PaiServer"]:  # noqa: F821
    """A double that keeps jobs without running them."""
    from pai_server import PaiServer

    folder = tmp_path / "pai"
    folder.mkdir()
    with PaiServer(folder, runs=False) as started:
        yield started


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The store of OSS_FOLDER, on a double of OSS, where submissions are claimed."""
    from fsspec.config import conf
    from oss_emulator import KEY, SECRET, OssEmulator

    # It reads the environment once, when it is imported.
    monkeypatch.setitem(conf, "oss", {"key": KEY, "secret": SECRET})
    with OssEmulator() as emulator:
        monkeypatch.setattr("nlu.storage.bucket.RETRY_DELAYS_S", ())
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        yield ObjectStore("oss://bucket/nlu", "hydra.launcher.oss_folder")
