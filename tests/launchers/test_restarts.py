"""A trial whose job ends early: it starts again, after a pause if it made no progress, and not without limit."""

import signal
import time
from types import SimpleNamespace

import optuna
import pytest

from tests.launchers.searches import QUICKLY, runs, search, start, states, trials

DRAWN = ("lr=choice(0.1,0.2)",)


@pytest.mark.thorough
def test_a_cause_that_stops_all_jobs_ends_the_search_and_no_trial_is_lost(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "away").touch()
    many = ("lr=interval(0.001,1)", "hydra.sweeper.n_trials=9")
    said = search(folder, *many, program=QUICKLY, status=1)
    assert "trials 0, 1: its job stopped (the mirror is away)" in said
    assert "MirrorUnavailable" not in said and "no trial is lost" in said
    # The one slot asked for one more trial while the first one paused, and for no third.
    assert states(folder) == ["RUNNING"] * 2 and [runs(folder, number) for number in (0, 1)] == [[0] * 5] * 2
    (folder / "away").unlink()
    search(folder, *many)
    assert states(folder) == ["COMPLETE"] * 9


DIES = ("dies=choice(true,false)",)


def test_a_trial_that_kills_its_search_three_times_without_progress_fails_for_good(tmp_path):
    folder = tmp_path / "s"
    for _ in range(3):
        # In Hydra's own launcher its process is that of the search.
        search(folder, *DIES, "hydra.sweeper.retries=2", status=9)
    said = search(folder, *DIES, "hydra.sweeper.retries=2")
    ended = {trial.params["dies"]: (trial.state.name, len(runs(folder, trial.number))) for trial in trials(folder)}
    assert ended == {True: ("FAIL", 3), False: ("COMPLETE", 1)}
    assert "its process died 3 times in a row without progress" in said


def test_a_search_that_is_stopped_again_and_again_fails_no_trial(tmp_path):
    folder = tmp_path / "s"
    for count in range(1, 5):
        process = start(folder, "lr=interval(0.001,1)", "hydra.sweeper.n_trials=1", "steps=1", "step_s=2")
        while not (folder / "0/runs.txt").exists() or len(runs(folder, 0)) < count:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    search(folder, "lr=interval(0.001,1)", "hydra.sweeper.n_trials=1", "steps=1", "step_s=2")
    assert states(folder) == ["COMPLETE"] and len(runs(folder, 0)) == 5


def test_a_trial_that_stopped_pauses_longer_and_longer_and_others_need_not_wait(monkeypatch):
    from nlu.search import failures as _failures

    clock = SimpleNamespace(now_s=1000.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(_failures, "time", clock)
    monkeypatch.setattr(_failures, "RESTARTS", (5.0, 20.0))
    restarts, waiting = _failures.Restarts(), [1, 2, 1]

    def stopped() -> float | None:
        return restarts.interrupted(1, "no disk", got_further=False)

    assert stopped() == 5.0
    assert restarts.next_due(waiting) == 2 and waiting == [1, 1] and restarts.next_due(waiting) is None
    clock.now_s += 4.9
    assert restarts.next_due(waiting) is None
    clock.now_s += 0.1
    assert restarts.next_due(waiting) == 1 and waiting == [1]
    assert stopped() == 20.0 and restarts.interrupted(1, "no disk", got_further=True) == 0.0
    assert stopped() == 5.0 and stopped() == 20.0 and stopped() is None
    clock.now_s += 1000
    assert restarts.next_due(waiting) is None and restarts.set_aside == {1: "no disk"}


def test_launches_count_as_deaths_from_the_last_progress_or_word_on(tmp_path):
    from nlu.search.failures import SINCE, place_of, since

    def launched(trial, launch):
        """Returns how often the process of the trial has died in a row, as known at this launch."""
        trial.user_attrs[SINCE] = since(trial, launch, place_of(trial, tmp_path, ""))
        return launch - trial.user_attrs[SINCE]["launch"]

    trial = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
    assert [launched(trial, launch) for launch in (1, 2, 3, 4)] == [0, 1, 2, 3]
    trial.user_attrs["reason"] = {"launch": 4, "error": "it was sent SIGTERM"}
    assert [launched(trial, launch) for launch in (5, 6)] == [0, 1]
    trial.intermediate_values = {100: 0.5}
    assert [launched(trial, launch) for launch in (7, 8)] == [0, 1]
    saved = tmp_path / "fold-1/checkpoints/last/state.json"
    saved.parent.mkdir(parents=True)
    saved.touch()
    assert [launched(trial, launch) for launch in (9, 10)] == [0, 1]
    trial.user_attrs["attempt"] = 1
    assert launched(trial, 11) == 0
