"""Scores of a model that learns from soft targets, for rows with and without a label."""

import json
import math

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.losses.kl import Kl
from nlu.losses.mse_logits import MseLogits
from nlu.tasks.soft import Soft
from tests.tasks.conftest import scored

ROWS = (
    {"text": "a", "probabilities": [0.8, 0.2, 0]},
    {"text": "b", "probabilities": [0.3, 0.7, 0], "label": "y"},
    {"text": "c", "probabilities": [0.5, 0.1, 0.4], "label": "z"},
)
LOGITS = np.log(np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.125, 0.125, 0.75]], np.float32))
KL = (
    0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.25),
    0.3 * math.log(0.3 / 0.5) + 0.7 * math.log(0.7 / 0.25),
    0.5 * math.log(0.5 / 0.125) + 0.1 * math.log(0.1 / 0.125) + 0.4 * math.log(0.4 / 0.75),
)


def opened(store_of, rows, labels=("x", "y", "z"), role="probabilities"):
    fields = {"text": "text", role: role, "label": "label"}
    return store_of(
        "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows), Soft, fields=fields, labels=[*labels]
    )


def test_labels_are_scored_where_a_row_has_one_and_soft_targets_elsewhere(store_of):
    store = opened(store_of, ROWS)
    # The temperature of the training loss does not matter.
    scores, records = scored(Soft(Kl(temperature=5.0), store.target), store, LOGITS)
    assert [record["loss"] for record in records] == pytest.approx(KL, rel=1e-6)
    assert [record["prediction"] for record in records] == ["x", "x", "z"]
    assert [record["label"] for record in records] == ["x", "y", "z"]
    assert [record["target"] for record in records] == ["x", "y", "x"]
    assert scores.metrics["loss"] == pytest.approx(sum(KL) / 3, rel=1e-6)
    assert scores.metrics["agreement"] == pytest.approx(1 / 3) and scores.metrics["accuracy"] == 1 / 2
    assert [(row["label"], row["examples"], row["correct"]) for row in scores.by_label] == [
        ("x", 0, 0), ("y", 1, 0), ("z", 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("names", ["xyz", "xy"])
def test_without_labels_all_declared_scores_but_two_are_nan(store_of, names):
    store = opened(store_of, [{"text": "a", "logits": [*range(len(names))]}], names, "logits")
    scores, _ = scored(Soft(Kl(), store.target), store, LOGITS[:1, : len(names)])
    binary = Soft.binary_metrics if len(names) == 2 else ()
    assert set(scores.metrics) == {*Soft.metrics, *binary}
    assert {name for name, value in scores.metrics.items() if not math.isnan(value)} == {"loss", "agreement"}
    assert [row["examples"] for row in scores.by_label] == [0] * (len(names) - 1) + [1]


def test_a_loss_of_logits_refuses_probabilities(store_of):
    store = opened(store_of, ROWS)
    with pytest.raises(UserError, match="^loss compares logits, but the rows have probabilities; set loss=kl$"):
        Soft(MseLogits(), store.target)


def test_a_label_of_the_first_class_is_scored_too(store_of):
    store = opened(store_of, ({**ROWS[0], "label": "x"}, *ROWS[1:]))
    scores, _ = scored(Soft(Kl(), store.target), store, LOGITS)
    assert scores.metrics["accuracy"] == pytest.approx(2 / 3)
    assert [row["examples"] for row in scores.by_label] == [1, 1, 1]
