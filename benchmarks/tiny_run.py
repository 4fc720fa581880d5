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
}
"""what makes a row, whose targets can be learned from its words, and the overrides of the task"""


def write_data(folder: Path, train_rows: int = 160, dev_rows: int = 41, kind: str = "classify") -> None:
    """Write small sets for a kind of task."""
    rng, row = random.Random(0), KINDS[kind][0]
    for name, rows in (("train", train_rows), ("dev", dev_rows)):
        lines = [json.dumps(row(rng)) + "\n" for _ in range(rows)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def overrides(data: Path, kind: str = "classify") -> list[str]:
    """Return the overrides that train a tiny BERT on what `write_data` wrote there."""
    return [
        "model=bert_tiny", "model.hidden_size=24", "model.heads=2", "model.layers=2", "model.intermediate_size=48",
        "data=files", f"data.train={data}/train.jsonl", f"data.dev={data}/dev.jsonl", *KINDS[kind][1],
        "trainer.batch_size=8", "trainer.device=cpu",
    ]  # fmt: skip
