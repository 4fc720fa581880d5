"""Doubles of PAI on loopback, and keys for them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services"))  # where the doubles are
sys.path.append(str(Path(__file__).parents[3] / "launchers"))  # as `find_plugins` does

from hydra_plugins.pai_launcher import _requests, _service
from hydra_plugins.pai_launcher._code import Archive, CodePackage
from hydra_plugins.pai_launcher._dlc import DlcQueue
from hydra_plugins.pai_launcher._maxcompute import MaxComputeQueue
from hydra_plugins.pai_launcher._requests import Credentials

from nlu.storage.objects import ObjectStore
from nlu.storage.temporary import Pauses


def wait(monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
    """Have requests repeated so often, after short pauses."""
    for module in (_requests, _service):
        monkeypatch.setattr(module, "WAITS_S", Pauses(0.01, 0.2, count))


@pytest.fixture
def two_attempts(quick_retries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    wait(monkeypatch, 1)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    wait(monkeypatch, _requests.WAITS_S.count)
    monkeypatch.setattr(_service, "SETTLE_S", 0.0)
    for queue in (DlcQueue, MaxComputeQueue):
        # Names of jobs come again in other tests, as they never do elsewhere.
        queue.ambiguous.clear()


@pytest.fixture
def code() -> CodePackage:
    """What the jobs run."""
    return CodePackage(Archive(b"the code", ".zip"), frozenset(), ".")


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
