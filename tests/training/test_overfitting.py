"""debug=overfit: its verdict, and the numbers that it follows from."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nlu.runs.records import read_rows
from nlu.training.overfitting import Chance, Course, chance_of, course_of, sentences
from tests.training.in_process import MODEL, NO_DROPOUT, command, sets, write_rows

SMALL = (*MODEL, *NO_DROPOUT, "trainer.device=cpu")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_of_models_that_ignore_the_texts_are_those_of_torch(smoothing: float) -> None:
    counts = [6, 3, 0, 1]
    labels_N = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)])

    def loss_of(logits_NC: torch.Tensor) -> float:
        return F.cross_entropy(logits_NC, labels_N, label_smoothing=smoothing).item()

    found = chance_of(counts, smoothing)
    assert found.classes == 4 and found.equal == pytest.approx(loss_of(torch.zeros(10, 4)))
    # The best logits for all rows together, and those for each row: no others nearby have a lower loss.
    shares_C = (1 - smoothing) * torch.tensor(counts) / 10 + smoothing / 4
    target_NC = (1 - smoothing) * F.one_hot(labels_N, 4) + smoothing / 4
    generator = torch.Generator().manual_seed(0)
    for value, shares_NC in ((found.frequencies, shares_C.expand(10, 4)), (found.least, target_NC)):
        best_NC = shares_NC.clamp(min=1e-9).log()
        assert value == pytest.approx(loss_of(best_NC), abs=1e-5)
        nearby = [torch.randn(shares_NC.shape[1], generator=generator) for _ in range(20)]
        assert all(loss_of(best_NC + 0.1 * change_C) >= value - 1e-6 for change_C in nearby)


def test_the_last_loss_is_the_mean_over_the_rows_of_the_last_epoch() -> None:
    # Epochs of 10 examples in steps of 6 and 4.
    ends = [6, 10, 16, 20, 26, 30]
    rows = [{"examples": end, "loss": float(loss)} for end, loss in zip(ends, (9, 8, 7, 5, 3, 2), strict=True)]
    found = course_of(rows, 10, None)
    assert found is not None and found.first == 9 and found.last == pytest.approx((6 * 3 + 4 * 2) / 10)
    assert found.left == pytest.approx(2.6 / 9) and found.verdict == "not learned" and found.falls
    assert course_of([{"examples": 6, "loss": None}], 10, None) is None


@pytest.mark.parametrize(
    ("last", "chance", "verdict"),
    [
        (0.06, Chance(2, math.log(2), 0.65, 0.0), "learned"),
        (0.07, Chance(2, math.log(2), 0.65, 0.0), "not learned"),
        # With label smoothing the loss cannot go to 0.
        (0.24, Chance(2, math.log(2), 0.65, 0.2), "learned"),
        (0.01, Chance(2, math.log(2), 0.0, 0.0), "unknown"),
        (0.06, None, "learned"),
    ],
)
def test_rows_are_learned_if_a_tenth_of_the_loss_that_ignores_texts_is_left(
    last: float, chance: Chance | None, verdict: str
) -> None:
    assert Course(0.7, last, False, chance).verdict == verdict


def test_a_loss_that_begins_below_zero_is_not_judged() -> None:
    found = Course(-1.0, -2.0, False, None)
    assert found.verdict == "unknown"
    assert "does not show whether the model can learn" in list(sentences(found, 9, 9, []))[-1]


def verdict_of(run: Path) -> tuple[dict[str, float], list[str]]:
    """The facts in result.json, and what the log of the run says."""
    said = [
        line.partition("overfit: ")[2] for line in (run / "log.txt").read_text().splitlines() if "overfit: " in line
    ]
    return json.loads((run / "result.json").read_text())["overfit"], said


def test_a_run_that_learns_its_rows_ends_with_that_verdict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    command(
        *SMALL, *sets(tmp_path), "debug=overfit", "optimizer.lr=3e-2", "trainer.max_duration=60st",
        f"hydra.run.dir={run}",
    )  # fmt: skip
    facts, said = verdict_of(run)
    # 7 of the 27 rows are good, and all rows fit into one step.
    losses = [float(row["loss"]) for row in read_rows(run / "train.tsv")]  # type: ignore[arg-type]
    ignorant = -(7 / 27 * math.log(7 / 27) + 20 / 27 * math.log(20 / 27))
    assert len(losses) == 60 and facts["left"] == pytest.approx(losses[-1] / ignorant)
    assert facts["verdict"] == "learned" and facts["left"] < 0.1
    assert said[0] == (
        f"the training loss went from {losses[0]:.3g} to {losses[-1]:.3g} in 60 steps; log(2), that of equal "
        "probabilities, is 0.693"
    )
    assert said[1].endswith(
        f"of a model that ignores the texts, {ignorant:.3g}, is left: the model can learn these 27 rows"
    )
    assert said[1] in capfd.readouterr().err


def test_a_run_that_does_not_learn_names_what_to_look_at(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command(
        *SMALL, *sets(tmp_path), "debug=overfit", "optimizer.lr=1e-6", "trainer.max_duration=4st",
        "optimizer.freeze=['backbone.*']", f"hydra.run.dir={run}",
    )  # fmt: skip
    facts, said = verdict_of(run)
    assert facts["verdict"] == "not learned" and facts["left"] > 0.9
    assert said[1].endswith("the model has not learned these 27 rows; look first at")
    # The head has 8 weights and a bias for each of two classes.
    assert any(line.startswith("  - frozen parameters: 18 of ") for line in said)
    assert "  - the learning rate, 1e-06 (python -m nlu.scan of=lr)" in said
    assert said[-1].startswith("  - the labels")


def test_rows_of_one_class_prove_nothing(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.tsv", 30)
    rows.write_text("".join(sorted(rows.read_text().splitlines(keepends=True), key=lambda line: line.split("\t")[1])))
    run = tmp_path / "run"
    command(
        *SMALL, "data=files", f"data.train={rows}", f"data.dev={rows}", "data.fields={text: 0, label: 1}",
        "data.labels=[bad,good]", "debug=overfit", "data.max_rows=20", "trainer.max_duration=2st",
        f"hydra.run.dir={run}",
    )  # fmt: skip
    facts, said = verdict_of(run)
    assert facts["verdict"] == "unknown" and said[-1].startswith("all 20 rows have the same label")


def test_other_runs_have_no_verdict(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command(*SMALL, *sets(tmp_path), "trainer.max_duration=1st", f"hydra.run.dir={run}")
    assert "overfit" not in json.loads((run / "result.json").read_text())
