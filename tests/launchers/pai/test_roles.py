"""Short-lived keys that the platform gives a job by its role: a double of OSS accepts only them, with their token."""

import time
from pathlib import Path

import pytest

pytest.importorskip("ossfs", reason="the driver of oss:// comes with the extra pai")
from pai_server import PaiServer

from nlu.runs.mirror import Mirror
from nlu.runs.mirror_files import bring_back
from nlu.storage import role_keys as environment
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Denied
from tests.oss_server import KEY, SECRET, OssServer


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An OSS that takes keys only with a token, and a platform that gives them to this process."""
    (tmp_path / "pai").mkdir()
    with OssServer() as oss, PaiServer(tmp_path / "pai", runs=False) as platform:
        oss.token = "token-1"
        platform.role = {"AccessKeyId": KEY, "AccessKeySecret": SECRET, "SecurityToken": oss.token}
        monkeypatch.setenv("OSS_ENDPOINT", oss.environment["OSS_ENDPOINT"])
        monkeypatch.setenv(environment.ROLE_URI, platform.role_environment[environment.ROLE_URI])
        for name in ("FSSPEC_OSS_KEY", "FSSPEC_OSS_SECRET"):
            monkeypatch.delenv(name, raising=False)
        yield oss, platform


def test_a_role_puts_gets_lists_copies_and_deletes(store):
    objects = ObjectStore("oss://bucket/runs/文", "mirror")
    objects.put("a b/1", b"one")
    assert objects.put_new("a b/1", b"two") is False and objects.get("a b/1") == b"one"
    objects.copy("a b/1", "c")
    assert list(objects.list()) == ["a b/1", "c"] and objects.stat("c").size == 3 and objects.stat("d") is None
    objects.delete("c")
    assert list(objects.list()) == ["a b/1"]


def in_s(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def test_keys_are_renewed_early_and_kept_where_the_platform_does_not_answer(store):
    oss, platform = store
    platform.role["Expiration"] = in_s(60)
    objects = ObjectStore("oss://bucket/runs", "mirror")
    objects.put("a", b"1")
    oss.token = platform.role["SecurityToken"] = "token-2"
    objects.put("b", b"2")
    platform.shutdown()
    platform.server_close()
    objects.put("c", b"3")
    oss.token = "token-3"
    with pytest.raises(Denied):
        objects.put("d", b"4")


def test_keys_of_the_environment_win_over_the_role(store, monkeypatch):
    monkeypatch.setenv("FSSPEC_OSS_KEY", KEY)
    monkeypatch.setenv("FSSPEC_OSS_SECRET", SECRET)
    assert not environment.has_role()


@pytest.mark.thorough
def test_a_run_is_mirrored_to_oss_and_fetched_back(store, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    mirror = Mirror("oss://bucket/runs/one", folder)
    mirror.open(may_hold_a_run=False)
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "result.json").write_text("{}")
    mirror.close()
    back = tmp_path / "back"
    assert bring_back("oss://bucket/runs/one", back) and Path(back / "config.yaml").read_text() == "seed: 1\n"
