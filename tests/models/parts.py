"""What tests of models and heads are built from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nlu.models.heads.linear import LinearHead
from nlu.models.task_model import TaskModel


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
    return TaskModel(backbone, LinearHead(backbone.width_of(layout), labels(count, layout)), layout)


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
