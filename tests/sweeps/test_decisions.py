"""The decisions of a search as rows for people: order, examples, and the sentence of each reason."""

import optuna
from optuna.trial import TrialState, create_trial

from nlu.display.decisions import DecisionRow, decisions_note, decisions_table, write_decisions
from nlu.sweeps import pruning
from nlu.sweeps.decisions import decision_rows
from nlu.sweeps.schedulers.scheduler import Decision
from nlu.sweeps.steps import PART_ENDS, STOP, pause_of, step_of

MODEL = {"rule": "model", "chance": 0.314, "goal": 0.58312, "at": 3000, "mean": 0.57, "low": 0.55, "high": 0.59}


def trial(number, steps, pauses=(), reports=None, ends=None):
    attributes = dict(step_of(Decision(until, why=why), at, answers=True) for at, until, why in steps)
    attributes |= dict(pause_of(at, why, place) for place, at, why in pauses)
    found = create_trial(
        state=TrialState.RUNNING, system_attrs=attributes, user_attrs={PART_ENDS: ends} if ends else {},
        intermediate_values=reports or {},
    )  # fmt: skip
    found.number = number
    return found


def test_decisions_are_in_order_and_say_what_happened_to_each_trial():
    first = trial(
        0, [(0, 100, {"rule": "random"}), (1, 200, MODEL), (3, 300, MODEL)],
        [(2, 208, {"rule": "random", "by": None})], {104: 0.25, 208: 0.5},
    )  # fmt: skip
    second = trial(1, [(2, 100, {"rule": "random"})], [(3, 104, {**MODEL, "theirs": 0.4, "by": 0})], {104: 0.1})
    rows = decision_rows([first, second], maximize=True)
    assert [(row.number, row.trial, row.what, row.start, row.until, row.value) for row in rows] == [
        (0, 0, "begun", 0, 100, None),
        (1, 0, "continued", 104, 200, 0.25),
        (2, 0, "paused", 208, None, 0.5),
        (2, 1, "begun", 0, 100, None),
        (3, 1, "paused", 104, None, 0.1),
        (3, 0, "thawed", 208, 300, 0.5),
    ]
    assert [row.why for row in rows if row.what == "paused"] == [
        "a new trial is drawn at random",
        "trial 0 has the better chance, 40% against 31%",
    ]


def test_a_step_over_folds_begins_where_a_fold_ended():
    steps = [(0, 50, {}), (1, 100, {}), (2, 97, {}), (3, 191, {})]
    one = trial(0, steps, reports={52: 0.5, 96: 0.5, 120: 0.4}, ends=[96, 190, 286])
    rows = decision_rows([one], maximize=True)
    assert [(row.start, row.until) for row in rows] == [(0, 50), (52, 100), (96, None), (190, None)]


def test_a_trial_that_a_user_stopped_was_not_stopped_by_the_pruner():
    for stop, why in (({STOP: 1}, "a user stopped it"), ({}, "the pruner stopped it")):
        stopped = create_trial(
            state=TrialState.PRUNED,
            value=None,
            intermediate_values={320: 0.5},
            user_attrs=stop,
            params={},
            distributions={},
        )
        assert [row.why for row in decision_rows([stopped], maximize=True)] == [why]


def test_a_trial_that_halving_stops_has_its_place_at_the_rung():
    spec = {"name": "successive_halving", "min_resource": 100, "max_resource": 900, "reduction_factor": 3,
            "bootstrap_count": 0, "min_early_stopping_rate": 0}  # fmt: skip
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=pruning.build(spec, storage))
    for value in (0.5, 0.4, 0.6, 0.6):
        one = study.ask()
        for at in (100, 300):
            one.report(value, at)
            if one.should_prune():
                study.tell(one, state=TrialState.PRUNED)
                break
    rows = decision_rows(study.get_trials(), maximize=True)
    assert [(row.trial, row.what, row.start, row.why) for row in rows if row.start == 100] == [
        (0, "passed", 100, "1st of 1 so far in the bracket from 100; the best passes"),
        (1, "pruned", 100, "2nd of 2 so far in the bracket from 100; only a new best passes"),
        (2, "passed", 100, "1st of 3 so far in the bracket from 100; the best passes"),
        (3, "pruned", 100, "as good as the best of 4 so far in the bracket from 100; only a new best passes"),
    ]


def rows(count):
    return [DecisionRow(at, at % 7, "begun", 0, 100, None, f"reason <{at}>") for at in range(count)]


def test_the_table_has_the_last_decisions_and_the_file_all(tmp_path):
    table = decisions_table(rows(1000), "f1")
    assert table.count("<tr>") == 301 and "reason &lt;999&gt;" in table and "reason &lt;699&gt;" not in table
    assert "f1" not in table, "a column that is empty in all rows is left out"
    assert decisions_note(rows(1000)) == "The last 300 of 1,000; decisions.tsv has all."
    write_decisions(tmp_path / "decisions.tsv", rows(1000))
    lines = (tmp_path / "decisions.tsv").read_text().splitlines()
    assert len(lines) == 1001 and lines[1] == "0\t0\tbegun\t0\t100\t\treason <0>"
    write_decisions(tmp_path / "decisions.tsv", [])
    assert not (tmp_path / "decisions.tsv").exists()
