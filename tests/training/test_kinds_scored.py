"""Scores and predictions of every kind of run depend neither on the other examples of a batch nor on order."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from nlu.runs.predictions import Predictions
from tests.training.in_process import composed, start
from tests.training.kinds import LOSSES, PRETRAINING, TASKS, Kind, classes, few_first, pair_of_classes, read, write
from tests.training.runs import result

KINDS = {
    **TASKS,
    "bce": LOSSES["bce"],
    "classify in fp16": Kind(("precision=fp16",), classes),
    "retrieve in bf16": Kind(("task=retrieve", "precision=bf16"), pair_of_classes),
}
DEV_ROWS = 23
WIDE = ("model.hidden_size=32", "model.intermediate_size=48")
"""Heads of attention that are narrower than 12 do not give the same bits, with several threads."""
PLACE = ("id", "file", "row")


@pytest.mark.parametrize(
    "kind",
    few_first(KINDS, "tag with a CRF", "tag in windows", "siamese"),
)
def test_scores_and_predictions_do_not_depend_on_batch_size_or_row_order(kind: Kind, tmp_path: Path) -> None:
    options, found = scored_in_batches(kind, tmp_path)
    rows = read(tmp_path / "dev.jsonl")
    order = random.Random(2).sample(range(DEV_ROWS), DEV_ROWS)
    write(tmp_path / "dev.jsonl", [rows[place] for place in order])
    start(composed(*options, "trainer.eval_batch_size=5"), tmp_path / "shuffled")
    metrics, before = found
    shuffled_metrics, after = scored(tmp_path / "shuffled")
    assert shuffled_metrics == metrics
    assert [record["id"] for record in before] == [record["id"] for record in after] == list(range(DEV_ROWS))
    for place, record in zip(order, after, strict=True):
        assert without_place(record) == without_place(before[place])


@pytest.mark.parametrize("kind", few_first(PRETRAINING, "mlm", "structbert"))
def test_scores_of_masked_words_do_not_depend_on_batch_size(kind: Kind, tmp_path: Path) -> None:
    # The order of rows decides their masks.
    _, (metrics, records) = scored_in_batches(kind, tmp_path)
    total, masked = (sum(record[name] for record in records) for name in ("loss", "masked"))
    if "class" in records[0]:
        shuffled, wrong = (sum(record[name] for record in records) for name in ("shuffled", "class_loss"))
        words = (total + sum(record["shuffled_loss"] for record in records)) / (masked + shuffled)
        assert metrics["loss"] == pytest.approx(words + 2 * wrong / len(records), rel=1e-9)
        right = sum(record["class"] == record["predicted_class"] for record in records)
        assert right / len(records) in metrics.values()
    else:
        assert metrics["loss"] == pytest.approx(total / masked, rel=1e-9)
    assert metrics["perplexity"] == pytest.approx(math.exp(total / masked), rel=1e-9)


def scored_in_batches(
    kind: Kind, tmp_path: Path
) -> tuple[tuple[str, ...], tuple[dict[str, float], list[dict[str, Any]]]]:
    """Score a dev set by trained weights in batches of 1, 3 and 64 rows, which must not matter.

    Returns the options of the runs, and what `scored` returns.
    """
    options = (*kind.overrides(tmp_path, train_rows=40, dev_rows=DEV_ROWS), *WIDE)
    learned = ("trainer.max_duration=25st", "trainer.eval_interval=0", "optimizer.lr=1e-2", "trainer.ema_decay=0")
    start(composed(*options, *learned), tmp_path / "learned")
    options += (f"model.pretrained={tmp_path}/learned/last", *kind.standing_still, "trainer.max_duration=1st")
    found = []
    for size in (1, 3, 64):
        start(composed(*options, f"trainer.eval_batch_size={size}"), tmp_path / str(size))
        found.append(scored(tmp_path / str(size)))
    assert found[0] == found[1] == found[2]
    # Else there would be nothing that could differ.
    assert len({str(without_place(record)) for record in found[0][1]}) > DEV_ROWS // 2
    return options, found[0]


def scored(run_dir: Path) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the metrics of the dev set and its predictions."""
    records = [dict(record) for record in Predictions(run_dir / "predictions/dev.jsonl")]
    return result(run_dir)["metrics"]["dev"], records


def without_place(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in PLACE}
