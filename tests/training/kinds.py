"""Every kind of run: what it is composed of, and small rows that it can learn. Shared by the tests of all kinds."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.training.in_process import MODEL, PLAIN, STANDING_STILL

Row = dict[str, Any]
LSTM_CRF = ("model=lstm_crf", "model.hidden_size=8", "model.embedding_size=8", "data.max_len=32")
TEXTCNN = ("model=textcnn", "model.hidden_size=8", "model.embedding_size=8", "data.max_len=32")
TRAIN_ROWS, DEV_ROWS = 13, 11
"""Steps of 8 rows, in micro-batches of 4: the second one ends the epoch, with a micro-batch of one row."""


def text(rng: random.Random) -> str:
    """Return single letters, so that each is one token in every vocabulary."""
    return " ".join(rng.choice("abcdefgh") for _ in range(rng.randint(2, 9)))


def classes(rng: random.Random) -> Row:
    words = text(rng)
    return {"text": words, "label": ("good", "bad")[words.count("a") > words.count("b")]}


def only_text(rng: random.Random) -> Row:
    return {"text": text(rng)}


def pair_of_texts(rng: random.Random) -> Row:
    return {"text_a": text(rng), "text_b": text(rng)}


def pair_of_classes(rng: random.Random) -> Row:
    first, second = text(rng), text(rng)
    return {"text_a": first, "text_b": second, "label": str(int(first[0] < second[0]))}


def query(rng: random.Random) -> Row:
    first = text(rng)
    return {"text_a": first, "text_b": first[::-1], "negatives": [text(rng) for _ in range(rng.randint(0, 3))]}


def document(rng: random.Random) -> Row:
    """Return two sentences, of which only the first one begins with a or b."""
    return {"text": f"{rng.choice('ab')} {text(rng)}\n{rng.choice('gh')} {text(rng)}\n"}


def soft(rng: random.Random) -> Row:
    row = classes(rng)
    margin = row["text"].count("b") - row["text"].count("a") + rng.random()
    return row | {"logits": [0.25 - margin, margin]}


def pair_of_soft(rng: random.Random) -> Row:
    row = pair_of_classes(rng)
    share = round(rng.random(), 3)
    return row | {"probabilities": [share, 1 - share]}


def number(rng: random.Random) -> Row:
    words = text(rng)
    return {"text": words, "label": 10.5 + 3 * words.count("a") - words.count("b")}


def pair_of_number(rng: random.Random) -> Row:
    first, second = text(rng), text(rng)
    return {"text_a": first, "text_b": second, "label": len(first) - 0.25 * len(second)}


def labels(rng: random.Random) -> Row:
    words = text(rng)
    return {"text": words, "label": [f"has_{letter}" for letter in "abc" if letter in words]}


def cell_of_labels(rng: random.Random) -> Row:
    row = labels(rng)
    return row | {"label": " ; ".join(row["label"])}


def tags(rng: random.Random) -> Row:
    tokens = text(rng).split()
    found = ["O" if token > "c" else f"B-{'XY'[token == 'a']}" for token in tokens]
    for place in range(1, len(found)):
        if found[place] == found[place - 1] == "B-X":
            found[place] = "I-X"
    return {"tokens": tokens, "tags": found}


def spans(rng: random.Random) -> Row:
    words = text(rng)
    found: dict[str, dict[str, list[list[int]]]] = {"X": {}, "Y": {}}
    for place, letter in enumerate(words):
        if letter in "abcde":
            found["XY"[letter > "c"]].setdefault(letter, []).append([place, place])
    return {"text": words, "spans": found}


@dataclass(frozen=True)
class Kind:
    """A kind of run: its overrides, and what makes a row of its data."""

    options: tuple[str, ...]
    row: Callable[[random.Random], Row]
    model: tuple[str, ...] = MODEL
    passes: int = 1
    """backward passes of a micro-batch"""

    @property
    def standing_still(self) -> tuple[str, ...]:
        """Rates at which no weight changes by more than 1e-30."""
        return (*STANDING_STILL, *(("head.transitions_lr=1e-30",) if "head=crf" in self.options else ()))

    def overrides(self, folder: Path, *, train_rows: int = TRAIN_ROWS, dev_rows: int = DEV_ROWS) -> tuple[str, ...]:
        """Write a training and a dev set to `folder` and return all overrides of the kind."""
        for name, rows, seed in (("train", train_rows, 0), ("dev", dev_rows, 1)):
            rng = random.Random(seed)
            write(folder / f"{name}.jsonl", [self.row(rng) for _ in range(rows)])
        fields = ", ".join(f"{key}: {key}" for key in self.row(random.Random(0)))
        return (
            *self.model, *PLAIN, "data=files", f"data.train={folder}/train.jsonl", f"data.dev={folder}/dev.jsonl",
            f"data.fields={{{fields}}}", *self.options,
        )  # fmt: skip


class OfDocuments(Kind):
    """A kind whose data is a corpus; each row is a document, and a block by itself."""

    def overrides(self, folder: Path, *, train_rows: int = TRAIN_ROWS, dev_rows: int = DEV_ROWS) -> tuple[str, ...]:
        folder.mkdir(exist_ok=True)
        for name, rows, seed in (("train", train_rows, 0), ("dev", dev_rows, 1)):
            rng = random.Random(seed)
            (folder / f"{name}.txt").write_text("\n".join(self.row(rng)["text"] for _ in range(rows)))
        files = (f"data.train={folder}/train.txt", f"data.dev={folder}/dev.txt", "data.break_mode=complete_doc")
        return (*self.model, *PLAIN, "data=corpus", *files, *self.options)


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as lines of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[Row]:
    """Return the rows of a file of lines of JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def transformers_model(folder: Path) -> tuple[str, ...]:
    """Write a small BERT of the transformers library, with dropout, and return the overrides that choose it."""
    transformers = pytest.importorskip("transformers")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(tokens), max_position_embeddings=64, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return "model=hf", f"model.pretrained={folder}", "data.max_len=32"


