"""Small stored sets and small foreign checkpoints for encoders to work on."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nlu.data.collate import Batch, collate
from nlu.data.encoding import Encoded
from nlu.data.ragged import flatten
from nlu.data.store import Examples, SetWriter, StoredSet

VOCAB_SIZE = 50


class Corpus:
    """Random examples of one layout in a real stored set, and batches of them.

    A pair of length 1 has no second text. With the layout sides, the texts of a pair are a sequence each.
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
        encoded = Encoded(tokens, lengths_N, boundary_N, np.zeros(len(lengths), bool), flat_words, word_counts_N)
        rows_N = np.arange(len(lengths))
        writer = SetWriter(folder)
        writer.add(
            encoded,
            {
                "label_N": rows_N % 3,
                "tags": flat_words % 3,
                "tag_counts_N": word_counts_N,
                "text_hash_N": rows_N,
                "group_N": rows_N,
                "file_N": rows_N * 0,
                "number_N": rows_N,
            },
        )
        writer.close()
        self.layout = layout
        self.examples = Examples("dev", StoredSet(folder, None), rows_N)

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, rows: Any = None) -> Batch:
        """Return the examples of these rows, or of all, as one batch."""
        rows_B = np.arange(len(self)) if rows is None else np.asarray(rows)
        batch = collate(self.examples, rows_B, units=self.layout == "units")
        return apart(batch) if self.layout == "sides" else batch

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


def apart(batch: Batch) -> Batch:
    """Return a batch of pairs with the texts of each as two sequences."""
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    texts = [tokens[segments == side] for tokens, segments in rows for side in (0, 1)]
    order_S = np.argsort([len(text) for text in texts], kind="stable")
    lengths = [len(texts[text]) for text in order_S]
    starts_S = torch.tensor([0, *lengths]).cumsum(0)[:-1]
    place_X = torch.empty(len(texts), dtype=torch.int64)
    place_X[torch.from_numpy(order_S)] = torch.arange(len(texts))
    tokens_T = torch.cat([texts[text] for text in order_S])
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    return dataclasses.replace(
        batch, lengths=lengths, tokens_T=tokens_T, segments_T=torch.zeros_like(tokens_T), positions_T=positions_T,
        starts_S=starts_S, sequences_KB=place_X.view(-1, 2).T.contiguous(),
    )  # fmt: skip


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
