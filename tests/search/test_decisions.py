"""The table of the decisions of a search: order, examples, and the numbers that decided."""

import optuna
from optuna.trial import TrialState, create_trial

from nlu.search.channel import OUTCOME
from nlu.search.decisions import COLUMNS, decision_rows, write_decisions
from nlu.search.pruners import HalvingPruner
from nlu.search.schedulers.scheduler import Decision
from nlu.search.steps import PART_ENDS, pause_of, step_of

MODEL = {"rule": "model", "chance": 0.314, "goal": 0.58312, "at": 3000, "mean": 0.57, "kernel": [0.1, 0.2]}


def trial(number, steps, pauses=(), reports=None, ends=None):
    attributes = dict(step_of(Decision(until, why=why), at, answers=True) for at, until, why in steps)
    attributes |= dict(pause_of(at, place) for place, at in pauses)
    found = create_trial(
        state=TrialState.RUNNING, system_attrs=attributes, user_attrs={PART_ENDS: ends} if ends else {},
        intermediate_values=reports or {},
    )  # fmt: skip
    found.number = number
    return found


def test_decisions_are_in_order_and_say_what_happened_to_each_trial():
    first = trial(
        0, [(0, 100, {"rule": "random"}), (1, 200, MODEL), (3, 300, MODEL)], [(2, 208)], {104: 0.25, 208: 0.5}
    )
    second = trial(1, [(2, 100, {"rule": "random"})], [(3, 104)], {104: 0.1})
    rows = decision_rows([first, second])
    assert [tuple(row[name] for name in COLUMNS) for row in rows] == [
        (0, 0, "begun", 0, 100, None),
        (1, 0, "continued", 104, 200, 0.25),
        (2, 0, "paused", 208, None, 0.5),
        (2, 1, "begun", 0, 100, None),
        (3, 1, "paused", 104, None, 0.1),
        (3, 0, "thawed", 208, 300, 0.5),
    ]
    numbers = {name: value for name, value in MODEL.items() if name != "kernel"}
    assert {name: value for name, value in rows[1].items() if name not in COLUMNS} == numbers


def test_a_step_over_folds_begins_where_a_fold_ended():
    steps = [(0, 50, {}), (1, 100, {}), (2, 97, {}), (3, 191, {})]
    one = trial(0, steps, reports={52: 0.5, 96: 0.5, 120: 0.4}, ends=[96, 190, 286])
    assert [(row["from"], row["until"]) for row in decision_rows([one])] == [
        (0, 50),
        (52, 100),
        (96, None),
        (190, None),
    ]


def test_a_trial_that_a_user_stopped_was_not_pruned_by_the_pruner():
    for stop, what in (({OUTCOME: {"error": "stopped by a user"}}, "stopped"), ({}, "pruned")):
        ended = create_trial(
            state=TrialState.PRUNED, value=None, intermediate_values={320: 0.5}, user_attrs=stop, params={},
            distributions={},
        )  # fmt: skip
        assert [(row["what"], row["from"]) for row in decision_rows([ended])] == [(what, 320)]


def test_a_trial_that_halving_stops_has_its_place_at_the_rung():
    # One bracket with one rung.
    spec = {"name": "hyperband", "min_resource": 100, "max_resource": 299, "reduction_factor": 3}
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=HalvingPruner(spec, storage))
    for value in (0.5, 0.4, 0.6, 0.6):
        one = study.ask()
        for at in (100, 200):
            one.report(value, at)
            if one.should_prune():
                study.tell(one, state=TrialState.PRUNED)
                break
    rows = [row for row in decision_rows(study.get_trials()) if row["from"] == 100]
    assert [(row["trial"], row["what"], row["value"], row["rank"], row["of"], row["pass"]) for row in rows] == [
        (0, "passed", 0.5, 1, 1, 1), (1, "pruned", 0.4, 2, 2, 0),
        (2, "passed", 0.6, 1, 3, 1), (3, "pruned", 0.6, 1, 4, 0),
    ]  # fmt: skip


def test_the_file_has_a_column_for_each_number_and_goes_with_the_decisions(tmp_path):
    one = trial(0, [(0, 100, {"rule": "new"}), (1, 200, {"rule": "promoted", "rank": 1})], reports={104: 0.25})
    write_decisions(tmp_path / "decisions.tsv", decision_rows([one]))
    lines = [line.split("\t") for line in (tmp_path / "decisions.tsv").read_text().splitlines()]
    assert lines == [
        [*COLUMNS, "rule", "rank"],
        ["0", "0", "begun", "0", "100", "", "new", ""],
        ["1", "0", "continued", "104", "200", "0.25", "promoted", "1"],
    ]
    write_decisions(tmp_path / "decisions.tsv", [])
    assert not (tmp_path / "decisions.tsv").exists()
