"""A trial whose job ends early: it starts again, after a pause if it made no progress, and not without limit."""

import signal
import time
from types import SimpleNamespace

import pytest

from tests.launchers import searches
from tests.launchers.searches import runs, search, start, states, trials

AT_ONCE = "import runpy, sys; sys.argv[:] = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rpartition('/')[0]); " \
    "sys.path.append('launchers'); import hydra_plugins.hyperband_sweeper._failures as failures; " \
    "failures.RESTARTS = failures.Pauses(0.01, 0.01, 4); runpy.run_path(sys.argv[0], run_name='__main__')"  # fmt: skip
QUICKLY = ["-c", AT_ONCE, *searches.PROGRAM]
DRAWN = ("lr=choice(0.1,0.2)", "hydra/sweeper/sampler=grid")


@pytest.mark.thorough
def test_a_cause_that_stops_all_jobs_ends_the_search_and_no_trial_is_lost(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "away").touch()
    many = ("lr=interval(0.001,1)", "hydra.sweeper.n_trials=9")
    said = search(folder, *many, program=QUICKLY, status=1)
    assert "trials 0, 1 stopped 5 times in a row without progress: the mirror is away" in said
    assert "MirrorUnavailable" not in said and "no trial is lost" in said
    # The one slot asked for one more trial while the first one paused, and for no third.
    assert states(folder) == ["RUNNING"] * 2 and [runs(folder, number) for number in (0, 1)] == [[0] * 5] * 2
    (folder / "away").unlink()
    search(folder, *many)
    assert states(folder) == ["COMPLETE"] * 9


