"""python -m nlu.io on a real S3 server and on a double of OSS: what is copied, broken off, refused."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_proxy import FaultyProxy, at_random
from test_conditional_put import adopt

from nlu.commands.io import main
from nlu.storage import transfer_in_parts
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


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the least size that S3 allows, so that files of 20 MB have several."""
    monkeypatch.setattr(transfer_in_parts, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(transfer_in_parts, "WHOLE_BYTES", 10 << 20)


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


COPY = [sys.executable, "-c", (
    "import sys; from nlu.storage import transfer_in_parts as parts; from nlu.commands.io import main\n"
    "parts.PART_BYTES = 5 << 20; parts.WHOLE_BYTES = 10 << 20\n"
    "parts.THREADS = 1; sys.exit(main(sys.argv[1:]))"
), "cp"]  # fmt: skip


def killed_copy(source: str, target: str, endpoint: str, after: int, method: str) -> int:
    """Copies and is killed when so many parts went over; returns how many requests of that kind there were."""
    moved = 0
    process: list[subprocess.Popen] = []
    ready = threading.Event()

    def choose(asked: str, path: str) -> None:
        nonlocal moved
        is_part = asked == method and ("partNumber" in path or method == "GET" and "list" not in path)
        moved += is_part and "uploads" not in path
        if moved > after:
            ready.wait(60)
            process[0].kill()

    with FaultyProxy.before(endpoint, choose) as proxy:
        environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.url}
        process.append(subprocess.Popen([*COPY, source, target], env=environment))
        ready.set()
        assert process[0].wait() == -9
        time.sleep(0.3)
    return moved


def test_a_killed_upload_continues_with_the_parts_that_arrived(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    big = write(tmp_path, {"big": os.urandom(31 << 20)}) / "big"
    killed_copy(str(big), f"{s3_url}/big", os.environ["AWS_ENDPOINT_URL"], 4, "PUT")
    assert names(s3_url) == [], "half a file is not visible"
    put: list[str] = []
    with FaultyProxy.before(
        os.environ["AWS_ENDPOINT_URL"], lambda method, path: put.append(path) if method == "PUT" else None
    ) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert main(["cp", str(big), f"{s3_url}/big"]) == 0
    assert len(put) in (2, 3, 4), "seven parts, of which four had arrived, and one was on its way"
    monkeypatch.undo()
    assert main(["cp", f"{s3_url}/big", str(tmp_path / "back")]) == 0
    assert (tmp_path / "back").read_bytes() == big.read_bytes()


def test_a_killed_download_continues_but_a_changed_source_starts_again(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    big = write(tmp_path, {"big": os.urandom(31 << 20)}) / "big"
    assert main(["cp", str(big), f"{s3_url}/big"]) == 0
    back = tmp_path / "to" / "back"
    killed_copy(f"{s3_url}/big", str(back), os.environ["AWS_ENDPOINT_URL"], 4, "GET")
    assert not back.exists()
    (part,) = back.parent.iterdir()
    begun = part.stat().st_size
    assert 10 << 20 <= begun < 31 << 20
    gets: list[str] = []
    with FaultyProxy.before(
        os.environ["AWS_ENDPOINT_URL"], lambda method, path: gets.append(path) if method == "GET" else None
    ) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert main(["cp", f"{s3_url}/big", str(back)]) == 0
    assert len([path for path in gets if "list" not in path]) == 7 - begun // (5 << 20)
    assert back.read_bytes() == big.read_bytes() and list(back.parent.iterdir()) == [back]

    monkeypatch.undo()
    back.unlink()
    killed_copy(f"{s3_url}/big", str(back), os.environ["AWS_ENDPOINT_URL"], 4, "GET")
    big.write_bytes(os.urandom(31 << 20))
    assert main(["cp", "-f", str(big), f"{s3_url}/big"]) == 0
    assert main(["cp", f"{s3_url}/big", str(back)]) == 0
    assert back.read_bytes() == big.read_bytes()


@pytest.mark.thorough
def test_copies_under_faults_are_complete(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
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
