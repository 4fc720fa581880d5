"""A failed trial is a line at once, a traceback in its own log, FAIL in the storage; and what is done about it."""

import time
from pathlib import Path

import optuna
import pytest

from nlu.search.storage.open_study import open_storage, storage_url
from tests.launchers import searches
from tests.launchers.searches import outcomes, runs, search, start, states

DRAWN = "lr=choice(0.1,0.2,0.3,0.4)"
SOME_FAIL = ("hydra.sweeper.n_trials=4", "fail=choice(true,false)", "lr=choice(0.1,0.2)")


def test_a_failed_trial_is_reported_and_the_others_continue(tmp_path):
    said = search(tmp_path / "s", *SOME_FAIL)
    assert sorted(states(tmp_path / "s")) == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]
    failed = [outcome for outcome in outcomes(tmp_path / "s") if outcome["state"] == "failed"]
    for outcome in failed:
        assert "RuntimeError: lr 0." in outcome["error"] and outcome["log"] in said
        log = Path(outcome["log"]).read_text()
        assert "Traceback (most recent call last)" in log and "is too high" in log


def test_a_failed_trial_is_tried_again_under_its_number(tmp_path):
    search(tmp_path / "s", *SOME_FAIL, "hydra.sweeper.retries=2")
    for number, outcome in enumerate(outcomes(tmp_path / "s")):
        assert len(runs(tmp_path / "s", number)) == (3 if outcome["state"] == "failed" else 1)


def test_the_same_failure_of_all_first_trials_ends_the_search(tmp_path):
    said = search(tmp_path / "s", "step_s=interval(0,0.01)", "fail=true", "hydra.sweeper.n_trials=9", status=1)
    assert states(tmp_path / "s") == ["FAIL"] * 3
    assert "the first 3 trials failed with the same error, shown above" in said
    # Once when it happens, and once in the summary.
    assert said.count("RuntimeError: lr 0.1 is too high") == 2
    assert said.count("the same as trial 0") == 2
    assert "failed: trials 0, 1, 2: " in said and (tmp_path / "s/summary/trials.tsv").read_text().count("failed") >= 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 0.35 GiB. GPU 0 has a total capacity of 79.1 GiB",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 18.00 MiB. GPU 1 has a total capacity of 79.1 GiB",
        ),
        ("ValueError: lr 1e-05 is too high", "ValueError: lr 0.3 is too high"),
        ("FileNotFoundError: no '/data/0/x y.tsv'", "FileNotFoundError: no '/data/17/z.tsv'"),
        ("RuntimeError: no model in FOLDER/1/last", "RuntimeError: no model in FOLDER/2/last"),
    ],
)
def test_errors_that_differ_in_numbers_units_and_paths_are_the_same_failure(tmp_path, one, other):
    from nlu.search.failures import Failures, FailuresEndSearch

    failures = Failures(tmp_path, limit=2)
    failures.failed(0, one.replace("FOLDER", str(tmp_path)), ended_count=1)
    with pytest.raises(FailuresEndSearch, match="the first 2 trials failed with the same error"):
        failures.failed(1, other.replace("FOLDER", str(tmp_path)), ended_count=2)


@pytest.mark.parametrize(
    ("one", "other"),
    [("ValueError: no label", "KeyError: no label"), ("OSError: no file a.tsv", "OSError: no file b.tsv")],
)
def test_errors_of_another_class_or_text_are_other_failures(tmp_path, one, other):
    from nlu.search.failures import Failures

    failures = Failures(tmp_path, limit=2)
    for number, error in enumerate((one, other, one)):
        failures.failed(number, error, ended_count=number + 1)


IMPATIENT = "import runpy, sys, nlu.search.faults as s; s.OUTAGE_S = 0.5; sys.argv[:] = sys.argv[1:]; " \
    "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); runpy.run_path(sys.argv[0], run_name='__main__')"  # fmt: skip


@pytest.mark.thorough
def test_a_lost_storage_ends_a_search_with_one_sentence_and_fails_no_trial(tmp_path):
    folder, held = tmp_path / "s", tmp_path / "mounted"
    held.mkdir()
    own = ("lr=interval(0.001,1)", "hydra.sweeper.n_trials=2", "step_s=0.6", "hydra.sweeper.study_name=s",
           f"hydra.sweeper.storage={held}/journal.log")  # fmt: skip
    process = start(folder, *own, program=["-c", IMPATIENT, *searches.PROGRAM])
    while not list(folder.glob("*/state.json")) and process.poll() is None:
        time.sleep(0.05)
    held.rename(tmp_path / "unmounted")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "which has not answered for 1 s" in said.replace("for 0 s", "for 1 s"), said
    (tmp_path / "unmounted").rename(held)
    study = optuna.load_study(study_name="s", storage=open_storage(storage_url(f"{held}/journal.log", folder)))
    assert [trial.state.name for trial in study.get_trials()] == ["RUNNING"]
    search(folder, *own)
    assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE"] * 2
