"""Small stored sets and small foreign checkpoints for encoders to work on."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nlu.data.arrays import flatten
from nlu.data.collate import Batch, collate
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.layouts import LAYOUTS
from nlu.data.store import EncodedRows, Origin, SetWriter, StoredSet
from nlu.data.targets import Classes, Tags

VOCAB_SIZE = 50


class Corpus:
    """Random examples of one layout in a real stored set, and batches of them.

    The second text of a pair of length 1 is empty. With the layout sides, the texts of a pair are a sequence each.
    """

    def __init__(self, folder: Path, layout: str, lengths: list[int], seed: int = 0):
        rng = np.random.default_rng(seed)
        tokens, lengths_N = flatten([rng.integers(1, VOCAB_SIZE, length).tolist() for length in lengths])
        boundary_N = (
            np.array([int(rng.integers(1, max(2, length))) for length in lengths])
            if layout in ("pair", "sides")
            else lengths_N
        )
        words = [sorted(rng.choice(length, (length + 1) // 2, replace=False).tolist()) for length in lengths]
        flat_words, word_counts_N = flatten(words if layout == "units" else [[] for _ in lengths])
        encoded = EncodedRows(tokens, lengths_N, boundary_N, np.zeros(len(lengths), bool), flat_words, word_counts_N)
        rows_N = np.arange(len(lengths))
        files = Files(train="", labels=["A"] if layout == "units" else ["a", "b", "c"])
        target = Tags(files) if layout == "units" else Classes(files)
        tags = [[tag % 3 for tag in places] for places in words]
        writer = SetWriter(folder, target.column())
        origin = Origin(rows_N, rows_N, rows_N * 0, rows_N)
        writer.add(encoded, tags if layout == "units" else (rows_N % 3).tolist(), origin)
        writer.close()
        self.layout = layout
        self.examples = Examples("dev", StoredSet.open(folder), rows_N, target, LAYOUTS[layout])

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, rows: Any = None) -> Batch:
        """Return the examples of these rows, or of all, as one batch."""
        rows_B = np.arange(len(self)) if rows is None else np.asarray(rows)
        return collate(self.examples, rows_B)

    @torch.inference_mode()
    def logits(self, model: nn.Module, batch_size: int, order: Any = None) -> list[torch.Tensor]:
        """Return the logits of each example, in the order of the rows, computed in batches along `order`."""
        order = np.arange(len(self)) if order is None else np.asarray(order)
        found: list[torch.Tensor] = [torch.empty(0)] * len(self)
        for start in range(0, len(order), batch_size):
            batch = self.batch(order[start : start + batch_size])
            counts_B = batch.unit_counts_B if batch.unit_counts_B is not None else np.ones(len(batch), np.int64)
            parts = model(batch).split(counts_B.tolist())
            for row, part in zip(batch.examples_B, parts, strict=True):
                found[row] = part
        return found


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Corpus]:
    """Return a function that makes a corpus of a layout with the given lengths."""
    made = 0

    def make(layout: str, lengths: list[int], seed: int = 0) -> Corpus:
        nonlocal made
        made += 1
        return Corpus(tmp_path / f"set-{made}", layout, lengths, seed)

    return make


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[int], None]]:
    """Compute with one thread, since the tensors are small; return a function that sets another number for the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def spread() -> Callable[[nn.Module, int], nn.Module]:
    """Return a function that gives a model parameters so far apart that every mistake shows, and evaluation mode."""

    def spread(model: nn.Module, seed: int = 0) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(std=0.3, generator=generator)
                if "LayerNorm.weight" in name:
                    parameter.add_(1.0)
        return model.eval()

    return spread


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Return a function that gives what was logged about pretrained weights, as "LEVEL message"."""
    logger = logging.getLogger("nlu.models.formats.pretrained")
    monkeypatch.setattr(logger, "propagate", False)
    caplog.set_level(logging.INFO, logger=logger.name)
    logger.addHandler(caplog.handler)
    yield lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    logger.removeHandler(caplog.handler)
