"""What doctor says about whether a run learns, of numbers that are made up."""

from pathlib import Path
from typing import Any

import pytest

from nlu.diagnosis.check import Check
from nlu.diagnosis.recorded import learning
from nlu.reports.runs import read_run
from nlu.runs.records import TRAIN_COLUMNS, VALID_COLUMNS, Table
from tests.reports.folders import begin_run

PLAIN = {"loss___target_": "nlu.losses.cross_entropy.CrossEntropy", "method___target_": "nlu.methods.plain.Plain"}
FACTS = {
    "target": {"kind": "classes"},
    "sets": {"train": {"labels": {"a": 40, "b": 30, "c": 20, "d": 10}}, "dev": {"labels": {"a": 4, "b": 6}}},
}


def checks_of(folder: Path, values: list[float], facts: dict[str, Any], **config: Any) -> dict[str, Check]:
    begin_run(folder, **{**PLAIN, **config})
    train, valid = Table(folder / "train.tsv", TRAIN_COLUMNS), Table(folder / "valid.tsv", VALID_COLUMNS)
    for step, value in enumerate(values, 1):
        train.append(step=step, loss=1.5 / step)
        valid.append(step=step, set="dev", metric="accuracy", value=value)
    return {check.name: check for check in learning(folder, read_run(folder), facts)}


def test_the_first_loss_and_the_best_accuracy_stand_beside_those_of_chance(tmp_path: Path) -> None:
    found = checks_of(tmp_path / "run", [0.5, 0.7], FACTS)
    # log(4) = 1.386
    assert found["first loss"].says == "1.5, and log(4) = 1.39 is that of equal probabilities"
    assert found["against one class"].says == "accuracy 0.7000; predicting always b has 0.6000"
    assert {check.mark for check in found.values()} == {"ok"}


@pytest.mark.parametrize(("best", "mark"), [(0.6, "warning"), (0.61, "ok")])
def test_an_accuracy_of_the_most_frequent_class_is_a_warning(tmp_path: Path, best: float, mark: str) -> None:
    assert checks_of(tmp_path / "run", [0.5, best, 0.4], FACTS)["against one class"].mark == mark


def test_nothing_is_said_of_a_target_without_classes_or_of_another_loss(tmp_path: Path) -> None:
    assert checks_of(tmp_path / "tags", [0.5], {"target": {"kind": "tags"}}) == {}
    other = checks_of(tmp_path / "focal", [0.5], FACTS, loss___target_="nlu.losses.focal.Focal")
    assert set(other) == {"against one class"}
