"""What is due after each step, against positions counted by hand."""

from typing import Any

import pytest

from nlu.config.durations import Clock
from nlu.config.keys import schema_of
from nlu.config.schema import Trainer
from nlu.training.due import Due

CLOCK = Clock(num_examples=27, examples_per_step=8)
"""an epoch has four steps, which see 8, 8, 8 and 3 examples"""


def due(**trainer: Any) -> Due:
    return Due(Trainer(**{"max_duration": "60st", **trainer}), CLOCK)


def evaluated(**trainer: Any) -> list[int]:
    found = due(**trainer)
    return [step for step in range(1, 61) if found.evaluates(step)]


@pytest.mark.parametrize(
    ("eval_warmup", "early"),
    [
        (None, [2, 4, 6, 8]),
        ("1st", [2, 4, 6, 8]),
        ("5st", [6, 8]),
        ("6st", [6, 8]),
        # 3 epochs are 12 steps.
        ("3ep", []),
        ("45st", []),
    ],
)
def test_evaluations_are_ten_times_less_often_in_the_warm_up(eval_warmup: str | None, early: list[int]) -> None:
    found = evaluated(eval_interval="2st", eval_warmup=eval_warmup)
    assert [step for step in found if step < 10] == early
    late = {"3ep": [*range(12, 61, 2)], "45st": [20, 40, *range(46, 61, 2)]}.get(str(eval_warmup), [*range(10, 61, 2)])
    assert [step for step in found if step >= 10] == late


def test_a_warm_up_counts_fractions_of_an_epoch_exactly() -> None:
    # Ten times 0.35 epochs are 94.5 examples. 14 steps see 81 + 8 + 8 of them, and 28 steps exactly twice as many.
    assert evaluated(eval_interval="0.35ep", eval_warmup="40st")[:2] == [14, 28]


def test_the_last_step_is_evaluated_within_a_warm_up() -> None:
    assert evaluated(eval_interval="3st", eval_warmup="90st") == [30, 60]
    assert evaluated(eval_interval="7st", eval_warmup="90st", max_duration="20st")[:1] == [20]


@pytest.mark.parametrize(
    ("min_duration", "ends_at"), [(None, 9), ("2st", 9), ("3st", 9), ("8st", 15), ("2ep", 15), ("9st", 15)]
)
def test_patience_counts_from_the_shortest_length_of_a_run(min_duration: str | None, ends_at: int) -> None:
    # The best evaluation is that of step 3, and patience is six steps.
    found = due(patience="6st", min_duration=min_duration)
    ended = [step for step in range(3, 60, 3) if found.is_out_of_patience(step, 3)]
    assert ended[0] == ends_at and ended == [*range(ends_at, 60, 3)]
    assert not any(found.is_out_of_patience(step, step) for step in range(60))
    assert not any(due().is_out_of_patience(step, 0) for step in range(60))


def test_a_stage_ends_where_it_should_and_the_schedule_keeps_the_whole_run() -> None:
    for written, end in (("5st", 5), ("1ep", 4), ("28ex", 5)):
        found = due(stop_after=written, save_interval="50st")
        assert found.total_steps == 60
        assert [step for step in range(1, 61) if found.is_stage_over(step)][:2] == [end, end + 1]
        assert [step for step in range(1, 60) if found.saves(step)][0] == end
    assert not any(due().is_stage_over(step) for step in range(61))


def test_the_state_is_saved_at_its_own_interval_or_else_with_each_evaluation() -> None:
    for interval, saved in (("7st", [7, 14]), ("0", [4, 8, 12, 16])):
        found = due(eval_interval="4st", save_interval=interval)
        assert [step for step in range(1, 18) if found.saves(step)] == saved
    # What the help of the key says.
    said = schema_of("nlu.config.schema.Trainer").help["save_interval"]
    assert "it is also saved at a new best, an error and the end; " in said and "0 = at each evaluation" in said


@pytest.mark.parametrize(
    ("rows", "duration", "has_floor", "steps"),
    [
        (18, "1.5ep", True, 60), (18, "1.5ep", False, 2), (18, "1ep", True, 1), (18, "5st", True, 5),
        (1270, "1.5ep", True, 60), (1290, "1.5ep", True, 62),
    ],
)  # fmt: skip
def test_only_the_default_length_takes_at_least_60_steps(rows, duration, has_floor, steps):
    due = Due(Trainer(max_duration=duration), Clock(rows, 32), has_floor=has_floor)
    assert due.total_steps == steps
