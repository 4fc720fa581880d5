"""The clock counts every example once per epoch and misses no multiple of an interval."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.config.durations import Clock, Duration, parse_duration, parse_interval, parse_warmup
from nlu.config.errors import UserError

clocks = st.builds(Clock, num_examples=st.integers(1, 60), examples_per_step=st.integers(1, 80))
durations = st.one_of(
    st.builds(Duration, amount=st.integers(1, 200), unit=st.sampled_from(["ep", "st", "ex"])),
    st.builds(Duration, amount=st.sampled_from([0.1, 0.25, 0.3, 1.5, 0.07]), unit=st.just("ep")),
)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("3ep", Duration(3, "ep")),
        ("0.5ep", Duration(0.5, "ep")),
        ("500st", Duration(500, "st")),
        ("500.0st", Duration(500, "st")),
        ("32000ex", Duration(32000, "ex")),
    ],
)
def test_a_duration_is_an_amount_and_a_unit(text: str, duration: Duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["0ep", "0.0ep", "-1st", "0.5st", "1.5ex", "3", "ep", "3 ep", "3epochs", "", "\u0663ep", "9" * 5000]
)
def test_other_texts_are_refused_as_a_duration(text: str):
    with pytest.raises(UserError, match="must be a duration"):
        parse_duration(text)


def test_an_interval_of_zero_is_none():
    assert parse_interval(0) is None
    assert parse_interval("0") is None
    assert parse_interval("2st") == Duration(2, "st")
    for value in (500, False, "0st", None):
        with pytest.raises(UserError, match="must be 0 or a duration"):
            parse_interval(value)


def test_a_warmup_is_a_ratio_or_a_duration():
    assert parse_warmup(0) == 0.0
    assert parse_warmup(1) == 1.0
    assert parse_warmup("0.5ep") == Duration(0.5, "ep")
    for value in (500, 1.01, -0.1, True, "ten", float("nan")):
        with pytest.raises(UserError, match="must be a ratio"):
            parse_warmup(value)


@given(clocks, st.integers(1, 5))
def test_every_epoch_sees_each_example_once(clock: Clock, epochs: int):
    step = epochs * clock.steps_per_epoch
    assert clock.examples(step) == epochs * clock.num_examples
    assert clock.epoch(step) == epochs
    assert clock.epoch(step - 1) < epochs


@given(clocks, st.integers(1, 200))
def test_a_step_sees_at_least_one_example_and_at_most_its_share(clock: Clock, step: int):
    assert 1 <= clock.examples(step) - clock.examples(step - 1) <= clock.examples_per_step


def progress(clock: Clock, duration: Duration, step: int) -> Fraction:
    """Return how many times `duration` fits into the first `step` steps, told independently of the clock's own way."""
    passed = {"st": step, "ex": clock.examples(step), "ep": Fraction(clock.examples(step), clock.num_examples)}
    return passed[duration.unit] / Fraction(str(duration.amount))


@given(clocks, durations)
def test_the_steps_of_a_duration_are_the_fewest_that_reach_it(clock: Clock, duration: Duration):
    steps = clock.steps(duration)
    assert steps >= 1
    assert progress(clock, duration, steps) >= 1
    assert steps == 1 or progress(clock, duration, steps - 1) < 1


@given(clocks, durations, st.integers(1, 300))
def test_the_clock_is_due_exactly_when_a_step_completes_another_interval(clock: Clock, interval: Duration, step: int):
    crosses = progress(clock, interval, step) // 1 > progress(clock, interval, step - 1) // 1
    assert clock.is_time(interval, step) == crosses


def test_the_clock_is_never_due_without_an_interval_or_before_the_first_step():
    clock = Clock(num_examples=10, examples_per_step=3)
    assert not any(clock.is_time(None, step) for step in range(20))
    assert not clock.is_time(Duration(1, "st"), 0)
