"""Nothing goes that a resume needs, nothing goes unasked."""

import fcntl
import json

import pytest

import nlu
from nlu.config.errors import UserError
from nlu.reports.cleaning import clean, clean_runs, plan_of
from nlu.reports.runs import find_runs, read_run
from nlu.storage import settle
from nlu.storage.settle import MARKER
from tests.inference.runs import trained, unlabelled
from tests.reports.folders import begin_run, checkpoints, end_run, evaluate
from tests.training.kinds import TASKS


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def ended(folder, **changes):
    return checkpoints(end_run(begin_run(folder, **changes), 0.5), best=3)


def removed(plan):
    return sorted(str(path.relative_to(plan.run.folder / "checkpoints")) for path in plan.removable)


@pytest.mark.parametrize("pruned", [False, True])
def test_further_best_checkpoints_and_the_optimizer_of_an_ended_run_are_removable(tmp_path, pruned):
    folder = checkpoints(end_run(begin_run(tmp_path / "a"), 0.5, pruned=pruned), best=3)
    plan = plan_of(read_run(folder))
    assert removed(plan) == ["best-2", "best-3", "last/optimizer.safetensors"] and plan.size_bytes == 4000


def test_a_cleaned_run_predicts_from_last_what_it_predicted_before(tmp_path):
    run = trained(TASKS["classify"], tmp_path, "trainer.ema_decay=0.9")
    rows = [row["text"] for row in unlabelled(TASKS["classify"], 5)]
    before = nlu.load(run / "last", device="cpu").predict(rows, logits=True)
    assert clean_runs([read_run(run)], False, confirmed=True) == []
    assert not (run / "checkpoints" / "last" / "optimizer.safetensors").exists()
    assert nlu.load(run / "last", device="cpu").predict(rows, logits=True) == before


def test_a_folder_that_is_half_removed_by_a_kill_is_unmarked(tmp_path, monkeypatch):
    plan = plan_of(read_run(ended(tmp_path / "a")))
    whole = [path for path in plan.removable if (path / MARKER).is_file()]
    assert whole, "the test wants a checkpoint that is marked"

    def killed(path):
        assert not (path / MARKER).exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(settle.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        clean(plan)


def test_an_unfinished_run_is_kept_completely(tmp_path):
    plan = plan_of(read_run(checkpoints(evaluate(begin_run(tmp_path / "a"), 0.5), best=2)))
    assert plan.removable == {} and "a resume needs all of it" in plan.kept_because


def test_a_run_that_is_held_is_kept_completely_even_if_it_was_free_before(tmp_path):
    folder = ended(tmp_path / "a")
    plan = plan_of(read_run(folder))
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = files(folder)
        with pytest.raises(UserError, match="is held by a process"):
            clean(plan)
        assert files(folder) == before


def test_a_finished_fold_stays_whole_until_all_folds_are(tmp_path):
    whole = begin_run(tmp_path / "run", folds__count=2)
    fold = ended(whole / "fold-0", folds__count=2, fold=0)
    plan = plan_of(read_run(fold))
    assert plan.removable == {} and plan.kept_because == "part of run, which has not ended"
    (whole / "result.json").write_text(json.dumps({"parts": []}))
    assert plan_of(read_run(fold)).removable


def test_nothing_is_removed_without_a_yes_and_the_total_is_printed(tmp_path, capsys):
    for name in ("a", "b"):
        ended(tmp_path / name)
    before = files(tmp_path)
    assert clean_runs(find_runs([tmp_path])[0], False, confirmed=False) == []
    assert files(tmp_path) == before and "nothing was removed: add --yes" in capsys.readouterr().out


def test_a_yes_removes_exactly_the_listed_files(tmp_path, capsys):
    folder = ended(tmp_path / "a")
    before = files(folder)
    assert clean_runs(find_runs([tmp_path])[0], False, confirmed=True) == []
    gone = sorted(set(before) - set(files(folder)))
    assert gone == [
        "checkpoints/best-2/COMPLETE", "checkpoints/best-2/model.safetensors", "checkpoints/best-3/COMPLETE",
        "checkpoints/best-3/model.safetensors", "checkpoints/last/optimizer.safetensors",
    ]  # fmt: skip
    assert "MB freed" in capsys.readouterr().out
