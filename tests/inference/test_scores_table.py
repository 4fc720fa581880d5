"""The table to which several evaluations add their rows."""

import csv
import json
import threading
from pathlib import Path
from typing import Any

from nlu.inference.scores_table import COLUMNS, append_scores
from tests.inference.runs import evaluate, trained
from tests.training.kinds import TASKS


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))


def test_each_evaluation_adds_a_row_for_each_of_its_sets(tmp_path: Path, capsys: Any) -> None:
    run, table = trained(TASKS["classify"], tmp_path), tmp_path / "all.tsv"
    new = (tmp_path / "dev.jsonl").rename(tmp_path / "new.jsonl")
    order = (f"run={run}", f"table={table}", "resamples=0")
    evaluate(*order, f"data.test={new}", f"out={tmp_path}/first")
    evaluate(*order, f"data.dev={new}", f"data.test={new}", "max_rows=7", "checkpoint=last")
    found = rows(table)
    assert [(row["set"], row["examples"], row["checkpoint"]) for row in found] == [
        ("test", "23", "best-1"), ("dev", "7", "last"), ("test", "7", "last"),
    ]  # fmt: skip
    assert {row["run"] for row in found} == {str(run)} and {row["file"] for row in found} == {str(new)}
    metrics = json.loads((tmp_path / "first/result.json").read_text())["metrics"]["test"]
    assert {name: float(cell) for name, cell in found[0].items() if name not in COLUMNS} == metrics
    assert f"{table}: 2 rows added" in capsys.readouterr().err


def test_other_metrics_become_columns_and_no_row_is_lost_to_a_neighbour(tmp_path: Path) -> None:
    table = str(tmp_path / "all.tsv")

    def add(number: int) -> None:
        metrics = {"test": {"accuracy": number / 7, f"metric_{number % 2}": None if number == 3 else float(number)}}
        append_scores(table, f"run {number}", "best-1", {"test": ["a.tsv", "b\t.tsv"]}, {"test": number}, metrics)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {row["run"]: row for row in rows(Path(table))}
    assert sorted(found) == [f"run {number}" for number in range(8)]
    for number in range(8):
        row = found[f"run {number}"]
        assert float(row["accuracy"]) == number / 7 and row["file"] == '["a.tsv", "b\\t.tsv"]'
        assert row[f"metric_{number % 2}"] == ("" if number == 3 else str(float(number)))
        assert row[f"metric_{1 - number % 2}"] == ""
