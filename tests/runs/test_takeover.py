"""resume=PATH: the copied state of another run is on the disk before it counts."""

from pathlib import Path

from nlu.runs.checkpoint import TAKEN
from nlu.runs.takeover import make_own
from nlu.storage.settle import mark_whole
from tests.disk import followed
from tests.suspending import write_state


def test_a_state_that_was_taken_is_on_the_disk_before_it_is_the_runs_own(tmp_path: Path) -> None:
    taken = tmp_path / TAKEN
    write_state(tmp_path / "other", 3, "weights")
    (tmp_path / "other/checkpoints").rename(taken)
    with followed() as disk:
        mark_whole(taken)
        make_own(tmp_path)
    disk.require_on_disk()
    assert disk.named == [tmp_path / "checkpoints"]
    assert not (tmp_path / "checkpoints/COMPLETE").exists()
