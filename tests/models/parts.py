"""What tests of models and heads are built from."""

from dataclasses import dataclass, field
from typing import Any

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
