"""Numbers: learned on the scale of the training rows, scored in their own unit."""

import numpy as np
import pytest
import torch

from nlu.data.collate import collate
from nlu.data.facts import describe, lines
from nlu.losses.mse import Mse
from nlu.models.encoders.bert import Bert
from nlu.models.heads.linear import LinearHead
from nlu.models.task_model import TaskModel
from nlu.tasks.regress import Regress
from tests.tasks.conftest import scored

TABLE = {"fields": {"text": 0, "label": 1}}


def test_predictions_and_errors_are_in_the_targets_own_unit(store_of):
    store = store_of("a.tsv", "x\t10\ny\t20\nz\t60\n", Regress, **TABLE)
    mean, sd = 30.0, np.std([10, 20, 60])
    scores, records = scored(Regress(Mse(), store.target), store, np.array([[0.0], [0.0], [1.0]], np.float32))
    assert [row["label"] for row in records] == [10, 20, 60]
    assert [row["prediction"] for row in records] == pytest.approx([mean, mean, mean + sd])
    assert scores.metrics["mae"] == pytest.approx((20 + 10 + abs(60 - mean - sd)) / 3)
    assert [row["loss"] for row in records] == pytest.approx([(20 / sd) ** 2, (10 / sd) ** 2, (30 / sd - 1) ** 2], 1e-5)
    assert set(scores.metrics) == set(Regress.metrics)


def test_a_pair_of_texts_may_have_a_number(store_of):
    fields = {"text_a": 0, "text_b": 1, "label": 2}
    store = store_of("a.tsv", "x\ty\t0.5\nx\tz\t-3\n", Regress, fields=fields)
    assert store.layout.name == "pair"
    scores, _ = scored(Regress(Mse(), store.target), store, np.array([[1.0], [-1.0]], np.float32))
    assert scores.metrics["pearson"] == pytest.approx(1.0)


def test_in_bf16_numbers_keep_the_bits_that_tell_texts_apart(store_of):
    store = store_of("a.tsv", "".join(f"w{i} w{i % 7}\t{i}\n" for i in range(40)), Regress, **TABLE)
    torch.manual_seed(0)
    encoder = Bert(
        store.tokenizer.vocab_size, None, pretrained=None, hidden_size=32, layers=1, heads=2, intermediate_size=32
    )
    model = TaskModel(encoder, LinearHead(32, store.target), "single").eval()
    task, part = Regress(Mse(), store.target), store.sets["dev"]
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = task.forward(model, collate(part, np.arange(40)))["logits"]
    # On some processors two of the texts have equal vectors in bf16.
    assert found.dtype == torch.float32 and len(found.unique()) >= 38 > len(found.bfloat16().unique())


@pytest.mark.parametrize(
    ("numbers", "warned"), [([0, 1, 1], True), ([0, 0.5, 1], False), ([0, 1, 2], False), ([-1, 1, 1], False)]
)
def test_numbers_that_are_two_classes_are_warned_of(store_of, numbers, warned):
    rows = "".join(f"text{place}\t{number}\n" for place, number in enumerate(numbers))
    said = "\n".join(lines(describe(store_of("a.tsv", rows, Regress, **TABLE))))
    assert ("train: warning: every number is 0 or 1 (" in said) == warned
    assert ("for two classes set task=classify" in said) == warned


def test_the_divergence_of_two_predictions_is_half_their_squared_difference():
    first, second = ({"logits": torch.tensor(logits)} for logits in ([[1.0], [-2.0]], [[0.5], [1.0]]))
    assert Regress.divergence(None, None, first, second).item() == pytest.approx(0.5 * (0.5**2 + 3.0**2))  # type: ignore[arg-type]