@pytest.mark.thorough
def test_other_trials_run_while_one_pauses_and_draw_the_same_values_as_without(tmp_path):
    folder, drawn = tmp_path / "s", ("lr=interval(0.001,1)", "hydra.sweeper.n_trials=4")
    program = ["-c", AT_ONCE.replace("0.01, 0.01", "9999, 9999"), *searches.PROGRAM]
    folder.mkdir()
    (folder / "away-0").touch()
    process = start(folder, *drawn, program=program)
    deadline_s = time.monotonic() + 120
    while len(list(folder.glob("[123]/result.json"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline_s, "trial 0 keeps the others waiting"
        time.sleep(0.05)
    assert runs(folder, 0) == [0]
    process.send_signal(signal.SIGTERM)
    assert "continues" in process.communicate(timeout=60)[0]
    (folder / "away-0").unlink()
    search(folder, *drawn)
    search(tmp_path / "t", *drawn)
    assert states(folder) == ["COMPLETE"] * 4
    assert [trial.params for trial in trials(folder)] == [trial.params for trial in trials(tmp_path / "t")]


@pytest.mark.thorough
def test_a_job_that_can_never_start_ends_the_search_with_the_reason_after_the_others(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "away-0").touch()
    said = search(folder, "lr=interval(0.001,1)", "hydra.sweeper.n_trials=3", program=QUICKLY, status=1)
    assert states(folder) == ["RUNNING", "COMPLETE", "COMPLETE"]
    told = "trial 0 stopped 5 times in a row without progress: the mirror is away"
    assert f"{told}; it is set aside until no other trial is left" in said
    assert said.rindex(told) > said.rindex("it is set aside until"), "the end says why"
    assert f"correct that, and the same command with hydra.sweep.dir={folder} continues" in said


@pytest.mark.thorough
def test_a_job_that_stops_after_every_step_gets_to_its_end(tmp_path):
    folder = tmp_path / "s"
    said = search(folder, *DRAWN, "stops=true", "steps=7", program=QUICKLY)
    assert states(folder) == ["COMPLETE"] * 2
    assert [runs(folder, number) for number in range(2)] == [[0, 1, 2, 3, 4, 5, 6]] * 2
    assert said.count("trial 0: its job stopped (no reason known); it continues now") == 6


@pytest.fixture
def restarts(monkeypatch):
    from hydra_plugins.hyperband_sweeper import _failures

    from nlu.storage.temporary import Pauses

    monkeypatch.setattr(_failures, "RESTARTS", Pauses(5.0, 60.0, 3))
    return _failures.Restarts()


def test_a_job_that_vanishes_a_third_time_without_having_got_further_is_given_up(restarts):
    assert restarts.vanished(1, got_further=False) > 0
    assert restarts.vanished(1, got_further=False) > 0
    assert restarts.vanished(1, got_further=False) is None


def test_a_job_that_got_further_in_between_is_not_given_up(restarts):
    for _ in range(4):
        assert restarts.vanished(1, got_further=False) is not None
        assert restarts.vanished(1, got_further=False) is not None
        assert restarts.vanished(1, got_further=True) == 0.0
        assert restarts.stopped(2, got_further=False) is not None
        assert restarts.stopped(2, got_further=True) == 0.0


def test_the_trials_of_other_numbers_count_for_themselves(restarts):
    """A machine with a full disk takes job after job, since each of them is gone again at once."""
    for number in range(10):
        assert restarts.vanished(number, got_further=False) is not None
        assert restarts.at_fault(number, got_further=False) is not None


def test_a_trial_on_a_repeatedly_failing_machine_is_not_started_again(restarts):
    for _ in range(2):
        assert restarts.at_fault(1, got_further=False) > 0
        assert restarts.at_fault(1, got_further=False) > 0
        assert restarts.at_fault(1, got_further=True) == 0.0
    assert restarts.at_fault(1, got_further=False) > 0
    assert restarts.at_fault(1, got_further=False) > 0
    assert restarts.at_fault(1, got_further=False) is None


def test_trials_that_were_set_aside_start_again_if_another_has_got_further_since(restarts, tmp_path):
    for number in (1, 2):
        for _ in range(3):
            restarts.stopped(number, got_further=False)
        assert restarts.stopped(number, got_further=False) is None
    restarts.put_aside(1, f"found no {tmp_path}/1/here")
    restarts.progressed(3)
    restarts.put_aside(2, f"found no {tmp_path}/2/here")
    assert restarts.next_due([1, 2]) is None
    assert not restarts.recall()
    (told,) = restarts.error(tmp_path).problems
    assert told == "trials 1, 2 found no FOLDER/here"
    restarts.progressed(3)
    assert restarts.recall() and restarts.set_aside == {}
    assert restarts.next_due([1, 2]) == 1 and restarts.stopped(1, got_further=False) > 0


def test_a_trial_that_pauses_lets_others_go_first_and_is_started_when_it_is_due(restarts, monkeypatch):
    from hydra_plugins.hyperband_sweeper import _failures

    now_s = 100.0
    monkeypatch.setattr(_failures, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now_s)}))
    pause_s = restarts.stopped(3, got_further=False)
    assert 2.5 <= pause_s <= 7.5
    waiting = [3, 4]
    assert restarts.next_due(waiting) == 4 and restarts.next_due(waiting) is None and waiting == [3]
    now_s += pause_s
    assert restarts.next_due(waiting) == 3 and waiting == []


def test_a_trial_that_stopped_pauses_longer_and_longer_and_others_need_not_wait(monkeypatch):
    from hydra_plugins.hyperband_sweeper import _failures

    clock = SimpleNamespace(now_s=1000.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(_failures, "time", clock)
    monkeypatch.setattr(_failures, "RESTARTS", (5.0, 20.0))
    restarts, waiting = _failures.Restarts(), [1, 2, 1]
    assert restarts.stopped(1, got_further=False) == 5.0
    assert restarts.next_due(waiting) == 2 and waiting == [1, 1] and restarts.next_due(waiting) is None
    clock.now_s += 4.9
    assert restarts.next_due(waiting) is None
    clock.now_s += 0.1
    assert restarts.next_due(waiting) == 1 and waiting == [1]
    assert restarts.stopped(1, got_further=False) == 20.0 and restarts.stopped(1, got_further=False) is None
    assert restarts.stops[1] == 3
    restarts.progressed(1)
    assert restarts.stops[1] == 0 and restarts.next_due(waiting) == 1 and restarts.next_due([]) is None
    assert restarts.stopped(1, got_further=False) == 5.0 and restarts.vanished(1, got_further=True) == 0.0
    assert restarts.stopped(1, got_further=False) == 5.0
