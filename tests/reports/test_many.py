"""Three and more configurations side by side."""

import json

import pytest

from nlu.reports.flips import holm, mcnemar
from nlu.reports.many import differences_as_json, differences_of, print_differences
from tests.reports.folders import begin_run, end_run, predict


def rows_with_right(right):
    return [(number, "good", "good" if number in right else "bad") for number in range(60)]


def three(tmp_path, seeds=(1,)):
    """A is right in 0-29, B in 0-29 and 30-59 except five, C as A except three."""
    sides = {"a": range(30), "b": range(5, 60), "c": range(3, 30)}
    for name, right in sides.items():
        for seed in seeds:
            changes = {"optimizer__lr": {"a": 0.1, "b": 0.2, "c": 0.3}[name], "seed": seed}
            predict(end_run(begin_run(tmp_path / name / str(seed), **changes), 0.5), rows_with_right(right))
    return [tmp_path / name for name in sides]


def test_every_pair_is_tested_and_corrected_for_all_pairs(tmp_path, capsys):
    found = differences_of(three(tmp_path))
    assert found.config == {"optimizer.lr": (0.1, 0.2, 0.3)}
    pairs = {(pair.first, pair.second): pair for pair in found.pairs["dev"]}
    counts = {key: (pair.flips.examples_lost, pair.flips.examples_won) for key, pair in pairs.items()}
    assert counts == {("A", "B"): (5, 30), ("A", "C"): (3, 0), ("B", "C"): (30, 2)}
    p_values = [mcnemar(5, 30).p_value, mcnemar(3, 0).p_value, mcnemar(30, 2).p_value]
    assert [pair.holm_p for pair in pairs.values()] == holm(p_values)
    assert [pair.test.method for pair in pairs.values()] == ["chi squared", "exact", "chi squared"]
    assert [pair.better for pair in pairs.values()] == ["B", "", "B"]
    print_differences(found)
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["A", "B", "60", "5", "30", "chi", "squared", "=", "16.46", "5e-05", "0.0001", "B"] in lines
    assert ["A", "C", "60", "3", "0", "exact", "0.25", "0.25"] in lines
    assert "exact if fewer than 25 rows" in out and "corrected for 3 pairs" in out
    content = json.loads(differences_as_json(found))
    assert content["config"]["optimizer.lr"] == {"A": 0.1, "B": 0.2, "C": 0.3}
    assert content["mcnemar"]["dev"][0]["statistic"] == pytest.approx(24**2 / 35)


def test_an_example_has_one_vote_however_many_seeds_scored_it(tmp_path, capsys):
    found = differences_of(three(tmp_path, seeds=(1, 2)))
    first = found.pairs["dev"][0]
    assert (first.flips.rows, first.flips.lost, first.flips.examples_lost, first.flips.examples_won) == (120, 10, 5, 30)
    assert first.test == mcnemar(5, 30)
    print_differences(found)
    assert "oftener right in the first" in capsys.readouterr().out


def test_the_same_folds_are_compared_and_missing_ones_are_named(tmp_path):
    for name, folds in (("a", (0, 1)), ("b", (0, 1)), ("c", (0,))):
        for fold in folds:
            run = begin_run(tmp_path / name / f"fold-{fold}", folds__count=2, fold=fold, optimizer__lr=ord(name))
            predict(end_run(run, 0.5 + fold / 10), [(fold, "good", "good")])
    found = differences_of([tmp_path / name for name in "abc"])
    assert [side.mean for side in found.metrics["dev/accuracy"]] == [0.5, 0.5, 0.5]
    assert "of 2 folds are missing 1 (no run)" in found.remarks[0] and "that all have" in found.remarks[1]
    assert [pair.flips.rows for pair in found.pairs["dev"]] == [2, 1, 1]
