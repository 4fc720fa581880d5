"""Resources in examples seen, what is announced of them, and what is said of those that cannot be."""

import pytest

from nlu.config.durations import Clock, parse_duration
from nlu.config.errors import UserError
from nlu.search import pruners
from nlu.search.pruners import brackets
from tests.search.composed import config

SETTINGS = {"pruner": "hyperband", "min_resource": None, "max_resource": None, "reduction_factor": 3}


def spec(configs, **settings) -> dict:
    return pruners.pruner_spec({**SETTINGS, **settings}, configs, 1000)


def test_resources_are_the_first_evaluation_and_the_whole_run():
    found = spec([config()])
    assert (found["min_resource"], found["max_resource"]) == (500, 2000)


def test_the_first_decision_waits_for_three_evaluations_or_a_fifth_of_a_trial():
    # 2,000 examples: 20, 10, 8 and 4 evaluations, of which a fifth is 4, 2, 1 and none.
    lengths = {"0.1ep": 300, "0.2ep": 400, "0.25ep": 250, "0.5ep": 500}
    for eval_interval, first in lengths.items():
        found = spec([config(eval_interval=eval_interval)], pruner="asha", n_trials=9, max_examples=None)
        assert found["min_resource"] == first and 1000 * float(eval_interval[:-2]) == found["interval"]
    # A fold has as many examples as a trial without folds.
    assert spec([config(eval_interval="0.1ep", folds=5)])["min_resource"] == 300
    assert spec([config(eval_interval="0.1ep")], min_resource="0.1ep")["min_resource"] == 100


def test_the_first_rung_waits_for_the_warm_up_of_evaluations():
    warm = config()
    warm["trainer"] |= {"eval_warmup": "0.75ep"}
    assert spec([warm])["min_resource"] == 750


def test_a_trial_is_scored_once_at_least_before_it_is_decided_about():
    assert spec([config()], max_resource="0.2ep") == {
        "name": "hyperband", "min_resource": 200, "max_resource": 200, "reduction_factor": 3,
    }  # fmt: skip
    assert "about 1.0 trials, never stopped" in pruners.announced(spec([config()], max_resource="0.2ep"), 1)[1]


def test_what_a_search_will_cost_is_announced_for_each_pruner():
    assert pruners.announced({"name": "none"}, 3) == ["pruner: none; at most 3 full runs"]
    more = {"n_trials": 9, "max_examples": None}
    folds = spec([config(), config(folds=5)], pruner="asha", **more)
    # A fold has 2,000 examples and is scored every 500; 1,500 is well before its end.
    assert folds["parts"] == 5 and pruners.announced(folds, 9) == [
        "pruner: asha, paused at 500, 1,500 examples, 1 in 3 continues; at most 9 trials of up to 10,000 examples"
    ]
    assert pruners.announced(spec([config()], pruner="freeze_thaw", **more), 9) == [
        "pruner: freeze_thaw, first steps of 500 examples; its model also draws the trials; at most 9 trials of up to "
        "2,000 examples, 6,000 examples in all: about 3.0 full runs"
    ]


def test_steps_count_by_every_batch_size_that_is_drawn():
    found = spec([config(size, max_duration="40st", eval_interval="5st") for size in (10, 20)])
    assert (found["min_resource"], found["max_resource"]) == (150, 800)


def test_resources_in_whole_powers_keep_their_last_rung_despite_short_steps():
    # 83 examples in steps of 8: the last of an epoch has 3, so that 30 steps see 230 examples, not 240.
    found = pruners.pruner_spec(SETTINGS, [config(8, max_duration="30st", eval_interval="10st")], 83)
    assert [bracket.rungs for bracket in brackets(found)] == [(75,), ()]
    assert (found["min_resource"], found["max_resource"]) == (75, 226)
    # Rounded up to 7 steps of 30, 200 examples would be 210, and 9 times as much more than 1.8 epochs.
    found = pruners.pruner_spec(SETTINGS, [config(30, max_duration="1.8ep", eval_interval="0.2ep")], 1000)
    assert len(brackets(found)) == 3 and found["min_resource"] * 9 <= 1810


