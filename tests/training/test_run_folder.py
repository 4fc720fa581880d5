"""Whose a run folder is, and what may be continued in it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import CheckpointError, UserError
from nlu.training import run_folder
from nlu.training.checkpoint import COMPLETE
from nlu.training.run_folder import LOCK, checkpoint_to_continue, hold, write_config

CONFIG: dict[str, Any] = {
    "seed": 1,
    "resume": "never",
    "dry_run": False,
    "trainer": {"batch_size": 8},
    "data": {},
    "seeds": 1,
    "folds": {"count": None},
    "fold": None,
}


def saved_run(run_dir: Path, **changes: Any) -> Path:
    last = run_dir / "checkpoints" / "last"
    last.mkdir(parents=True)
    (last / "state.json").write_text("{}")
    (last / COMPLETE).touch()
    write_config(run_dir, CONFIG | changes)
    return last


def test_a_new_folder_starts_at_step_0_and_an_old_run_continues_with_auto(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert checkpoint_to_continue(tmp_path / "new", CONFIG) is None
    assert checkpoint_to_continue(tmp_path / "new", CONFIG | {"resume": "auto"}) is None
    last = saved_run(tmp_path / "old")
    assert checkpoint_to_continue(tmp_path / "old", CONFIG | {"resume": "auto"}) == last


def test_a_run_that_was_killed_before_its_first_save_starts_again(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    assert checkpoint_to_continue(tmp_path, CONFIG | {"resume": "auto"}) is None


def test_another_configuration_is_refused_with_every_difference(tmp_path: Path) -> None:
    saved_run(tmp_path)
    changed = CONFIG | {"resume": "auto", "seed": 2, "trainer": {"batch_size": 16}, "data": {"max_len": 9}}
    with pytest.raises(UserError) as refused:
        checkpoint_to_continue(tmp_path, changed)
    for difference in ("seed: 1 there, 2 here", "trainer.batch_size: 8 there, 16 here", "data.max_len: absent there"):
        assert difference in str(refused.value)
    assert f"start from its state there with resume={tmp_path}" in refused.value.remedy
    with pytest.raises(UserError) as refused:
        checkpoint_to_continue(tmp_path, changed | {"folds": {"count": 2}})
    assert "resume=" not in refused.value.remedy


def test_another_attempt_at_a_trial_or_another_way_to_its_storage_is_the_same_run(tmp_path: Path) -> None:
    trial = {"storage": "postgresql://here/a", "study": "s", "number": 3, "attempt": 0}
    last = saved_run(tmp_path, resume="auto", trial=trial)
    for changes in ({"attempt": 1}, {"storage": "postgresql://there/a"}):
        assert checkpoint_to_continue(tmp_path, CONFIG | {"resume": "auto", "trial": trial | changes}) == last
    assert checkpoint_to_continue(tmp_path, CONFIG | {"resume": "auto", "trial": None}) == last


def test_a_path_takes_another_runs_state_into_a_new_folder_only(tmp_path: Path) -> None:
    last = saved_run(tmp_path / "old")
    (tmp_path / "new").mkdir()
    for reference in (tmp_path / "old", last):
        assert checkpoint_to_continue(tmp_path / "new", CONFIG | {"resume": str(reference)}) == last
    with pytest.raises(UserError, match="exists and holds"):
        checkpoint_to_continue(tmp_path / "old", CONFIG | {"resume": str(last)})
    with pytest.raises(CheckpointError, match="neither a run's folder nor"):
        checkpoint_to_continue(tmp_path / "new", CONFIG | {"resume": str(tmp_path / "new")})


def test_a_folder_is_held_by_one_process_and_free_when_it_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, time; from pathlib import Path; from nlu.training.run_folder import hold\n"
        "with hold(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    root = str(Path(run_folder.__file__).parents[2])
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert other.stdout is not None and other.stdout.readline() == b"held\n"
    monkeypatch.setattr(run_folder, "LOCK_WAIT_S", 0.1)
    with pytest.raises(UserError, match="another process is writing to it"), hold(tmp_path / "run"):
        pass
    other.kill()
    other.wait()
    with hold(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).exists()


def test_a_folder_in_which_nothing_began_disappears_and_a_foreign_one_stays_as_it_was(tmp_path: Path) -> None:
    with hold(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with hold(tmp_path / "mine"):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
