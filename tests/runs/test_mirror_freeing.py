"""Checkpoints that a search frees in the bucket: the rest of a run stays, and a kill amid it is made up for."""

from pathlib import Path
from unittest import mock

import pytest

from nlu.runs.mirror_files import bring_back, free_mirror
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import Pointers
from tests.buckets import Server
from tests.few import first
from tests.training.in_process import TINY, composed, sets, start


class Killed(BaseException):
    """Ends a removal, as a kill does."""


@pytest.fixture
def url(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The mirror of a run that has ended, with two best checkpoints."""
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    url = f"{s3.bucket(monkeypatch)}/run"
    options = (*TINY, *sets(tmp_path), "trainer.max_duration=4st", "trainer.eval_interval=2st", "trainer.keep_best=2")
    start(composed(*options, f"mirror={url}"), tmp_path / "run")
    return url


def there(url: str) -> dict[str, set[str]]:
    """Return the names of the files in the mirror, by folder below checkpoints; those of the others under ''."""
    found: dict[str, set[str]] = {}
    for key in ObjectStore(url, "mirror").list():
        if not key.startswith(".pointer/"):
            folder, _, name = key.rpartition("/")
            found.setdefault(folder if folder.startswith("checkpoints/") else "", set()).add(name)
    return found


@pytest.mark.thorough
def test_only_the_named_checkpoints_go_and_the_rest_is_brought_back(url: str, tmp_path: Path) -> None:
    before = there(url)
    assert set(before) == {"", "checkpoints/last", "checkpoints/best-1", "checkpoints/best-2"}
    assert free_mirror(url, keeps_best=True)
    assert there(url) == {folder: names for folder, names in before.items() if folder != "checkpoints/last"}
    assert bring_back(url, tmp_path / "elsewhere")
    weights = "checkpoints/best-1/model.safetensors"
    assert (tmp_path / "elsewhere" / weights).read_bytes() == (tmp_path / "run" / weights).read_bytes()
    assert free_mirror(url, keeps_best=False) and there(url) == {"": before[""]}
    assert bring_back(url, tmp_path / "third") and not (tmp_path / "third" / "checkpoints").exists()
    assert (tmp_path / "third" / "result.json").is_file()


@pytest.mark.parametrize("kept", first(1, [3, 0]))
def test_a_removal_that_was_killed_is_completed_and_misleads_no_reader(url: str, tmp_path: Path, kept: int) -> None:
    before, delete, count = there(url), ObjectStore.delete, 0

    def killed(self: ObjectStore, key: str) -> None:
        nonlocal count
        count += 1
        if count > kept:
            raise Killed
        delete(self, key)

    with mock.patch.object(ObjectStore, "delete", killed), pytest.raises(Killed):
        free_mirror(url, keeps_best=False)
    assert bring_back(url, tmp_path / "elsewhere") and not (tmp_path / "elsewhere" / "checkpoints").exists()
    assert free_mirror(url, keeps_best=False)
    assert there(url) == {"": before[""]}


def test_a_mirror_that_a_process_holds_is_left_as_it_is(url: str) -> None:
    before, holder = there(url), Pointers(ObjectStore(url, "mirror"))
    holder.writer |= {"host": "elsewhere", "machine": "another"}
    assert holder.take(holder.newest())
    assert not free_mirror(url, keeps_best=False) and there(url) == before
    holder.release()
    assert free_mirror(url, keeps_best=False)