@pytest.mark.parametrize("num_examples", [83, 434, 1000])
@pytest.mark.parametrize(
    ("eval_interval", "max_duration"), [("0.5ep", "5ep"), ("0.1ep", "2ep"), ("7st", "100st"), ("50ex", "2000ex")]
)
def test_no_evaluation_that_is_meant_for_a_rung_falls_short_of_it(num_examples, eval_interval, max_duration):
    found = pruners.pruner_spec(
        SETTINGS, [config(16, max_duration=max_duration, eval_interval=eval_interval)], num_examples
    )
    clock, interval = Clock(num_examples, 16), parse_duration(eval_interval)
    seen = [clock.examples(step) for step in range(clock.steps(parse_duration(max_duration)) + 1)
            if clock.is_time(interval, step)]  # fmt: skip
    rungs = brackets(found)[0].rungs
    first = max(1, min(3, len(seen) // 5))
    assert rungs
    for number, rung in enumerate(rungs):
        # Two evaluations can fall into one step; then the next one is the first that has seen so many.
        assert rung <= seen[min(first * 3**number, len(seen)) - 1]


def test_folds_and_seeds_lengthen_the_trial():
    found = spec([config(folds=5, seeds=2)])
    assert (found["min_resource"], found["max_resource"]) == (500, 20_000)
    # Ten times 3.2 epochs of 997 are 31,904, 16 times an evaluation, and each by itself is not whole.
    epochs = config(1, max_duration="3.2ep", eval_interval="2ep", folds=10)
    found = pruners.pruner_spec({**SETTINGS, "reduction_factor": 2}, [epochs], 997)
    assert (found["min_resource"], found["max_resource"]) == (2 * 997, 31_904)
    assert brackets(found)[0].rungs == (1994, 3988, 7976, 15_952)


def test_resources_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="more than max_resource"):
        spec([config()], min_resource="3ep")
    with pytest.raises(UserError, match="only nlu.train has epochs"):
        pruners.pruner_spec({**SETTINGS, "min_resource": "1ep", "max_resource": "2ep"}, [], None)
    with pytest.raises(UserError, match="are not set"):
        pruners.pruner_spec(SETTINGS, [], None)


def test_trials_with_batches_by_tokens_are_compared_by_examples():
    found = spec([config(batch_tokens=4096)])
    assert (found["min_resource"], found["max_resource"]) == (500, 2000)
    for key, value in (("eval_interval", "5st"), ("max_duration", "40st")):
        with pytest.raises(UserError, match=rf"trainer.{key} is {value}, but a search .* write it in ep or ex"):
            spec([config(batch_tokens=4096, **{key: value})])


def test_the_budget_of_a_search_that_pauses_is_in_examples_and_holds_a_whole_trial():
    settings = {**SETTINGS, "pruner": "freeze_thaw", "n_trials": 30, "max_examples": None}
    configs = [config()]
    found = pruners.pruner_spec(settings, configs, 1000)
    assert found["max_examples"] == 20000 and found["parts"] == 1
    assert pruners.pruner_spec({**settings, "n_trials": 2}, configs, 1000)["max_examples"] == 2000
    assert pruners.pruner_spec({**settings, "pruner": "asha"}, configs, 1000)["max_examples"] is None
    assert pruners.pruner_spec({**settings, "max_examples": "7ep"}, configs, 1000)["max_examples"] == 7000
    with pytest.raises(UserError, match="fewer than a whole trial has"):
        pruners.pruner_spec({**settings, "max_examples": "0.5ep"}, configs, 1000)
    (problem,) = pruners.setting_problems({**settings, "pruner": "hyperband", "max_examples": "9ep"})
    assert "only asha and freeze_thaw keep to it" in problem


@pytest.mark.parametrize("pruner", ["asha", "freeze_thaw"])
def test_a_pruner_that_pauses_trials_takes_max_resource_only_as_their_whole_length(pruner):
    more = {"pruner": pruner, "max_examples": None, "n_trials": 9}
    with pytest.raises(UserError, match="max_resource is 1ep, 1,000 examples, but a trial has 2,000"):
        spec([config()], max_resource="1ep", **more)
    assert spec([config()], max_resource="2000ex", **more)["max_resource"] == 2000
    assert spec([config()], max_resource="1ep")["max_resource"] == 1000
