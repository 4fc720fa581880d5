"""What doctor says about whether a run learns, of numbers that are made up: each check with and without its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from nlu.diagnosis.check import Check
from nlu.diagnosis.learning import learning
from nlu.reports.runs import read_run
from nlu.runs.records import TRAIN_COLUMNS, VALID_COLUMNS, Table
from tests.reports.folders import begin_run

PLAIN: dict[str, Any] = {
    "loss___target_": "nlu.losses.cross_entropy.CrossEntropy", "method___target_": "nlu.methods.plain.Plain",
    "model__pretrained": "hf://some/model", "optimizer__lr": 2e-4, "trainer__clip_norm": 1.0, "trainer__batch_size": 32,
}  # fmt: skip
FACTS: dict[str, Any] = {
    "target": {"kind": "classes"},
    "sets": {
        "train": {"examples": 100, "conflicts": 1, "cut_to_max_len": 1, "labels": {"a": 40, "b": 30, "c": 20, "d": 10}},
        "dev": {"examples": 10, "labels": {"a": 4, "b": 3, "c": 2, "d": 1}},
    },
}
FALLING = [1.4, 1.2, 1.0, 0.8, 0.7, 0.6]


def run_of(
    folder: Path,
    losses: list[float] = FALLING,
    *,
    values: list[float] | None = None,
    gnorm: list[float] | None = None,
    clipped: float = 0.5,
    lr: float = 2e-4,
    facts: dict[str, Any] | None = None,
    parameters: int = 6_500_000,
    skipped: int | None = None,
    **config: Any,
) -> Path:
    """A run folder with a row of train.tsv for each loss, 100 steps apart, and an evaluation for each value."""
    begin_run(folder, **{**PLAIN, **config})
    columns = TRAIN_COLUMNS if skipped is None else (*TRAIN_COLUMNS, "grad_scale", "skipped")
    train, valid = Table(folder / "train.tsv", columns), Table(folder / "valid.tsv", VALID_COLUMNS)
    for number, loss in enumerate(losses, 1):
        row = {"step": 100 * number, "loss": loss, "gnorm": (gnorm or [1.0] * len(losses))[number - 1]}
        train.append(**row, clipped=clipped, lr=lr, **({} if skipped is None else {"skipped": skipped}))
    for number, value in enumerate([0.5, 0.6] if values is None else values, 1):
        valid.append(step=100 * number, set="dev", metric="accuracy", value=value)
    (folder / "data.json").write_text(json.dumps(FACTS if facts is None else facts))
    starts = [{"parameters": {"all": 9, "trained": 9}}, {"parameters": {"all": parameters, "trained": 1000}}]
    (folder / "provenance.json").write_text(json.dumps({"starts": starts}))
    return folder


def checks_of(folder: Path) -> dict[str, Check]:
    return {check.name: check for check in learning(folder, read_run(folder))}


def train_facts(**changes: Any) -> dict[str, Any]:
    return {**FACTS, "sets": {**FACTS["sets"], "train": {**FACTS["sets"]["train"], **changes}}}


def test_a_run_that_learns_has_no_warning(tmp_path: Path) -> None:
    found = checks_of(run_of(tmp_path / "run"))
    assert {check.mark for check in found.values()} == {"ok"}
    assert found["labels"].says == "40% of the training rows are a"
    # log(4) = 1.386
    assert found["first loss"].says == "1.4, and log(4) = 1.39 is that of equal probabilities"
    assert found["training loss"].says == "falls from 1.4 in the first tenth of the run to 0.6 in the last"
    assert found["learning rate"].says == "at most 0.0002; usual for small pretrained weights: 1e-4 to 5e-4"
    assert found["against one class"].says == "accuracy 0.6000; predicting always a has 0.4000"
    assert found["trained parameters"].says == "1,000 of 6,500,000 (0.0%)"


@pytest.mark.parametrize(
    ("name", "says", "made"),
    [
        ("labels", "96% of the training rows are a", {"facts": train_facts(labels={"a": 96, "b": 3, "c": 1})}),
        ("labels", "no training row is d, e", {"facts": train_facts(labels={"a": 5, "b": 4, "d": 0, "e": 0})}),
        ("conflicting labels", "3 training texts of 100", {"facts": train_facts(conflicts=3)}),
        ("texts cut", "21% of the training texts", {"facts": train_facts(cut_to_max_len=21)}),
        # Twice log(4) is 2.77.
        ("first loss", "2.8, and log(4)", {"losses": [2.8, 2.0, 1.0, 0.5]}),
        ("training loss", "hardly falls: from 1 in", {"losses": [1.0, 1.0, 0.97, 0.96]}),
        ("training loss", "rises from 1 in", {"losses": [1.0, 0.9, 1.1, 1.2]}),
        ("training loss", "rises from 1 in", {"losses": [1.0, 0.9, 1.1, float("nan")]}),
        ("gradient", "mean norm 1e-07", {"gnorm": [1e-7] * 6}),
        ("gradient", "mean norm 6, largest 6, clipped in 96%", {"gnorm": [6.0] * 6, "clipped": 0.96}),
        ("gradient", "it bursts", {"gnorm": [1.0, 1.0, 1.0, 21.0, 1.0, 1.0]}),
        # 11 of each 100 steps.
        ("skipped steps", "66 steps of 600 skipped", {"skipped": 11}),
        ("learning rate", "at most 0.0002; usual for large", {"parameters": 102_000_000}),
        ("learning rate", "at most 1e-06; usual for small", {"lr": 1e-6}),
        ("learning rate", "at most 0.01; usual for random weights: 1e-3", {"lr": 1e-2, "model__pretrained": None}),
        ("against one class", "accuracy 0.4000; predicting always a has 0.4000", {"values": [0.3, 0.4]}),
        ("course of the score", "best (0.7000) at evaluation 1 of 4, and 0.6000", {"values": [0.7, 0.65, 0.62, 0.6]}),
        ("batch", "8 examples in a step", {"trainer__batch_size": 4, "trainer__accumulation": 2}),
        ("moving average", "lags behind in 200 steps", {"losses": [1.4, 1.0], "trainer__ema_decay": 0.99}),
        ("dropout", "model.head_dropout is 0.6", {"model__head_dropout": 0.6}),
    ],
)
def test_a_reason_why_a_run_may_not_learn_is_named(tmp_path: Path, name: str, says: str, made: dict[str, Any]) -> None:
    found = checks_of(run_of(tmp_path / "run", **made))
    assert [check.name for check in found.values() if check.mark == "warning"] == [name]
    assert says in found[name].says and found[name].remedy
