"""The steps of trials in the storage: who is paused, who asks, and where trials stand for the scheduler."""

import math

from optuna.trial import TrialState, create_trial

from nlu.search import trial_steps
from nlu.search.schedulers.scheduler import ENDED, FAILED, PAUSED, RUNNING, Decision

DONE = TrialState.COMPLETE


def trial(
    number=0, *, until=(), paused_at=None, asks=None, reports=None, ends=None, means=None, state=TrialState.RUNNING
):
    attributes = dict(trial_steps.step_of(Decision(each), at, answers=True) for at, each in enumerate(until))
    if paused_at is not None:
        attributes |= dict([trial_steps.pause_of(paused_at, len(until))])
    users = {
        trial_steps.ASKS: asks,
        trial_steps.PART_ENDS: ends,
        trial_steps.PART_VALUES: means,
        trial_steps.VALUES: {"lr": 0.1},
    }
    found = create_trial(
        state=state, value=0.5 if state == TrialState.COMPLETE else None, system_attrs=attributes,
        user_attrs={name: value for name, value in users.items() if value is not None},
        intermediate_values=reports or {},
    )  # fmt: skip
    found.number = number
    return found


def test_a_trial_is_paused_until_a_later_step_leads_further():
    assert not trial_steps.is_paused(trial())
    assert not trial_steps.is_paused(trial(until=[100]))
    assert trial_steps.is_paused(trial(until=[100], paused_at=104))
    assert trial_steps.is_paused(trial(until=[100], paused_at=104, state=TrialState.WAITING))
    assert not trial_steps.is_paused(trial(until=[100, 200], paused_at=104))
    assert not trial_steps.is_paused(trial(until=[100], paused_at=104, state=TrialState.PRUNED))


def test_a_job_asks_until_it_is_answered_by_a_step_or_a_pause():
    assert trial_steps.asks(trial(until=[100], asks=104))
    assert not trial_steps.asks(trial(until=[100, 200], asks=104))
    assert not trial_steps.asks(trial(until=[100], asks=104, paused_at=104))
    assert not trial_steps.is_waiting(trial(until=[100], asks=104, paused_at=104))


def test_the_end_of_a_fold_is_decided_about_unless_the_step_leads_beyond_it():
    assert trial_steps.until_of(trial(until=[100], ends=[96])) == 96
    assert trial_steps.until_of(trial(until=[100, 97], ends=[96])) == 97
    assert trial_steps.asks(trial(until=[100, 97], ends=[96, 190], asks=190))


def test_all_decisions_of_a_search_are_found_in_their_order():
    first = trial(0)
    second = trial(1)
    for one, number, until in ((first, 0, 10), (second, 1, 10), (first, 2, 20)):
        name, step = trial_steps.step_of(Decision(until, why={"rule": "model"}), number, answers=True)
        one.system_attrs = {**one.system_attrs, name: step}
    assert [(each.number, each.until) for each in trial_steps.log_of([first, second])] == [(0, 10), (1, 10), (0, 20)]


def test_after_decision_99999_the_last_step_and_the_last_pause_stay_the_last():
    late = trial(0)
    for number, until in ((99_999, 10), (100_000, 20)):
        name, step = trial_steps.step_of(Decision(until), number, answers=True)
        late.system_attrs = {**late.system_attrs, name: step, **dict([trial_steps.pause_of(until, number)])}
    assert trial_steps.until_of(late) == 20 and [each.until for each in trial_steps.log_of([late])] == [10, 20]
    assert [pause["at"] for _, pause in trial_steps.pauses_of(late)] == [10, 20]


def test_standings_have_the_state_the_direction_and_the_curve_of_the_first_fold():
    reports = {50: 0.9, 96: 0.6, 150: 0.8, 190: 0.5}
    folds = trial(3, until=[100, 97], ends=[96, 190], reports=reports)
    others = [
        trial(0, until=[100], paused_at=100), trial(1, until=[100]), trial(2, state=TrialState.FAIL),
        trial(4, state=TrialState.COMPLETE),
    ]  # fmt: skip
    found = trial_steps.standings([*others, folds], maximize=False, asking=1)
    assert [each.state for each in found] == [PAUSED, PAUSED, FAILED, ENDED, RUNNING]
    assert list(found[-1].points) == [(50, -0.9), (96, -0.6), (190, -0.5)]
    assert found[-1].best == -0.5 and found[-1].examples == 190


def test_from_the_end_of_a_fold_on_a_trial_counts_as_the_mean_over_its_folds():
    reports = {50: 0.9, 96: 0.6, 150: 0.8, 190: 0.5}
    paused = trial(0, until=[100, 97], paused_at=190, ends=[96, 190], means={"96": 0.9, "190": 0.85}, reports=reports)
    one_fold = trial(1, until=[100], paused_at=96, ends=[96], means={"96": None}, reports={50: 0.7, 96: 0.7})
    # All three folds have ended: the value of the trial is in the storage.
    ended = trial(2, ends=[96, 190], means={"96": 0.9, "190": 0.85}, reports={**reports, 286: 0.4}, state=DONE)
    found = trial_steps.standings([paused, one_fold, ended], maximize=True)
    assert [list(each.points) for each in found[::2]] == [
        [(50, 0.9), (96, 0.9), (190, 0.85)], [(50, 0.9), (96, 0.9), (190, 0.85), (286, 0.5)],
    ]  # fmt: skip
    assert [each.best for each in found] == [0.85, -math.inf, 0.5], "a mean that is not a number is none"
    assert [each.examples for each in found] == [190, 96, 286]
