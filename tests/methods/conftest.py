"""A small model over real rows, and batches of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nlu.data.collate import Batch, collate
from nlu.data.dataset import Files
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.tokenizing import WordPiece
from nlu.losses.cross_entropy import CrossEntropy
from nlu.models.encoders.bert import Bert
from nlu.models.heads.linear import LinearHead
from nlu.models.task_model import TaskModel
from nlu.tasks.classify import Classify

ROWS = ["a b c\tx", "d\ty", "b b e f g a\tz", "c d\tx", "g f e d c b a\ty"]


@dataclass
class Parts:
    """What a method works on."""

    task: Classify
    model: TaskModel
    batch: Batch
    singles: list[Batch]
    """the same examples, a batch each"""

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients by parameter, zero for parameters without one, and forget them."""
        found = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in self.model.named_parameters()
        }
        self.model.zero_grad()
        return found


@pytest.fixture
def parts_of(tmp_path: Path) -> Callable[..., Parts]:
    """Return a function that builds the parts, in float64 so that two ways to compute agree closely."""

    def build(dropout: float = 0.0) -> Parts:
        path = tmp_path / "rows.tsv"
        path.write_text("\n".join(ROWS) + "\n")
        files = Files(train=str(path), dev=str(path), fields={"text": 0, "label": 1})
        store = prepare(
            plan_of(files, WordPiece(min_count=1), Classify.target, Classify.layouts, pretrained=None, vocab=None)
        )
        torch.manual_seed(0)
        encoder = Bert(
            store.tokenizer.vocab_size, None, pretrained=None, hidden_size=8, layers=1, heads=2, intermediate_size=16,
            dropout=dropout, attention_dropout=dropout, head_dropout=dropout, initializer_range=0.3,
        )  # fmt: skip
        head: Any = LinearHead(8, store.target)
        model = TaskModel(encoder, head, "single").train()
        loss: Any = CrossEntropy()
        loss.bind(store.labels)
        part = store.sets["dev"]
        batch = collate(part, np.arange(len(part)))
        singles = [collate(part, np.array([example])) for example in range(len(part))]
        classify: Any = Classify
        return Parts(classify(loss, store.target), model, batch, singles)

    return build
