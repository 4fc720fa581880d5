"""Doubles of PAI and of its store on loopback, keys for them, and queues of each kind."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services"))  # where the doubles are
sys.path.append(str(Path(__file__).parents[3] / "launchers"))  # as `find_plugins` does

from nlu.jobs.queue import QueueContext
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Pauses
from tests.launchers.pai.projects import config, git

STORE = "oss://bucket/nlu"
SETTINGS = {
    "dlc": {"workspace": "1234", "image": "registry/nlu:1", "resource_quota": "quota1"},
    "maxcompute": {"project": "proj1"},
    "odpscmd": {"project": "proj1", "client": "odpscmd"},
}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra_plugins.pai_launcher import _queue

    monkeypatch.setattr(_queue, "PAUSES_S", Pauses(0.01, 0.1, 4))


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from pai_server import ID, SECRET

    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", ID)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET)
    monkeypatch.delenv("ALIBABA_CLOUD_SECURITY_TOKEN", raising=False)


@pytest.fixture
def server(tmp_path: Path, keys: None) -> Iterator[Any]:
    """A double that keeps jobs without running them."""
    from pai_server import PaiServer

    folder = tmp_path / "pai"
    folder.mkdir()
    with PaiServer(folder, runs=False) as started:
        yield started


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The store of hydra.launcher.oss_folder, on a double of OSS."""
    from fsspec.config import conf

    from tests.oss_server import KEY, SECRET, OssServer

    # It reads the environment once, when it is imported.
    monkeypatch.setitem(conf, "oss", {"key": KEY, "secret": SECRET})
    with OssServer() as server:
        monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield ObjectStore(STORE, "hydra.launcher.oss_folder")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with rows that git tracks and rows that it does not, in which the command is started."""
    from hydra_plugins.pai_launcher._code import packed

    top = tmp_path / "project"
    (top / "rows").mkdir(parents=True)
    for name in ("rows/train.csv", "untracked.csv"):
        (top / name).write_text("text,label\n")
    git(top, "init", "-q")
    git(top, "add", "rows")
    monkeypatch.chdir(top)
    packed.cache_clear()
    return top


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with a double of odpscmd, and with what it was called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "odpscmd"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\nsys.path[:0] = {sys.path!r}\nimport fake_odpscmd\n"
        "fake_odpscmd.main(sys.argv[1:], Path(__file__).parent)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture
def opened(server: Any, store: ObjectStore, project: Path, client: Path) -> Callable[..., Any]:
    """Opens a queue: DLC, MaxCompute by PyODPS or by odpscmd, for a grid in the project."""

    def queue(
        backend: str = "dlc", compose: Any = None, module: str = "nlu.train", dirs: Any = (), **given: Any
    ) -> Any:
        pytest.importorskip("odps", reason="PyODPS comes with the extra pai")
        pytest.importorskip("alibabacloud_pai_dlc20201203", reason="the SDK of PAI-DLC comes with the extra pai")
        from hydra_plugins.pai_launcher._queue import open_pai

        is_dlc = backend == "dlc"
        settings = {
            "backend": "dlc" if is_dlc else "maxcompute", "region": "cn-hangzhou", "oss_folder": STORE, "gpus": 2,
            "endpoint": f"http://{server.host}{'' if is_dlc else '/api'}", **SETTINGS[backend], **given,
        }  # fmt: skip
        composed = compose or (lambda job: config())
        return open_pai(QueueContext(settings, project / "outputs/grid", module, None, composed, dirs))

    return queue
