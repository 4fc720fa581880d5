"""The table of the decisions of a search: order, examples, and what decided."""

import optuna
from optuna.trial import TrialState, create_trial

from nlu.search.pruners import HalvingPruner
from nlu.search.schedulers.scheduler import Decision
from nlu.search.trial_steps import pause_of, step_of
from nlu.search.trials import COLUMNS, decision_rows, write_decisions

NEW, MODEL = {"rule": "new"}, {"rule": "model", "chance": 0.25, "kernel": [0.1, 0.2]}


def trial(number, steps, pauses, reports):
    attributes = dict(step_of(Decision(until, why=why), at, answers=True) for at, until, why in steps)
    attributes |= dict(pause_of(at, place) for place, at in pauses)
    found = create_trial(state=TrialState.RUNNING, system_attrs=attributes, intermediate_values=reports)
    found.number = number
    return found


def test_the_table_has_the_decisions_in_their_order(tmp_path):
    first = trial(0, [(0, 100, NEW), (1, 200, MODEL), (3, 300, MODEL)], [(2, 208)], {104: 0.25, 208: 0.5})
    second = trial(1, [(2, 100, NEW)], [(3, 104)], {104: 0.125})
    write_decisions(tmp_path / "decisions.tsv", decision_rows([first, second]))
    lines = [line.split("\t") for line in (tmp_path / "decisions.tsv").read_text().splitlines()]
    assert lines == [
        [*COLUMNS],
        ["0", "0", "begun", "100", "", "new", ""],
        ["1", "0", "continued", "200", "", "model", "0.25"],
        ["2", "0", "paused", "208", "0.5", "", ""],
        ["2", "1", "begun", "100", "", "new", ""],
        ["3", "1", "paused", "104", "0.125", "", ""],
        ["3", "0", "continued", "300", "", "model", "0.25"],
    ]


def test_a_trial_that_halving_judges_has_its_value_at_the_rung():
    # One bracket with one rung.
    spec = {"name": "hyperband", "min_resource": 100, "max_resource": 299, "reduction_factor": 3}
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=HalvingPruner(spec, storage))
    for value in (0.5, 0.4, 0.6):
        one = study.ask()
        one.report(value, 104)
        if one.should_prune():
            study.tell(one, state=TrialState.PRUNED)
    rows = [(row["trial"], row["what"], row["examples"], row["value"]) for row in decision_rows(study.get_trials())]
    assert rows == [(0, "passed", 100, 0.5), (1, "pruned", 100, 0.4), (2, "passed", 100, 0.6)]
    ended = create_trial(state=TrialState.PRUNED, intermediate_values={320: 0.5})
    assert [(row["what"], row["examples"]) for row in decision_rows([ended])] == [("pruned", 320)]
