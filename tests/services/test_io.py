"""python -m nlu.io on a real S3 server and on a double of OSS: what is copied, broken off, refused."""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_proxy import FaultyProxy, at_random
from test_conditional_put import adopt

from nlu.commands.io import main
from nlu.storage.access import files
from nlu.storage.locations import parse_place
from tests.folders import contents, write
from tests.oss_server import BUCKET, OssServer

pytestmark = pytest.mark.services


@pytest.fixture(params=["s3", "oss"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A prefix where nothing is, on either kind of store."""
    if request.param == "s3":
        yield request.getfixturevalue("s3_url")
        return
    with OssServer() as server:
        adopt(monkeypatch, server.environment)
        # The memory behind the double is that of the process.
        yield f"oss://{BUCKET}/{uuid.uuid4().hex}"


def names(url: str) -> list[str]:
    return list(files(parse_place(url)))


FILES = {"a.txt": b"a", "deep/größe 1.bin": bytes(range(256)) * 40, "deep/empty": b"", "COMPLETE": b"yes"}


def test_a_folder_is_copied_there_and_back_and_not_copied_twice(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = write(tmp_path / "here", FILES)
    assert main(["cp", "-r", "--dry", str(here), f"{url}/there"]) == 0
    assert names(f"{url}/there") == []
    assert main(["cp", "-r", str(here), f"{url}/there"]) == 0
    assert names(f"{url}/there") == sorted(FILES)
    assert main(["cp", "-r", str(here), f"{url}/there"]) == 0
    assert "copied 0 files, 0.0 MB; 4 files lay there already" in capsys.readouterr().err
    assert main(["cp", "-r", f"{url}/there", str(tmp_path / "back")]) == 0
    assert contents(tmp_path / "back") == FILES
    assert main(["cp", "-r", f"{url}/there", str(tmp_path / "back")]) == 0
    assert "copied 0 files" in capsys.readouterr().err
    assert main(["du", f"{url}/there"]) == 0
    assert capsys.readouterr().out.split()[0] == str(sum(map(len, FILES.values())))
    assert main(["ls", f"{url}/there"]) == 0
    assert sorted(capsys.readouterr().out.split()) == ["COMPLETE", "a.txt", "deep/"]
    assert main(["ls", "-l", "-r", f"{url}/there"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.thorough
def test_copies_under_faults_are_complete(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{number:02d}": os.urandom(1000 + number) for number in range(40)} | {"big": os.urandom(22 << 20)}
    here = write(tmp_path / "here", files)
    with FaultyProxy.before(os.environ["AWS_ENDPOINT_URL"], at_random(0.1, seed=3)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert main(["cp", "-r", str(here), f"{s3_url}/there"]) == 0
        monkeypatch.undo()
        assert names(f"{s3_url}/there") == sorted(files)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        time.sleep(5)  # by then no listing lacks anything
        assert main(["cp", "-r", f"{s3_url}/there", str(tmp_path / "back")]) == 0
        assert sum(proxy.counts.values()) >= 0.05 * proxy.requests
    assert contents(tmp_path / "back") == files
