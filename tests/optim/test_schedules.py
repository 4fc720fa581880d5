"""The rate at the steps that matter, and that it never reaches zero."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.config.durations import Clock
from nlu.config.errors import UserError
from nlu.optim.schedules import Constant, Exponential, OneCycle, warmup_steps

TOTAL = 100
CLOCK = Clock(num_examples=400, examples_per_step=8)
LOW = 1 / 600


def factors(scheduler, *steps, total=TOTAL):
    return [scheduler.factor(step, total, CLOCK) for step in steps]


def test_linear_rises_to_the_peak_during_warm_up_and_falls_to_the_last_step():
    scheduler = OneCycle(warmup=0.1)
    found = factors(scheduler, 1, 5, 10, 55, 100)
    assert found == pytest.approx([LOW + (1 - LOW) / 10, (1 + LOW) / 2, 1.0, (1 + LOW) / 2, LOW])


def test_cosine_has_the_same_ends_and_middle_and_is_flat_near_the_peak():
    scheduler = OneCycle(warmup=0.1, anneal="cosine")
    assert factors(scheduler, 5, 10, 55, 100) == pytest.approx([(1 + LOW) / 2, 1.0, (1 + LOW) / 2, LOW])
    wanted = LOW + (1 - LOW) / 2 * (1 + math.cos(math.pi * 9 / 90))
    assert factors(scheduler, 19) == pytest.approx([wanted])
    assert wanted > factors(OneCycle(warmup=0.1), 19)[0]


def test_polynomial_falls_by_its_power():
    scheduler = OneCycle(warmup=0.0, anneal="polynomial", power=2.0)
    # The first of 101 steps is at the peak, so that step 51 is half way.
    assert factors(scheduler, 51, 101, total=101) == pytest.approx([LOW + (1 - LOW) / 4, LOW])
    straight = OneCycle(warmup=0.1, anneal="polynomial", power=1.0)
    assert factors(straight, 1, 10, 37, 100) == pytest.approx(factors(OneCycle(warmup=0.1), 1, 10, 37, 100))


def test_power_does_not_change_other_annealing():
    assert factors(OneCycle(power=3.0), 3, 50) == factors(OneCycle(), 3, 50)


@pytest.mark.parametrize("anneal", ["linear", "cosine", "polynomial"])
def test_without_a_warm_up_the_first_step_is_at_the_peak_and_the_last_one_at_the_end(anneal):
    # A share of a short run may be less than half a step.
    for warmup, total in ((0.0, 100), (0.1, 4)):
        found = factors(OneCycle(warmup=warmup, anneal=anneal), *range(1, total + 1), total=total)
        assert found[0] == 1.0 and found[-1] == pytest.approx(LOW)
        assert found == sorted(found, reverse=True) and len(set(found)) == total
    assert factors(OneCycle(warmup=0.0, anneal=anneal), 1, total=1) == [1.0]


def test_constant_stays_at_the_base_rate_after_its_warm_up():
    assert factors(Constant(), 1, 50, 100) == [1.0, 1.0, 1.0]
    warmed = Constant(warmup=0.1, div_factor=25.0)
    assert factors(warmed, 1, 5, 10, 100) == pytest.approx([1 / 25 + 24 / 250, 1 / 25 + 12 / 25, 1.0, 1.0])


def test_exponential_falls_by_its_rate_at_every_interval_after_the_warm_up():
    scheduler = Exponential(warmup=0.1, decay_rate=0.5, decay_every="20st")
    assert factors(scheduler, 10, 29, 30, 49, 50, 100) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.0625]
    assert factors(scheduler, 5) == factors(Constant(warmup=0.1), 5)
    assert factors(Exponential(decay_rate=0.5, decay_every="1ep"), 49, 50, 100) == [1.0, 0.5, 0.25]
    with pytest.raises(UserError, match="duration"):
        Exponential(decay_every="often")


@pytest.mark.parametrize("written", ["10st", "80ex", "0.2ep"])
def test_a_warm_up_written_as_a_duration_equals_the_same_ratio(written):
    assert warmup_steps(written, TOTAL, CLOCK) == warmup_steps(0.1, TOTAL, CLOCK) == 10
    for kind in (OneCycle, Constant, Exponential):
        steps = range(1, TOTAL + 1)
        assert factors(kind(warmup=written), *steps) == factors(kind(warmup=0.1), *steps)


@given(
    st.one_of(st.floats(0, 1), st.sampled_from(["1st", "70st", "2ep", "9999ex"])),
    st.sampled_from(["linear", "cosine", "polynomial"]), st.floats(0.2, 4), st.integers(1, 300),
)  # fmt: skip
def test_one_cycle_rises_then_falls_between_low_and_peak_and_never_reaches_zero(warmup, anneal, power, total):
    found = factors(OneCycle(warmup=warmup, anneal=anneal, power=power), *range(1, total + 1), total=total)
    assert all(LOW * (1 - 1e-9) <= factor <= 1.0 for factor in found)
    peak = found.index(max(found))
    assert found[: peak + 1] == sorted(found[: peak + 1])
    assert found[peak:] == sorted(found[peak:], reverse=True)


@given(st.floats(0, 1), st.floats(1, 1000), st.integers(1, 300))
def test_the_other_schedules_never_reach_zero_or_pass_the_base_rate(warmup, div_factor, total):
    for scheduler in (
        Constant(warmup=warmup, div_factor=div_factor),
        Exponential(warmup=warmup, div_factor=div_factor, decay_every="7st"),
    ):
        assert all(0 < factor <= 1 + 1e-9 for factor in factors(scheduler, *range(1, total + 1), total=total))
