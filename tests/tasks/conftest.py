"""A real store for each test of a task, and scoring of logits that a test writes down."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu.data.collate import collate
from nlu.data.dataset import Files
from nlu.data.opening import Store
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.tokenizing import WordPiece
from nlu.metrics.scores import Scores


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[..., Store]:
    """Open a store whose train and dev set are both the given file."""

    def opened(name: str, content: str, task: Any, **settings: Any) -> Store:
        path = tmp_path / name
        path.write_text(content)
        files = Files(train=str(path), dev=str(path), **settings)
        return prepare(plan_of(files, WordPiece(min_count=1), task.target, task.layouts, pretrained=None, vocab=None))

    return opened


class Headless:
    """A model of which a task needs nothing, since the test says what it gives."""

    head = None


def scored(
    task: Any, store: Store, logits_RC: np.ndarray, batch_size: int = 100
) -> tuple[Scores, list[dict[str, Any]]]:
    """Return the scores of the dev set for these logits, rows in the order of examples, and the records in theirs."""
    part = store.sets["dev"]
    counts_N = np.array([len(torch.atleast_1d(piece)) for piece in _rows_of(store, logits_RC)])
    starts_N = np.cumsum(counts_N) - counts_N
    scorer = task.scorer({})
    records: list[dict[str, Any]] = [{}] * len(part)
    for start in range(0, len(part), batch_size):
        batch = collate(part, np.arange(start, min(start + batch_size, len(part))))
        rows = [np.arange(starts_N[i], starts_N[i] + counts_N[i]) for i in batch.examples_B]
        outputs = {"logits": torch.from_numpy(logits_RC[np.concatenate(rows)])}
        for example, record in zip(batch.examples_B, task.records(part, batch, Headless(), outputs), strict=True):
            scorer.add(record)
            records[example] = record
    scores = scorer.result()
    return scores, [task.finished(record, scores.metrics) for record in records]


def _rows_of(store: Store, logits_RC: np.ndarray) -> list[torch.Tensor]:
    """The rows of logits of each example: one, or one for each unit that fitted."""
    part = store.sets["dev"]
    batch = collate(part, np.arange(len(part)))
    if batch.unit_counts_B is None:
        return [torch.zeros(1)] * len(part)
    counts_N = np.empty(len(part), np.int64)
    counts_N[batch.examples_B] = batch.unit_counts_B
    return [torch.zeros(int(count)) for count in counts_N]
