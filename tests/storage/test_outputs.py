"""What commands write into an object store: nothing is written over, also where the folder is written with a slash."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.storage import access
from nlu.storage.access import files
from nlu.storage.locations import Place, parse_place
from nlu.storage.outputs import output_file, output_folder, require_free
from tests.buckets import Server, server
from tests.folders import write


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


@pytest.mark.parametrize("out", ["/proc/z", "/proc/y/z"])
def test_a_folder_that_cannot_be_created_is_refused_before_anything_is_computed(out: str) -> None:
    """Not even root can create a folder in /proc."""
    with pytest.raises(UserError, match=f"out is {out}, but nothing can be created in /proc .*; choose another"):
        require_free(out, "out")


def test_a_folder_in_a_bucket_is_marked_first_and_completed_by_its_last_file(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, content in {".begun": b"", "old": b"of an earlier try", "a": b"changed"}.items():
        access.write(parse_place(f"{url}/{key}"), content)
    done: list[str] = []
    for name in ("write", "delete"):
        verb = getattr(access, name)

        def noting(place: Place, *values: Any, name: str = name, verb: Any = verb, **asking: Any) -> None:
            verb(place, *values, **asking)
            done.append(f"{name} {place.name}")

        monkeypatch.setattr(access, name, noting)
    with output_folder(url, "out", last="a.json") as folder:
        write(folder, {"a": b"a", "a.json": b"{}", "z": b"z"})
    tried = [line for line in done if not line.endswith(".probe")]
    assert tried[:2] == ["write .begun", "delete old"] and sorted(tried[2:4]) == ["write a", "write z"]
    assert tried[4:] == ["write a.json", "delete .begun"] and names(url) == ["a", "a.json", "z"]
    with pytest.raises(KeyError), output_folder(f"{url}-2", "out", last="x"):
        raise KeyError
    assert names(f"{url}-2") == []


def test_a_local_output_appears_at_once_with_the_rights_of_new_files(tmp_path: Path) -> None:
    with pytest.raises(KeyError), output_folder(tmp_path / "new/deep", "out", last="x") as folder:
        (folder / "x").touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    mask = os.umask(0o027)
    try:
        with output_folder(tmp_path / "new/deep", "out", last="x") as folder:
            (folder / "x").touch()
            assert not (tmp_path / "new").exists()
    finally:
        os.umask(mask)
    assert os.listdir(tmp_path / "new/deep") == ["x"] and (tmp_path / "new/deep").stat().st_mode & 0o777 == 0o750
