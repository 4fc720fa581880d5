"""What a job reports to its trial, once or again after it was continued, and the answers it gets."""

import errno
import math
import os
import signal
import threading
from pathlib import Path

import optuna
import pytest

from nlu.config import stopping
from nlu.config.errors import UserError
from nlu.search import channel
from nlu.search.channel import COMPLETE, DECISION, FAILED, LAUNCHES, OUTCOME, REASON, TrialChannel, run_trial
from nlu.search.closing import WHY, outcome_of
from nlu.search.faults import ProcessLost, StorageUnavailable
from nlu.search.pruners import PRUNER
from nlu.search.storage.open_study import open_storage, storage_url
from nlu.search.summary import read_summary
from nlu.search.trial_steps import PART_ENDS, value_at_end
from nlu.storage.pointer import MirrorUnavailable
from nlu.storage.refusals import CredentialsUnavailable, Denied, Unreachable

HALVING = {"name": "hyperband", "min_resource": 100, "max_resource": 199, "reduction_factor": 2}
"""one bracket with one rung"""


@pytest.fixture
def handed(tmp_path):
    """What jobs are handed: a function of the trial's number; the trials are begun."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = storage_url(None, tmp_path)
    study = optuna.create_study(study_name="s", storage=open_storage(url), direction="maximize")
    study.set_user_attr(PRUNER, HALVING)
    for _ in range(4):
        study.ask()
    return lambda number: {"storage": url, "study": "s", "number": number}


def frozen(handed, number: int) -> optuna.trial.FrozenTrial:
    mapping = handed(number)
    return optuna.load_study(study_name="s", storage=open_storage(mapping["storage"])).get_trials()[number]


def test_a_job_that_starts_after_a_newer_one_was_launched_changes_nothing(handed, tmp_path):
    study = optuna.load_study(study_name="s", storage=open_storage(handed(0)["storage"]))
    study._storage.set_trial_user_attr(study.trials[0]._trial_id, LAUNCHES, 2)
    begun = []
    for launch in (1, 2):
        assert (
            run_trial({**handed(0), "launch": launch}, tmp_path / "0", lambda own=launch: begun.append(own) or 0) == 0
        )
    assert begun == [2] and OUTCOME not in frozen(handed, 0).user_attrs


def test_a_continued_job_gets_the_answers_that_it_got_before(handed):
    TrialChannel(**handed(0)).report(100, 0.9)
    assert TrialChannel(**handed(1)).report(100, 0.2)
    again = TrialChannel(**handed(1))
    assert not again.report(50, 0.95) and again.report(100, 0.95)
    assert frozen(handed, 1).intermediate_values == {100: 0.2}
    good = TrialChannel(**handed(0))
    assert not good.report(50, 0.1) and not good.report(100, 0.9)


def test_a_job_killed_before_it_recorded_an_answer_gets_the_same_one(handed, monkeypatch):
    killed = TrialChannel(**handed(1))

    def die(name, value):
        raise KeyboardInterrupt

    monkeypatch.setattr(killed, "_set", die)
    with pytest.raises(KeyboardInterrupt):
        killed.report(100, 0.2)
    TrialChannel(**handed(0)).report(100, 0.9)
    assert not TrialChannel(**handed(1)).report(100, 0.2), "it was the best when it came"


def test_the_end_of_a_fold_is_noted_once_with_the_mean_of_the_best_so_far(handed):
    job = TrialChannel(**handed(0))
    job.report(100, 0.6)
    job.end_part(100, 0.9)
    job.end_part(190, math.nan)
    # A continued job repeats what it finds finished.
    TrialChannel(**handed(0)).end_part(100, 0.5)
    found = frozen(handed, 0)
    assert found.user_attrs[PART_ENDS] == [100, 190]
    assert [value_at_end(found, at) for at in (100, 190)] == [0.9, None]


def test_a_trial_that_a_user_stops_has_its_best_number_and_after_a_fold_the_mean(handed):
    def values() -> list[float | None]:
        return [outcome_of(frozen(handed, 0), WHY, maximize=more)["value"] for more in (True, False)]

    job = TrialChannel(**handed(0))
    job.report(50, math.nan)
    assert values() == [None, None]
    job.report(100, 0.4)
    job.report(150, 0.6)
    assert values() == [0.6, 0.4]
    job.end_part(160, 0.7)
    job.report(170, 0.95)
    assert values() == [0.7, 0.7]


def test_the_job_of_a_closed_trial_is_stopped_and_the_trial_does_not_change(handed):
    job = TrialChannel(**handed(2))
    optuna.load_study(study_name="s", storage=open_storage(handed(2)["storage"])).tell(2, 0.5)
    assert job.is_over and job.report(100, 0.9)
    job.finish(COMPLETE, value=0.9)
    assert frozen(handed, 2).value == 0.5 and OUTCOME not in frozen(handed, 2).user_attrs


@pytest.mark.parametrize(
    ("error", "told", "logged"),
    [
        (RuntimeError("first\nlast"), "RuntimeError: last", "Traceback (most recent call last)"),
        (UserError("a is 1", "b is 2"), "a is 1; b is 2", "b is 2"),
    ],
)
def test_an_error_of_a_run_is_its_outcome_and_in_its_log(handed, tmp_path, error, told, logged):
    def fail():
        raise error

    if isinstance(error, UserError):
        assert run_trial(handed(0), tmp_path / "0", fail) == 2
    else:
        with pytest.raises(type(error)):
            run_trial(handed(0), tmp_path / "0", fail)
    outcome = frozen(handed, 0).user_attrs[OUTCOME]
    assert outcome["state"] == FAILED and outcome["error"] == told
    assert logged in (tmp_path / "0/log.txt").read_text() and outcome["log"] == str(tmp_path / "0/log.txt")
    assert outcome["attempt"] == 0


@pytest.mark.parametrize(("status", "state"), [(75, None), (130, None), (1, FAILED)])
def test_a_run_that_stopped_with_its_state_saved_records_no_outcome(handed, tmp_path, status, state):
    assert run_trial(handed(0), tmp_path / "0", lambda: status) == status
    assert frozen(handed, 0).user_attrs.get(OUTCOME, {}).get("state") == state


def test_a_job_whose_trial_is_over_does_nothing(handed, tmp_path):
    TrialChannel(**handed(0)).finish(COMPLETE, value=1.0)
    assert run_trial(handed(0), tmp_path / "0", lambda: pytest.fail("it ran")) == 0


def test_the_value_is_the_best_of_the_runs_result(handed, tmp_path):
    def run():
        (tmp_path / "0").mkdir()
        (tmp_path / "0/result.json").write_text(
            '{"best": {"metric": "accuracy", "value": 0.75, "sd": 0.1}, "pruned": false, "examples": 640}'
        )
        return 0

    run_trial(handed(0), tmp_path / "0", run)
    outcome = frozen(handed, 0).user_attrs[OUTCOME]
    assert [outcome[key] for key in ("state", "value", "sd", "examples")] == [COMPLETE, 0.75, 0.1, 640]
    assert channel.LOCKS == ".jobs" and (tmp_path / ".jobs/0.lock").exists()


@pytest.mark.parametrize(("value", "shown"), [("null", "None"), ("Infinity", "inf"), ("NaN", "nan")])
def test_a_run_whose_best_value_is_nan_has_failed(handed, tmp_path, value, shown):
    def run():
        (tmp_path / "0").mkdir()
        best = f'{{"metric": "auc", "value": {value}}}'
        (tmp_path / "0/result.json").write_text(f'{{"best": {best}, "pruned": false, "examples": 640}}')
        return 0

    run_trial(handed(0), tmp_path / "0", run)
    outcome = frozen(handed, 0).user_attrs[OUTCOME]
    assert [outcome[key] for key in ("state", "value", "error")] == [FAILED, None, f"auc is {shown}"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/model"), "No space left on device: /x/model"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "I/O error: No space left on device (os e"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered\nhelp"), "CUDA error: uncorrectable ECC error"),
        (UserError("the cache cannot be written"), None),
        (OSError(errno.ENOENT, "No such file"), None),
        (RuntimeError("CUDA out of memory"), None),
    ],
)
def test_a_fault_of_the_machine_returns_the_trial_instead_of_failing_it(handed, tmp_path, error, said):
    def fail():
        raise RuntimeError("in other words") from error

    mapping = {**handed(0), "launch": 3}
    if said is None:
        with pytest.raises(RuntimeError):
            run_trial(mapping, tmp_path / "0", fail)
        assert frozen(handed, 0).user_attrs[OUTCOME]["state"] == FAILED and REASON not in frozen(handed, 0).user_attrs
    else:
        assert run_trial(mapping, tmp_path / "0", fail) == 75
        left = frozen(handed, 0).user_attrs
        assert OUTCOME not in left and left[REASON]["launch"] == 3
        assert left[REASON]["error"].startswith(f"a fault of its machine: {said}")
    assert not TrialChannel(**handed(0), attempt=1).is_over


@pytest.mark.parametrize("error", [
    MirrorUnavailable("it did not take it for 30 minutes"), CredentialsUnavailable("the token has expired"),
    Unreachable("busy"),
])  # fmt: skip
def test_a_temporary_failure_leaves_a_trial_to_be_continued_and_says_why(handed, tmp_path, error):
    def run():
        raise error

    assert run_trial({**handed(0), "launch": 3}, tmp_path / "0", run) == 75
    left = frozen(handed, 0).user_attrs
    assert OUTCOME not in left and left[REASON] == {"launch": 3, "error": error.problems[0]}


def test_a_refused_key_fails_a_trial(handed, tmp_path):
    def run():
        raise Denied("the store does not know this access key")

    assert run_trial(handed(0), tmp_path / "0", run) == 2
    assert frozen(handed, 0).user_attrs[OUTCOME]["state"] == FAILED


def test_a_job_that_was_asked_to_stop_says_by_which_signal(handed, tmp_path):
    def run():
        with stopping.polled():
            signal.raise_signal(signal.SIGTERM)
        return stopping.exit_code()

    assert run_trial(handed(0), tmp_path / "0", run) == 75
    assert frozen(handed, 0).user_attrs[REASON]["error"] == "it was sent SIGTERM"


def test_a_report_stops_waiting_for_its_storage_after_a_signal(handed):
    folder = Path(handed(0)["storage"].partition("://")[2]).parent
    trial = TrialChannel(**handed(0))
    folder.rename(folder.with_name("away"))
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    with stopping.polled(), pytest.raises(StorageUnavailable):
        trial.report(100, 0.5)
    folder.with_name("away").rename(folder)
    assert frozen(handed, 0).intermediate_values == {}


def test_the_time_of_a_continued_trial_is_that_of_all_its_jobs(handed):
    first = TrialChannel(**handed(0))
    first._began_s -= 100.0
    first.report(50, 0.1)
    told = frozen(handed, 0).user_attrs[DECISION]["wall_s"]
    assert 100.0 <= told < 110.0
    second = TrialChannel(**handed(0))
    second._began_s -= 20.0
    assert told + 20.0 <= second.wall_s < told + 30.0
    second.finish(COMPLETE, value=0.1)
    assert told + 20.0 <= frozen(handed, 0).user_attrs[OUTCOME]["wall_s"] < told + 30.0


def test_the_time_of_jobs_that_leave_their_trial_open_is_in_the_table(handed, tmp_path):
    def job(launch: int, seconds: float) -> None:
        mapping = {**handed(0), "launch": launch}

        def run() -> int:
            trial = channel.open_trial(mapping)
            trial._began_s -= seconds
            trial.report(50 * launch, 0.1)
            return stopping.EXIT_REQUEUE

        assert run_trial(mapping, tmp_path / "0", run) == stopping.EXIT_REQUEUE

    def wall_s() -> float:
        study = optuna.load_study(study_name="s", storage=open_storage(handed(0)["storage"]))
        return read_summary(study).trials[0].wall_s

    job(1, 100.0)
    assert 100.0 <= wall_s() < 110.0
    job(2, 40.0)
    assert 140.0 <= wall_s() < 150.0
    stopped = outcome_of(frozen(handed, 0), WHY, maximize=True)
    assert stopped["wall_s"] == wall_s(), "not since its begin, with the time in which it was paused"


def test_a_signal_to_a_job_in_the_process_of_its_search_stops_the_search_too(handed, tmp_path):
    with pytest.raises(stopping.Stopped):
        run_trial(handed(0), tmp_path / "0", lambda: signal.raise_signal(signal.SIGTERM))
    assert OUTCOME not in frozen(handed, 0).user_attrs


@pytest.fixture
def over_two_nodes(monkeypatch):
    """The environment of a process of several; sets which of them it is."""
    for name, value in (("WORLD_SIZE", "2"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    return lambda rank: monkeypatch.setenv("RANK", str(rank))


@pytest.mark.parametrize("error", [
    RuntimeError("[/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"),
    ProcessLost("of another node"),
])  # fmt: skip
def test_a_lost_process_of_another_node_leaves_the_trial_open_unlike_a_local_one(
    handed, tmp_path, over_two_nodes, monkeypatch, error
):
    def run():
        raise error

    over_two_nodes(0)
    with pytest.raises(RuntimeError):
        run_trial(handed(0), tmp_path / "0", run)
    assert OUTCOME not in frozen(handed, 0).user_attrs and str(error) in (tmp_path / "0/log.txt").read_text()
    monkeypatch.undo()
    with pytest.raises(RuntimeError):
        run_trial(handed(1), tmp_path / "1", run)
    assert frozen(handed, 1).user_attrs[OUTCOME]["state"] == FAILED
