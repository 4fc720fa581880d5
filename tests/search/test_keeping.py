"""Which checkpoints of trials may go, and what removing them leaves after a kill."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from nlu.runs import freeing
from nlu.runs.freeing import free
from nlu.runs.mirror import Mirror
from nlu.search import closing
from nlu.search.closing import Keeper, freed, note_kept
from tests.search.outages import object_store

OF = {"C": TrialState.COMPLETE, "P": TrialState.PRUNED, "F": TrialState.FAIL, "R": TrialState.RUNNING}


def study(letters: str, values: list[float], direction: str) -> optuna.Study:
    """Return a study of trials in these states; `values` are those of the complete ones."""
    found, rest = optuna.create_study(direction=direction), iter(values)
    for letter in letters:
        found.add_trial(create_trial(state=OF[letter], value=next(rest) if letter == "C" else None))
    return found


@pytest.mark.parametrize(
    ("direction", "stays"),
    [
        ("maximize", {0: False, 1: False, 3: True, 4: False, 5: False}),
        ("minimize", {0: True, 1: False, 3: False, 4: False, 5: False}),
    ],
)
def test_only_decided_trials_lose_checkpoints_and_the_first_of_equals_is_the_best(direction, stays):
    # Number 2 runs; 3 and 5 are equal.
    assert freed(study("CPRCFC", [0.2, 0.8, 0.8], direction)) == stays


def trial(folder: Path, *parts: str) -> Path:
    """Write a trial with checkpoints of 30 bytes (last) and 10 (each best); `parts` are its folds."""
    for part in parts or ("",):
        for name, size in (("last", 30), ("best-1", 10), ("best-2", 10), (".last.new", 5)):
            (folder / part / "checkpoints" / name).mkdir(parents=True)
            (folder / part / "checkpoints" / name / "model.safetensors").write_bytes(b"x" * size)
    (folder / "result.json").write_text("{}")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir())


@pytest.mark.parametrize("parts", [(), ("fold-0", "fold-1")])
def test_a_freed_trial_keeps_its_records_and_if_it_is_the_best_its_best_weights(tmp_path, parts):
    folder = trial(tmp_path / "0", *parts)
    free(folder, keeps_best=True)
    left = [f"{part}/checkpoints".lstrip("/") for part in parts or ("",)]
    assert names(folder) == sorted([*parts, *left, *(f"{one}/best-{place}" for one in left for place in (1, 2))])
    free(folder, keeps_best=False)
    assert names(folder) == sorted(parts) and (folder / "result.json").is_file()
    free(folder, keeps_best=False)


@pytest.mark.parametrize("kill", [1, 2])
def test_a_killed_removal_leaves_no_half_checkpoint_and_is_completed(tmp_path, monkeypatch, kill):
    folder, calls = trial(tmp_path / "0", "fold-0", "fold-1"), 0

    def remove(path):
        nonlocal calls
        calls += 1
        if calls == kill:
            next(path.rglob("*.safetensors")).unlink()
            raise KeyboardInterrupt
        freeing_remove(path)

    freeing_remove = freeing.remove
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(freeing, "remove", remove)
        free(folder, keeps_best=False)
    for checkpoints in folder.glob("*/checkpoints"):
        assert len(list(checkpoints.rglob("*.safetensors"))) == 4
    free(folder, keeps_best=False)
    assert names(folder) == ["fold-0", "fold-1"]


def test_a_store_that_is_down_is_asked_once_and_again_at_the_end(tmp_path, monkeypatch):
    asked, said = [], []
    free_mirror = closing.free_mirror

    def counted(url, **named):
        asked.append(url)
        return free_mirror(url, **named)

    monkeypatch.setattr(closing, "free_mirror", counted)
    with object_store(monkeypatch, "trials") as (store, storage):
        for number in range(3):
            mirror = Mirror(f"{storage.url}/{number}", trial(tmp_path / str(number)))
            mirror.open(may_hold_a_run=True)
            mirror.saved()
            mirror.close()
        own = study("CCC", [0.9, 0.2, 0.1], "maximize")
        note_kept(own, "best", storage.url)
        keeper = Keeper(own, tmp_path, said.append)
        with store.away():
            # A search updates when each trial ends.
            assert [keeper.update() for _ in range(3)] == [[0, 1, 2]] * 3
            assert len(asked) == 1 and len(said) == 1 and "checkpoints of trial 0 stay for now" in said[0]
            assert keeper.end() == [0, 1, 2] and len(asked) == 2
        assert keeper.end() == []
    assert [(tmp_path / str(number) / "checkpoints").exists() for number in range(3)] == [True, False, False]


def test_what_a_store_raises_does_not_end_the_search(tmp_path, monkeypatch):
    def damaged(*unused, **named):
        raise ValueError("no JSON")

    monkeypatch.setattr(closing, "free_mirror", damaged)
    own, said = study("CC", [0.9, 0.2], "maximize"), []
    note_kept(own, "best", "s3://b/s")
    assert Keeper(own, tmp_path, said.append).update() == [0, 1]
    assert said == ["checkpoints of trial 0 stay for now: no JSON"]
