"""A run so small that it is over in seconds, for benchmarks of the work around training, for each kind of task."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = [f"w{number}" for number in range(60)]
HALVES = 2
"""labels; each has its own half of the vocabulary, with some words in common"""


def words_of(rng: random.Random, label: int) -> list[str]:
    """Return some words of a label's half of the vocabulary."""
    return [rng.choice(WORDS[label * 25 : label * 25 + 35]) for _ in range(rng.randint(3, 20))]


def classified(rng: random.Random) -> dict[str, Any]:
    label = rng.randrange(HALVES)
    return {"text": " ".join(words_of(rng, label)), "label": str(label)}


def paired(rng: random.Random) -> dict[str, Any]:
    first, second = rng.randrange(HALVES), rng.randrange(HALVES)
    texts = {"text_a": " ".join(words_of(rng, first)), "text_b": " ".join(words_of(rng, second))}
    return {**texts, "label": str(int(first == second))}


def measured(rng: random.Random) -> dict[str, Any]:
    words = words_of(rng, rng.randrange(HALVES))
    return {"text": " ".join(words), "label": sum(int(word[1:]) for word in words) / len(words)}


def labelled(rng: random.Random) -> dict[str, Any]:
    labels = [label for label in range(HALVES) if rng.random() < 0.6]
    words = [word for label in labels for word in words_of(rng, label)] or ["w59"]
    return {"text": " ".join(words), "label": [f"half-{label}" for label in labels]}


def tagged(rng: random.Random) -> dict[str, Any]:
    words, tags = words_of(rng, rng.randrange(HALVES)), []
    for word in words:
        # The words of some numbers are names; one after another make one name.
        is_name = int(word[1:]) % 3 == 0
        tags.append("O" if not is_name else "I-name" if tags and tags[-1] != "O" else "B-name")
    return {"tokens": words, "tags": tags}


KINDS: dict[str, tuple[Callable[[random.Random], dict[str, Any]], tuple[str, ...]]] = {
    "classify": (classified, ("task=classify",)),
    "match": (paired, ("task=match",)),
    "siamese": (paired, ("task=siamese", "model.pooling=mean")),
    "retrieve": (paired, ("task=retrieve", "model.pooling=mean")),
    "multilabel": (labelled, ("task=multilabel",)),
    "regress": (measured, ("task=regress",)),
    "tag": (tagged, ("task=tag",)),
    "mlm": (classified, ("task=mlm",)),
    "structbert": (classified, ("task=structbert",)),
    "mlm_pairs": (paired, ("task=mlm_pairs",)),
}
"""what makes a row, whose targets can be learned from its words, and the overrides of the task"""
CORPORA = {"structbert"}
"""the kinds whose rows are sentences of a corpus"""
SENTENCES = 8
"""of a document"""


def write_data(folder: Path, train_rows: int = 160, dev_rows: int = 41, kind: str = "classify") -> None:
    """Write small sets for a kind of task."""
    rng, row = random.Random(0), KINDS[kind][0]
    for name, rows in (("train", train_rows), ("dev", dev_rows)):
        found = [row(rng) for _ in range(rows)]
        if kind in CORPORA:
            lines = [f"{one['text']}\n" + "\n" * (place % SENTENCES == 0) for place, one in enumerate(found, 1)]
        else:
            lines = [json.dumps(one) + "\n" for one in found]
        (folder / f"{name}.{suffix_of(kind)}").write_text("".join(lines))


def suffix_of(kind: str) -> str:
    return "txt" if kind in CORPORA else "jsonl"


def overrides(data: Path, kind: str = "classify") -> list[str]:
    """Return the overrides that train a tiny BERT on what `write_data` wrote there."""
    return [
        "model=bert_tiny", "model.hidden_size=24", "model.heads=2", "model.layers=2", "model.intermediate_size=48",
        f"data={'corpus' if kind in CORPORA else 'files'}", f"data.train={data}/train.{suffix_of(kind)}",
        f"data.dev={data}/dev.{suffix_of(kind)}", *KINDS[kind][1], "trainer.batch_size=8", "trainer.device=cpu",
    ]  # fmt: skip
