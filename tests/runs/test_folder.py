"""Whose a run folder is, and what may be continued in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import CheckpointError, UserError
from nlu.runs import folder as run_folder
from nlu.runs.checkpoint import TAKEN
from nlu.runs.folder import LOCK, checkpoint_to_continue, hold, write_config
from nlu.storage.settle import MARKER, mark_whole
from tests.waits import held_elsewhere

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
    (last / "state.json").write_text('{"state": {"step": 3}}')
    (last / MARKER).touch()
    write_config(run_dir, CONFIG | changes)
    return last


def test_a_run_continues_with_another_note_and_an_older_one_with_its_first(tmp_path: Path) -> None:
    last = saved_run(tmp_path / "noted", note="first")
    assert checkpoint_to_continue(tmp_path / "noted", CONFIG | {"resume": "auto", "note": "second"}) == last
    last = saved_run(tmp_path / "older")
    assert checkpoint_to_continue(tmp_path / "older", CONFIG | {"resume": "auto", "note": "first"}) == last


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
    assert "resume=" not in refused.value.remedy


def test_a_longer_run_is_offered_the_state_of_the_run_in_its_folder(tmp_path: Path) -> None:
    saved_run(tmp_path)
    longer = CONFIG | {"resume": "auto", "trainer": CONFIG["trainer"] | {"max_duration": "3ep"}}
    with pytest.raises(UserError) as refused:
        checkpoint_to_continue(tmp_path, longer)
    assert f"start from its state there with resume={tmp_path}" in refused.value.remedy
    with pytest.raises(UserError) as refused:
        checkpoint_to_continue(tmp_path, longer | {"folds": {"count": 2}})
    assert "resume=" not in refused.value.remedy


def test_a_key_that_is_null_on_one_side_and_absent_on_the_other_is_a_difference(tmp_path: Path) -> None:
    saved_run(tmp_path, trainer={"batch_size": 8, "former": None})
    with pytest.raises(UserError, match=r"trainer\.former: None there, absent here"):
        checkpoint_to_continue(tmp_path, CONFIG | {"resume": "auto"})
    with pytest.raises(UserError, match=r"data\.newer: absent there, None here"):
        changes = {"resume": "auto", "trainer": {"batch_size": 8, "former": None}, "data": {"newer": None}}
        checkpoint_to_continue(tmp_path, CONFIG | changes)


def test_another_attempt_at_a_trial_or_another_way_to_its_storage_is_the_same_run(tmp_path: Path) -> None:
    trial = {"storage": "postgresql://here/a", "study": "s", "number": 3, "attempt": 0}
    last = saved_run(tmp_path, resume="auto", trial=trial)
    for changes in ({"attempt": 1}, {"storage": "postgresql://there/a"}):
        assert checkpoint_to_continue(tmp_path, CONFIG | {"resume": "auto", "trial": trial | changes}) == last
    assert checkpoint_to_continue(tmp_path, CONFIG | {"resume": "auto", "trial": None}) == last


def test_a_path_copies_another_runs_state_into_a_new_folder_only(tmp_path: Path) -> None:
    last = saved_run(tmp_path / "old")
    (tmp_path / "new").mkdir()
    for reference in (tmp_path / "old", last):
        taken = checkpoint_to_continue(tmp_path / "new", CONFIG | {"resume": str(reference)})
        assert taken == tmp_path / "new" / TAKEN / "last"
        state = json.loads((taken / "state.json").read_text())["state"]
        assert (state["step"], state["improved_at"], state["best"], state["pruned"]) == (3, 3, [], False)
    with pytest.raises(UserError, match="exists and holds"):
        checkpoint_to_continue(tmp_path / "old", CONFIG | {"resume": str(last)})
    with pytest.raises(CheckpointError, match="neither a run's folder nor"):
        checkpoint_to_continue(tmp_path / "new", CONFIG | {"resume": str(tmp_path / "new")})
    assert not list((tmp_path / "new").iterdir())


def test_the_same_command_starts_again_after_a_kill_at_its_start(tmp_path: Path) -> None:
    saved_run(tmp_path / "old")
    config = CONFIG | {"resume": str(tmp_path / "old")}
    for left in (".taken/last/half", "log.txt", ".lock", ".config.yaml.0123.tmp"):
        (tmp_path / "new" / left).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / left).touch()
    taken = checkpoint_to_continue(tmp_path / "new", config)
    assert taken is not None and {path.name for path in taken.iterdir()} == {"state.json", MARKER}


@pytest.mark.parametrize("content", ["{", "[]", '{"state": {}}'])
def test_a_damaged_state_of_another_run_is_refused_and_not_kept(tmp_path: Path, content: str) -> None:
    (saved_run(tmp_path / "old") / "state.json").write_text(content)
    (tmp_path / "new").mkdir()
    with pytest.raises(CheckpointError, match="it is damaged"):
        checkpoint_to_continue(tmp_path / "new", CONFIG | {"resume": str(tmp_path / "old")})
    assert not list((tmp_path / "new").iterdir())


def test_the_same_command_continues_the_run_that_it_began_from_a_path(tmp_path: Path) -> None:
    saved_run(tmp_path / "old")
    config = CONFIG | {"resume": str(tmp_path / "old")}
    new = tmp_path / "new"
    new.mkdir()
    taken = checkpoint_to_continue(new, config)
    assert taken is not None
    (taken / "state.json").write_text('{"own": true}')
    mark_whole(new / TAKEN)
    write_config(new, config)
    # Killed here: the rename that makes it the run's own is made up for.
    for resume in (config["resume"], "auto", config["resume"]):
        last = checkpoint_to_continue(new, config | {"resume": resume})
        assert last == new / "checkpoints" / "last" and (last / "state.json").read_text() == '{"own": true}'
    with pytest.raises(UserError, match="seed: 1 there, 2 here"):
        checkpoint_to_continue(new, config | {"seed": 2})
    saved_run(tmp_path / "other")
    with pytest.raises(UserError, match="exists and holds"):
        checkpoint_to_continue(new, config | {"resume": str(tmp_path / "other")})


def test_a_folder_is_held_by_one_process_and_free_when_it_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_WAIT_S", 0.1)
    with held_elsewhere("from nlu.runs.folder import hold", "hold(path)", tmp_path / "run"):
        with pytest.raises(UserError, match="another process is writing to it"), hold(tmp_path / "run"):
            pass
    with hold(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).exists()


def test_an_unused_folder_is_removed_and_a_foreign_one_is_not_changed(tmp_path: Path) -> None:
    with hold(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with hold(tmp_path / "mine"):
        pass
    with hold(tmp_path / "new"):
        (tmp_path / "new" / "thesis.txt").touch()
    for name in ("mine", "new"):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "content", ["seed: 1\nmodel:\n  layers: 4\n  he", "seed: [1", "null", "- 1\n", "a: \x00", "seed: 1\nresume: auto\n"]
)
def test_a_damaged_configuration_is_named_with_a_remedy(tmp_path: Path, content: str) -> None:
    run_folder.write_config(tmp_path, {"seed": 1, "resume": "auto"})
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match="config.yaml is damaged .*; restore it from a copy"):
        run_folder.checkpoint_to_continue(tmp_path, {"seed": 1, "resume": "auto", "trainer": {"devices": 1}})
    assert (tmp_path / "config.yaml").read_text() == content
