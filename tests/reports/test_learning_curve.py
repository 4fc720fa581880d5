"""Score by the number of labelled rows: points, intervals over draws, and what they say about more labels."""

import json

import numpy as np
import pytest
from scipy import stats

from nlu.commands.report import main
from nlu.config.errors import UserError
from nlu.reports.learning_curve import curves_of, interval_of
from nlu.reports.run_table import rows_of
from nlu.reports.runs import find_runs
from tests.reports.folders import begin_run, end_run


def draws(folder, rows, values, first_seed=1, **changes):
    for seed, value in enumerate(values, start=first_seed):
        run = begin_run(folder / f"{rows}-{seed}-{len(changes)}", seed=seed, data__rows_per_class=rows, **changes)
        (run / "data.json").write_text(json.dumps({"sets": {"train": {"examples": 2 * rows}, "dev": {"examples": 9}}}))
        end_run(run, value)


def curves(folder):
    return curves_of(rows_of(find_runs([folder])[0])[0])


def test_seeds_are_draws_of_a_point_whose_interval_is_that_of_student(tmp_path):
    values = [0.6, 0.7, 0.66, 0.62]
    draws(tmp_path, 8, values)
    (curve,) = curves(tmp_path)
    (point,) = curve.points
    assert point.rows == 16 and point.mean == pytest.approx(np.mean(values))
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert point.interval == pytest.approx(expected)
    assert interval_of([0.5]) is None and "only 16 rows" in curve.verdict


def test_runs_that_differ_in_more_than_their_rows_are_curves_of_their_own(tmp_path):
    for rows in (8, 16):
        draws(tmp_path, rows, [0.5, 0.6])
        draws(tmp_path, rows, [0.7, 0.8], optimizer__lr=1)
    found = curves(tmp_path)
    assert sorted([point.rows for point in curve.points] for curve in found) == [[16, 32], [16, 32]]
    assert {curve.label for curve in found} == {"lr=0.001", "lr=1"}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        # Each draw gains, so that the gain is sure although the draws differ by more.
        ([0.62, 0.73, 0.67, 0.83], "from 16 to 32 rows dev/accuracy changes by +0.0225"),
        ([0.62, 0.73, 0.67, 0.83], ": more labels would help"),
        ([0.601, 0.699, 0.651, 0.81], ": more labels would hardly help"),
        ([0.5, 0.9, 0.6, 0.9], "too uncertain to tell; more draws (seeds=8)"),
    ],
)
def test_the_gain_of_the_same_draws_tells_whether_more_labels_would_help(after, said, tmp_path):
    draws(tmp_path, 8, [0.6, 0.7, 0.65, 0.81])
    draws(tmp_path, 16, after)
    assert said in curves(tmp_path)[0].verdict


@pytest.mark.parametrize("first_seed", [1, 11])
def test_without_two_draws_of_the_same_seed_there_is_no_evidence(first_seed, tmp_path):
    draws(tmp_path, 8, [0.5])
    draws(tmp_path, 16, [0.9, 0.8][:first_seed], first_seed=first_seed)
    assert "train both with the same seeds, such as seeds=5" in curves(tmp_path)[0].verdict


def test_the_command_prints_a_table_and_a_sentence_and_draws_the_figure(tmp_path, capsys):
    for rows, value in ((8, 0.5), (16, 0.6), (64, 0.7)):
        draws(tmp_path / "runs", rows, [value, value + 0.02])
    assert main(["curve", str(tmp_path / "runs"), "--out", str(tmp_path / "few.png")]) == 0
    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines()[1:4]]
    assert [line[1:3] for line in table] == [["16", "0.5100"], ["32", "0.6100"], ["128", "0.7100"]]
    assert "from 32 to 128 rows" in out and out.splitlines()[-1] == str(tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")


def test_runs_without_a_score_are_refused(tmp_path):
    begin_run(tmp_path / "open")
    with pytest.raises(UserError, match="no run here has ended with a score"):
        curves(tmp_path)
