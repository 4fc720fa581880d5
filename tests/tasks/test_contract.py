"""What every task promises of its records and scores. A new task is an entry of TASKS."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nlu.losses.bce import Bce
from nlu.losses.bce_multilabel import BceMultilabel
from nlu.losses.contrastive import Contrastive
from nlu.losses.cross_entropy import CrossEntropy
from nlu.losses.kl import Kl
from nlu.losses.mse import Mse
from nlu.losses.of_queries import Listwise
from nlu.tasks.classify import Classify, Match
from nlu.tasks.multilabel import Multilabel
from nlu.tasks.regress import Regress
from nlu.tasks.rerank import Rerank
from nlu.tasks.siamese import Siamese
from nlu.tasks.soft import Soft
from nlu.tasks.tag import Tag
from tests.tasks.conftest import scored

ONE, TWO = {"fields": {"text": 0, "label": 1}}, {"fields": {"text_a": 0, "text_b": 1, "label": 2}}
NUMBERS = range(9)
CLASSES = ("a.tsv", "".join(f"w{i}\t{'xyz'[i % 3]}\n" for i in NUMBERS), ONE)
PAIRS = ("a.tsv", "".join(f"w{i}\tv{i}\t{i % 2}\n" for i in NUMBERS), TWO)
SETS = ("a.tsv", "".join(f"w{i}\t{'|'.join('xyz'[: i % 4])}\n" for i in NUMBERS), ONE)
TAGS = (
    "a.conll", "".join("w B-X\n" + "w I-X\nw O\n" * (i % 3) + "\n" for i in NUMBERS),
    {"fields": {"tokens": 0, "tags": 1}},
)  # fmt: skip
SHARES = (
    "a.jsonl", "".join(json.dumps({"text": "x" * (i % 3 + 1), "logits": [i, 3, 2], "label": "xyz"[i % 3]}) + "\n"
                       for i in NUMBERS),
    {"fields": {"text": "text", "logits": "logits", "label": "label"}, "labels": ["x", "y", "z"]},
)  # fmt: skip
TASKS: dict[str, tuple[Any, Callable[[], Any], tuple[str, str, dict[str, Any]], int]] = {
    "classify": (Classify, CrossEntropy, CLASSES, 3),
    "classify with a class of rejection": (Classify, Bce, CLASSES, 3),
    "match": (Match, CrossEntropy, PAIRS, 2),
    "tag": (Tag, CrossEntropy, TAGS, 3),
    "multilabel": (Multilabel, BceMultilabel, SETS, 3),
    "regress": (Regress, Mse, ("a.tsv", "".join(f"w{i}\t{i * i}\n" for i in NUMBERS), ONE), 1),
    "siamese": (Siamese, Contrastive, PAIRS, 1),
    "rerank": (Rerank, Listwise, PAIRS, 1),
    "soft": (Soft, Kl, SHARES, 3),
}
"""class, loss, rows with how they are read, and outputs for each row or unit"""


@pytest.fixture(params=TASKS)
def task_and_store(request: pytest.FixtureRequest, store_of: Callable[..., Any]) -> tuple[Any, Any, np.ndarray]:
    """A task with its store, and a row of outputs for each example or unit."""
    task, loss, (name, content, settings), outputs = TASKS[request.param]
    store = store_of(name, content, task, **settings)
    bound = loss()
    bound.bind(store.labels or [])
    rows = content.count("w ") if task is Tag else len(NUMBERS)
    logits = np.random.default_rng(0).uniform(-1, 1, (rows, outputs)).astype(np.float32)
    return task(bound, store.target), store, logits


def test_scores_and_records_do_not_depend_on_the_batch(task_and_store: tuple[Any, Any, np.ndarray]) -> None:
    task, store, logits = task_and_store
    whole, single, three = (scored(task, store, logits, batch_size=size) for size in (100, 1, 3))
    assert repr(whole) == repr(single) == repr(three)
    assert len(whole[1]) == len(NUMBERS)


def test_the_scores_are_those_that_the_task_declares(task_and_store: tuple[Any, Any, np.ndarray]) -> None:
    task, store, logits = task_and_store
    scores, _ = scored(task, store, logits)
    binary = task.binary_metrics if len(store.labels or []) == 2 else ()
    assert set(scores.metrics) == {*task.metrics, *binary}
    assert task.default_metric in task.metrics and set(task.lower_is_better) <= set(type(task).metrics)


def test_the_loss_of_a_set_is_the_mean_of_its_rows_or_units(task_and_store: tuple[Any, Any, np.ndarray]) -> None:
    task, store, logits = task_and_store
    scores, records = scored(task, store, logits)
    if "loss" not in task.metrics:
        return
    counts = [record.get("units_scored", 1) for record in records]
    total = sum(record["loss"] for record in records)
    assert scores.metrics["loss"] == pytest.approx(total / sum(counts), rel=1e-9)
