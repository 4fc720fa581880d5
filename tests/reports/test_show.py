"""The table of runs as it is printed without a terminal."""

import csv
import io

import pytest

from nlu.reports.aggregate import rows_of
from nlu.reports.runs import find_runs
from nlu.reports.show import as_csv, print_tables
from tests.reports.folders import begin_run, end_run

KEYS = [f"model.setting_{number}" for number in range(14)]


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """Runs that differ in fourteen keys, none of which follows from another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    for number, key in enumerate(KEYS):
        changes = {key.replace(".", "__"): 1.5, "optimizer__lr": number % 2}
        end_run(begin_run(tmp_path / "outputs" / f"run-{number}", "optimizer.lr=1", **changes), number / 20)
    return rows_of(find_runs([tmp_path / "outputs"])[0])[0]


@pytest.mark.parametrize(("columns", "most"), [(None, 120), ("200", 200), ("none", 120)])
def test_mixed_runs_fit_on_one_line(mixed, capsys, monkeypatch, columns, most):
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    print_tables(mixed)
    header, *lines = capsys.readouterr().out.splitlines()
    table = [header, *lines[:14]]
    assert max(map(len, table)) <= most
    assert header.split()[:2] == ["optimizer.lr", KEYS[-1]]
    assert all(name in header for name in ("dev/accuracy", "state", "folder"))
    assert "outputs/run-13" in table[1] and "0.6500" in table[1]


def test_columns_that_are_left_out_are_named_and_are_in_the_csv(mixed, capsys):
    print_tables(mixed)
    header, *lines = capsys.readouterr().out.splitlines()
    (said,) = [line for line in lines if line.startswith("too wide to show: ")]
    assert said.startswith("too wide to show: examples/s, examples, best step, ") and said.endswith(
        "--csv has every column"
    )
    columns = next(csv.reader(io.StringIO(as_csv(mixed))))
    shown = [key for key in KEYS if key in columns]
    assert len(shown) >= 12 and all(key in header or key in said for key in shown)
