"""What commands write into an object store: nothing is written over, also where the folder is written with a slash."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.io import main
from nlu.storage.access import files
from nlu.storage.outputs import output_file, output_folder, require_free
from nlu.storage.places import parse_place
from tests.buckets import Server, server


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture
def url(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return f"{s3.bucket(monkeypatch)}/there"


def names(url: str) -> list[str]:
    return list(files(parse_place(url)))


@pytest.mark.parametrize("slash", ["", "/"])
def test_an_existing_file_is_never_overwritten(url: str, slash: str) -> None:
    with output_file(f"{url}/a.png", "--out") as path:
        path.write_text("first")
    with pytest.raises(UserError, match=r"--out is s3://\S+/there/a.png, which exists; nothing was written"):
        with output_file(f"{url}/a.png", "--out") as path:
            path.write_text("second")
    assert names(url) == ["a.png"]
    with pytest.raises(UserError, match=r"out is s3://\S+/there, which exists; nothing was written"):
        require_free(f"{url}{slash}", "out")


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_that_was_left_incomplete_is_written_again(url: str, slash: str, tmp_path: Path) -> None:
    (tmp_path / ".begun").touch()
    assert main(["cp", str(tmp_path / ".begun"), f"{url}/.begun"]) == 0
    with output_folder(f"{url}{slash}", "out", last="result.json") as folder:
        (folder / "result.json").write_text("{}")
    assert names(url) == ["result.json"]


def test_files_copied_behind_a_slash_are_recognized_there(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("a")
    for _ in range(2):
        assert main(["cp", str(tmp_path / "a"), f"{url}/"]) == 0
    assert "copied 0 files, 0.0 MB; 1 file lay there already" in capsys.readouterr().err
    assert names(url) == ["a"]


@pytest.mark.parametrize("out", ["/proc/z", "/proc/y/z"])
def test_a_folder_that_cannot_be_created_is_refused_before_anything_is_computed(out: str) -> None:
    """Not even root can create a folder in /proc."""
    with pytest.raises(UserError, match=f"out is {out}, but nothing can be created in /proc .*; choose another"):
        require_free(out, "out")
