"""A trial whose job ends early: it starts again, after a pause if it made no progress, and not without limit."""

from types import SimpleNamespace

import pytest

from tests.launchers import searches
from tests.launchers.searches import runs, search, states

AT_ONCE = "import runpy, sys; sys.argv[:] = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rpartition('/')[0]); " \
    "sys.path.append('launchers'); import nlu.search.failures as failures; " \
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
    from nlu.search import failures as _failures

    from nlu.storage.temporary import Pauses

    monkeypatch.setattr(_failures, "RESTARTS", Pauses(5.0, 60.0, 3))
    return _failures.Restarts()


def test_a_job_that_vanishes_a_third_time_without_having_got_further_is_given_up(restarts):
    assert restarts.interrupted(1, "lost", got_further=False) > 0
    assert restarts.interrupted(1, "lost", got_further=False) > 0
    assert restarts.interrupted(1, "lost", got_further=False) is None


def test_a_trial_on_a_repeatedly_failing_machine_is_not_started_again(restarts):
    for _ in range(2):
        assert restarts.interrupted(1, "at fault", got_further=False) > 0
        assert restarts.interrupted(1, "at fault", got_further=False) > 0
        assert restarts.interrupted(1, "at fault", got_further=True) == 0.0
    assert restarts.interrupted(1, "at fault", got_further=False) > 0
    assert restarts.interrupted(1, "at fault", got_further=False) > 0
    assert restarts.interrupted(1, "at fault", got_further=False) is None


def test_a_trial_that_stopped_pauses_longer_and_longer_and_others_need_not_wait(monkeypatch):
    from nlu.search import failures as _failures

    clock = SimpleNamespace(now_s=1000.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(_failures, "time", clock)
    monkeypatch.setattr(_failures, "RESTARTS", (5.0, 20.0))
    restarts, waiting = _failures.Restarts(), [1, 2, 1]

    def stopped() -> float | None:
        return restarts.interrupted(1, "stopped", got_further=False)

    assert stopped() == 5.0
    assert restarts.next_due(waiting) == 2 and waiting == [1, 1] and restarts.next_due(waiting) is None
    clock.now_s += 4.9
    assert restarts.next_due(waiting) is None
    clock.now_s += 0.1
    assert restarts.next_due(waiting) == 1 and waiting == [1]
    assert stopped() == 20.0 and stopped() is None
    assert restarts.counts[1, "stopped"] == 3
    restarts.progressed(1)
    assert restarts.counts[1, "stopped"] == 0 and restarts.next_due(waiting) == 1 and restarts.next_due([]) is None
    assert stopped() == 5.0 and restarts.interrupted(1, "lost", got_further=True) == 0.0
    assert stopped() == 5.0
