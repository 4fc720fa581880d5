"""A search that ends while jobs are under way: what it waits for, what it says of them, what it asks."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from nlu.config import stopping
from nlu.jobs import full_queue
from nlu.jobs.queue import Job, Ticket
from nlu.jobs.submissions import Submissions


class Slots:
    """Jobs of which some end when they are waited for."""

    def __init__(self, ends: list[int], *, is_local: bool = False):
        self.ends, self.is_local = ends, is_local

    def next_ended(self, wait_s: float = 0.0) -> Any:
        return type("Ended", (), {"number": self.ends.pop(0)}) if self.ends else None


class Board:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """A function that ends a search with these jobs under way, after a signal or without one; returns its board."""
    from nlu.search import failures as _failures

    monkeypatch.setattr(_failures, "cancelled", [], raising=False)
    monkeypatch.setattr(_failures, "cancel_jobs", lambda folder, numbers: _failures.cancelled.append({*numbers}))

    def end(slots: Slots, running: set[int], number: int | None = None) -> Board:
        board = Board()
        try:
            if number is not None:
                stopping.note(number)
            _failures.end_jobs(slots, running, tmp_path, board)
        finally:
            stopping.signals.forget()
        return board

    with full_queue.of_a_search():
        yield end


def test_jobs_elsewhere_continue_there_and_those_that_wait_for_a_place_give_up(ended, tmp_path):
    remedy = f"; python -m nlu.jobs {tmp_path} --cancel ends such jobs"
    jobs = [Job(number, str(tmp_path), (), str(number)) for number in (1, 2, 3, 7)]
    Submissions(tmp_path).begin(jobs, "slurm", {}, "train")
    Submissions(tmp_path).submitted([Ticket(job, job.token) for job in jobs if job.number != 2])
    assert not full_queue.is_over()
    assert ended(Slots([]), {1, 2, 3}, signal.SIGTERM).said == [
        f"trials 1, 3 are under way elsewhere, and continue there{remedy}"
    ]
    assert full_queue.is_over()
    assert ended(Slots([]), {7}).said == [f"trial 7 is under way elsewhere, and continues there{remedy}"]


def test_jobs_of_this_machine_are_told_to_save_their_state_until_all_have_ended(ended):
    from nlu.search import failures as _failures

    slots = Slots([5, 2, 8], is_local=True)
    assert ended(slots, {2, 5, 8}).said == ["trials 2, 5, 8 are under way: they save their state and end"]
    assert _failures.cancelled == [{2, 5, 8}, {2, 8}, {8}] and slots.ends == []


def test_jobs_under_way_are_asked_to_stop_also_where_ctrl_c_comes_twice(tmp_path, monkeypatch):
    from nlu.search import loop as _impl

    def loop(search: Any) -> None:
        search.running = {1: None}
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    ended: list[set[int]] = []
    monkeypatch.setattr(_impl, "end_jobs", lambda slots, running, folder, board: ended.append(running))
    monkeypatch.setattr(_impl, "announce", lambda *_: None)
    monkeypatch.setattr(_impl.Search, "_loop", loop)
    settings = {"stop_after_same_failures": 0, "keep": "all"}
    plan: Any = SimpleNamespace(
        folder=tmp_path, settings=settings, n_trials=2, mirror=None, storage=SimpleNamespace(), spec={"name": "none"},
        composed_value=None, space=None, seed=0, warning=None,
        study=SimpleNamespace(get_trials=lambda deepcopy: [], user_attrs={}),
        slots=SimpleNamespace(count=1, is_threaded=True, open_jobs=lambda say: {}),
    )  # fmt: skip
    with pytest.raises(SystemExit) as end:
        _impl.Search(plan).run()
    assert end.value.code == 130 and ended == [{1}]