MEAN = ("model.pooling=mean",)
IN_WINDOWS = ("data.long=windows", "data.max_len=8", "data.stride=2")
"""Half of the rows have more than the six letters that fit."""
TASKS = {
    "classify": Kind((), classes),
    "match": Kind(("task=match",), pair_of_classes),
    "regress": Kind(("task=regress",), number),
    "regress of pairs": Kind(("task=regress", "loss.huber_delta=0.5"), pair_of_number),
    "multilabel": Kind(("task=multilabel", "loss.positive_weights=inverse_frequency"), labels),
    "multilabel of cells": Kind(("task=multilabel", "task.threshold=0.4", "data.label_separator=';'"), cell_of_labels),
    "tag": Kind(("task=tag",), tags),
    "tag with a CRF": Kind(("task=tag", "head=crf"), tags),
    "siamese": Kind(("task=siamese", *MEAN), pair_of_classes),
    "siamese with InfoNCE": Kind(("task=siamese", "loss=info_nce", *MEAN), pair_of_classes),
    "siamese of numbers": Kind(("task=siamese", "loss=cosent", "task.dims=[4]", *MEAN), pair_of_number),
    "siamese with contrastive loss": Kind(("task=siamese", "loss=contrastive", *MEAN), pair_of_classes),
    "retrieve": Kind(("task=retrieve", *MEAN), pair_of_classes),
    "classify in windows": Kind(IN_WINDOWS, classes),
    "multilabel in windows": Kind(("task=multilabel", *IN_WINDOWS), labels),
    "tag in windows": Kind(("task=tag", "head=crf", *IN_WINDOWS), tags),
    "soft": Kind(("task=soft", "loss=mse_logits", "data.labels=[bad, good]"), soft),
    "soft of pairs": Kind(("task=soft", "loss.temperature=2", "data.labels=['0', '1']"), pair_of_soft),
}  # fmt: skip
"""Every task, with the losses and heads that are its own."""
PRETRAINING = {
    "mlm": Kind(("task=mlm", "task.mask_fraction=0.4", "task.max_ngram=2"), only_text),
    "mlm of pairs": Kind(("task=mlm", "task.mask_fraction=0.4", "task.replace=0.3"), pair_of_texts),
    "mlm_pairs": Kind(("task=mlm_pairs", "task.mask_fraction=0.4", "task.label_weight=2"), pair_of_classes),
    "structbert": OfDocuments(
        ("task=structbert", "task.mask_fraction=0.4", "task.shuffle_fraction=0.5", "task.order_weight=2"), document
    ),
}
"""Tasks whose masks depend on the place of a row in its set."""
LOSSES = {
    "cross-entropy": Kind(("loss.label_smoothing=0.1", "loss.class_weights=inverse_frequency"), classes),
    "focal": Kind(("loss=focal",), classes),
    "bce": Kind(("loss=bce",), classes),
    "taylor": Kind(("loss=taylor",), classes),
    "ghm_c": Kind(("loss=ghm_c",), classes),
    "circle": Kind(("loss=circle", "loss.ce_weight=0.5"), classes),
}
METHODS = {
    "rdrop": Kind(("method=rdrop",), classes),
    "fgm": Kind(("method=fgm", "method.weight=0.5"), classes, passes=2),
    "freelb": Kind(("method=freelb",), classes, passes=3),
    "freelb in linf": Kind(("method=freelb", "method.norm=linf", "method.steps=2"), classes, passes=2),
}
TOGETHER = {
    "retrieve of queries": Kind(("task=retrieve", *MEAN), query),
    "retrieve of queries, listwise": Kind(("task=retrieve", "loss=listwise", "loss.scale=20", *MEAN), query),
    "rerank": Kind(("task=rerank", "loss.scale=20", *MEAN), query),
    "freelb, tags and a CRF": Kind(("method=freelb", "task=tag", "head=crf"), tags, passes=3),
    "rdrop and numbers": Kind(("method=rdrop", "task=regress"), number),
    "rdrop and InfoNCE": Kind(("method=rdrop", "task=siamese", "loss=info_nce"), pair_of_classes),
    "fgm and sides": Kind(("method=fgm", "task=siamese", "loss=contrastive"), pair_of_classes, passes=2),
    "rdrop in bf16": Kind(("method=rdrop", "precision=bf16"), classes),
    "fgm in bf16": Kind(("method=fgm", "precision=bf16"), classes, passes=2),
    "freelb in bf16": Kind(("method=freelb", "precision=bf16"), classes, passes=3),
    "freelb in fp16": Kind(
        ("method=freelb", "precision=fp16", "precision.init_scale=64", "precision.growth_interval=1"), classes, passes=3
    ),
    "rdrop and the order of sentences": OfDocuments(("method=rdrop", "task=structbert"), document),
    "rdrop of tags in windows": Kind(("method=rdrop", "task=tag", *IN_WINDOWS), tags),
    "LoRA": Kind(("adapter=lora", "adapter.rank=2"), classes),
    "LoRA in bf16": Kind(("adapter=lora", "adapter.dropout=0.1", "method=rdrop", "precision=bf16"), classes),
    "rdrop of a TextCNN": Kind(("method=rdrop",), classes, TEXTCNN),
    "fgm of a TextCNN": Kind(("method=fgm", "task=regress"), number, TEXTCNN, passes=2),
    "an LSTM with a CRF": Kind(("task=tag",), tags, LSTM_CRF),
    "freelb of a TextCNN": Kind(("method=freelb", "task=tag", "head=crf"), tags, TEXTCNN, passes=3),
}
KINDS = {**TASKS, **PRETRAINING, **LOSSES, **METHODS, **TOGETHER}


SPANS = Kind(("task=tag",), spans)
"""a tagger of texts, whose spans are given in characters"""


def few_first(kinds: Iterable[str], *few: str) -> list[Any]:
    """Return the parameters of a test of all kinds: `make test` tries a few, `make test-thorough` every one.

    The parameters are the values of a mapping, or else the names themselves.
    """
    kinds = kinds if isinstance(kinds, Mapping) else {name: name for name in kinds}
    assert set(few) <= kinds.keys()
    return [
        pytest.param(kind, id=name, marks=() if name in few else pytest.mark.thorough) for name, kind in kinds.items()
    ]
