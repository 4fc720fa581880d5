"""What tests of models and heads are built from. A new encoder is an entry of ENCODERS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.lstm import Lstm
from nlu.models.encoders.modern import ModernBert
from nlu.models.encoders.static import Static
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.formats.pretrained import open_pretrained
from nlu.models.heads.linear import LinearHead
from nlu.models.task_model import TaskModel

VOCAB_SIZE = 50


def bert(**changes: Any) -> Bert:
    sizes = {"hidden_size": 24, "layers": 2, "heads": 4, "intermediate_size": 40, "max_positions": 64}
    return Bert(VOCAB_SIZE, None, pretrained=None, **{**sizes, **changes})


def modern(**changes: Any) -> ModernBert:
    sizes = {"hidden_size": 24, "layers": 4, "heads": 4, "intermediate_size": 20, "max_positions": 256}
    return ModernBert(VOCAB_SIZE, None, pretrained=None, **{**sizes, "local_attention": 8, **changes})


def hugging_face(folder: Path, kind: str = "Bert", **options: Any) -> HuggingFace:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCAB_SIZE, max_position_embeddings=64, **sizes)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return HuggingFace(VOCAB_SIZE, open_pretrained(str(folder)), pretrained=str(folder), **options)


ENCODERS: dict[str, Callable[[Path], Any]] = {
    "bert": lambda folder: bert(),
    "bert with narrow embeddings": lambda folder: bert(embedding_size=16, pooling="mean"),
    "bert with repeated layers": lambda folder: bert(layer_groups=1, segment_types=1),
    "bert with a pooler": lambda folder: bert(pooling="pooler"),
    "bert with a maximum": lambda folder: bert(pooling="max"),
    "bert with attention over tokens": lambda folder: bert(pooling="attention"),
    "bert with joined layers": lambda folder: bert(pooling="layers", pooled_layers=[-1, 0]),
    "modernbert": lambda folder: modern(),
    "modernbert with a mean": lambda folder: modern(pooling="mean", layers=3),
    "lstm": lambda folder: Lstm(VOCAB_SIZE, None, pretrained=None, embedding_size=8, hidden_size=12, layers=2),
    "static": lambda folder: Static(VOCAB_SIZE, None, pretrained=None, embedding_size=8),
    "textcnn": lambda folder: TextCnn(
        VOCAB_SIZE, None, pretrained=None, embedding_size=8, hidden_size=12, layers=3, kernel_sizes=[3, 5]
    ),
    "hf bert": lambda folder: hugging_face(folder, pooling="first"),
    "hf roberta with a mean": lambda folder: hugging_face(folder, "Roberta", pooling="mean"),
    "hf deberta with attention": lambda folder: hugging_face(folder, "DebertaV2", pooling="attention"),
}
"""Every encoder by name, with small random weights; each is given a folder of the test's own."""


@dataclass(frozen=True)
class Target:
    """What a head knows of its target."""

    names: list[str] = field(default_factory=lambda: ["a", "b"])
    kind: str = "classes"

    @property
    def num_outputs(self) -> int:
        return len(self.names) or 1


def labels(count: int, layout: str = "single") -> Target:
    """Return a target of so many classes, or of so many tags where the layout is one of units."""
    return Target([f"l{number}" for number in range(count)], "tags" if layout == "units" else "classes")


def task_model(backbone: Any, layout: str, count: int) -> TaskModel:
    """Return the encoder with a linear head for so many classes or tags."""
    head: Any = LinearHead(backbone.width_of(layout), labels(count, layout))
    return TaskModel(backbone, head, layout)


class Watch(TorchDispatchMode):
    """Writes down in which deterministic mode operators run, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen.append((str(func), torch.get_deterministic_debug_mode()))
        return func(*args, **(kwargs or {}))

    def modes_of(self, operator: str) -> set[int]:
        """Return the modes in which operators ran whose name has this in it: 0 off, 1 warns, 2 strict."""
        return {mode for name, mode in self.seen if operator in name}
