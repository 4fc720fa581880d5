"""What curves are called, short and never two alike; notes."""

from pathlib import Path

import numpy as np
import pytest

from nlu.commands import report, visualize
from nlu.reports.curves import kept_scores
from nlu.reports.differing_keys import labels_of
from nlu.reports.run_table import rows_of
from nlu.reports.runs import find_runs
from tests.reports.folders import begin_run, end_run, evaluate, keep_records


def labels(*folders: Path) -> list[str]:
    tables, _ = rows_of(find_runs(folders)[0])
    return labels_of([row for table in tables for row in table])


def a_run(folder: Path, value: float = 0.5, *overrides: str, **changes: object) -> Path:
    return end_run(evaluate(begin_run(folder, *overrides, **changes), 0.4, value), value)


def test_paths_are_called_by_where_they_differ(tmp_path: Path) -> None:
    for number, corpus in enumerate(("lcqmc", "afqmc")):
        a_run(tmp_path / str(number), 0.9 - number / 10, data__train=f"/data/projects/corpora/{corpus}/train.tsv")
    assert labels(tmp_path) == ["train=lcqmc/train.tsv", "train=afqmc/train.tsv"]


def test_paths_of_files_without_a_common_folder_keep_their_folders(tmp_path: Path) -> None:
    for number, path in enumerate(("train.tsv", "data/train.tsv")):
        a_run(tmp_path / str(number), 0.9 - number / 10, data__train=path)
    assert labels(tmp_path) == ["train=train.tsv", "train=data/train.tsv"]


def test_the_command_draws_every_configuration_under_the_name_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_run(Path("outputs/lr=1"), 0.5)
    a_run(Path("outputs/b"), 0.75)
    assert visualize.main(["tuned model=outputs/b", "outputs/lr=1", "--out", "out", "--format", "svg"]) == 0
    page = Path("out/index.html").read_text()
    assert ">tuned model: 0.7500</text>" in page and ">lr=1: 0.5000</text>" in page
    assert ">outputs/b</td>" in page and ">outputs/lr=1</td>" in page


def keep(folder: Path, rows: list[tuple[str, str, float]], f1: tuple[float, float]) -> Path:
    records = [
        {"id": place, "file": 0, "row": place, "label": label, "prediction": prediction, "probability": probability,
         "probabilities": {prediction: probability}, "text": "x" * (place + 1)}
        for place, (label, prediction, probability) in enumerate(rows)
    ]  # fmt: skip
    by_label = [{"label": name, "examples": sum(label == name for label, _, _ in rows), "f1": value}
                for name, value in zip("ab", f1, strict=True)]  # fmt: skip
    return keep_records(folder, records, by_label=by_label)


def test_figures_of_classes_are_of_all_seeds(tmp_path: Path) -> None:
    one = [("a", "a", 0.9), ("a", "b", 0.6), ("b", "b", 0.8)]
    two = [("a", "a", 0.7), ("b", "a", 0.75), ("b", "a", 0.55), ("b", "b", 1.0)]
    folders = [
        keep(a_run(tmp_path / str(seed), seed=seed), rows, f1)
        for seed, (rows, f1) in enumerate(((one, (0.5, 0.25)), (two, (0.75, 0.5))))
    ]
    found = kept_scores(find_runs(folders)[0], "dev")
    assert found is not None and found.runs == 2
    assert found.confusion == [[2, 1], [2, 2]]
    assert [(one["label"], one["examples"], one["f1"]) for one in found.by_label] == [("a", 3, 0.625), ("b", 4, 0.375)]
    assert [one["sd"] for one in found.by_label] == pytest.approx([np.std([0.5, 0.75], ddof=1)] * 2)
    # Of one run each bin has one row, or several of the same share: |right - probability| by hand.
    first = (abs(1 - 0.9) + abs(0 - 0.6) + abs(1 - 0.8)) / 3
    second = (abs(1 - 0.7) + abs(0 - 0.75) + abs(0 - 0.55) + abs(1 - 1.0)) / 4
    assert found.ece == pytest.approx((first + second) / 2)
    assert sum(rows for _, _, rows in found.right_by_length) == 7
    assert sum(share * rows for _, share, rows in found.right_by_length) == pytest.approx(4)
    rows = {round(one["probability"], 3): one["rows"] for one in found.calibration}
    assert rows == {0.55: 1, 0.6: 1, 0.7: 1, 0.75: 1, 0.8: 1, 0.9: 1, 1.0: 1}
    assert kept_scores(find_runs([a_run(tmp_path / "none")])[0], "dev") is None


def test_runs_that_differ_only_in_their_notes_are_one_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for seed, note in ((1, "monday"), (2, "tuesday"), (3, None)):
        end_run(begin_run(Path("seeds", str(seed)), seed=seed, note=note), 0.5)
    assert report.main(["seeds"]) == 0
    _, line, *others = capsys.readouterr().out.splitlines()
    assert not others and "monday; tuesday" in line
