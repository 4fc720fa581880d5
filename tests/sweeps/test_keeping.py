"""Which checkpoints of trials may go, what removing them leaves after a kill, and the disk that a search needs."""

from pathlib import Path

import pytest
from optuna.trial import TrialState, create_trial

from nlu.runs import freeing
from nlu.runs.freeing import free
from nlu.storage.locks import Locked, hold_lock
from nlu.sweeps.keeping import Sizes, expected, freed, held, measured, sentences

OF = {"C": TrialState.COMPLETE, "P": TrialState.PRUNED, "F": TrialState.FAIL, "R": TrialState.RUNNING}


def trials(letters: str, values: list[float]):
    """Return trials in these states; `values` are those of the complete ones."""
    rest, found = iter(values), []
    for number, letter in enumerate(letters):
        trial = create_trial(state=OF[letter], value=next(rest) if letter == "C" else None)
        trial.number = number
        found.append(trial)
    return found


@pytest.mark.parametrize(
    ("keep", "maximize", "stays"),
    [
        ("all", True, {}),
        ("rungs", True, {0: True, 1: False, 3: True, 4: False, 5: True}),
        ("best", True, {0: False, 1: False, 3: True, 4: False, 5: False}),
        ("best", False, {0: True, 1: False, 3: False, 4: False, 5: False}),
    ],
)
def test_only_decided_trials_lose_checkpoints_and_the_first_of_equals_is_the_best(keep, maximize, stays):
    # Number 2 runs; 3 and 5 are equal.
    assert freed(trials("CPRCFC", [0.2, 0.8, 0.8]), keep, maximize=maximize) == stays


def test_pruned_trials_keep_their_best_weights_until_one_is_complete():
    assert freed(trials("PRF", []), "best", maximize=True) == {0: True, 2: False}
    assert freed(trials("PCF", [0.5]), "best", maximize=True) == {0: False, 1: True, 2: False}


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


def test_a_trial_that_a_process_holds_is_left_as_it_is(tmp_path):
    folder = trial(tmp_path / "0")
    before = names(folder)
    with hold_lock(folder / ".lock", wait_s=0), pytest.raises(Locked):
        free(folder, keeps_best=False)
    assert names(folder) == before


def test_the_disk_of_a_search_is_that_of_its_trials():
    sizes = Sizes(last=30, best=10)
    # Two trials run at a time, and while one saves it has two times 30 bytes.
    assert sizes.needed("all", 8, 2) == 8 * 40 + 2 * 30
    assert sizes.needed("rungs", 8, 2) == 6 * 10 + 2 * (40 + 30)
    assert sizes.needed("best", 8, 2) == 1 * 10 + 2 * (40 + 30)
    assert Sizes(last=30, best=10, runs=5).needed("all", 8, 2) == 8 * 5 * 40 + 2 * 30


def test_sizes_are_measured_in_the_folder_of_a_trial_and_of_its_folds(tmp_path):
    assert measured(trial(tmp_path / "0")) == Sizes(30, 20)
    assert measured(trial(tmp_path / "1", "fold-0", "fold-1")) == Sizes(30, 20, 2)
    assert measured(tmp_path / "2") is None and held(tmp_path) == 3 * (30 + 10 + 10 + 5)


def config(pretrained: object, **trainer: object) -> dict:
    return {
        "trainer": {"ema_decay": 0.99, "keep_best": 2, **trainer}, "model": {"pretrained": pretrained},
        "optimizer": {"_target_": "nlu.optim.adamw.AdamW", "freeze": []}, "seeds": 1, "fold": None,
        "adapter": {"_target_": "nlu.models.adapters.none.NoAdapter"}, "folds": {"count": 3},
    }  # fmt: skip


def test_sizes_are_expected_from_local_weights_and_otherwise_unknown(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    # Weights, two moments and the average; two best checkpoints; three folds.
    assert expected([config(str(tmp_path))]) == Sizes(400, 200, 3)
    assert expected([config(str(tmp_path), ema_decay=0)]) == Sizes(300, 200, 3)
    assert expected([config(str(tmp_path)), config(None)]) is None and expected([config("hf://bert")]) is None
    assert expected([]) is None


def test_the_announcement_warns_of_a_small_disk_and_names_what_needs_less():
    sizes = Sizes(last=300_000_000, best=100_000_000)
    line, *warning = sentences(sizes, "all", 10, 1, "s3://bucket/search", free=2 * 10**9, there=400_000_000)
    assert line == (
        "disk: at most about 4.3 GB with hydra.sweeper.keep=all, and as much in s3://bucket/search; each trial: last "
        "300.0 MB, best 100.0 MB"
    )
    assert warning == [
        "warning: the search may need 3.9 GB more, but 2.0 GB are free; free some space, or set "
        "hydra.sweeper.keep=rungs (1.6 GB) or hydra.sweeper.keep=best (800.0 MB)"
    ]
    assert len(sentences(sizes, "all", 10, 1, None, free=4 * 10**9, there=400_000_000)) == 1
