"""The keys of the methods of distillation, and what rules between groups know of them; see `nlu.config.keys`."""

from dataclasses import dataclass
from typing import ClassVar

from nlu.config.types import (
    Fraction,
    InputFile,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TrainedRun,
)


@dataclass(kw_only=True)
class Distil:
    """The task's loss, and the divergence of the predictions from those of teachers."""

    rules_of_config: ClassVar[str] = "nlu.distillation.rules.teacher_problems"
    reads_all_rows: ClassVar[bool] = True
    """whether all training rows are read before the first step, so that they cannot be a stream"""
    teacher: TrainedRun | list[TrainedRun]
    """A trained run, RUN/best-2 or RUN/last, RUN#TASK of one with several tasks, or several, [RUN1, RUN2], whose
    predictions are averaged."""
    logits: InputFile | list[InputFile] | None = None
    """The file that nlu.predict logits=true wrote from the training rows, or one for each teacher; null = computed
    before the first step."""
    alpha: Fraction = 0.5
    """Weight of the teachers, 1 - alpha that of the task's loss; 0 = off; 1 = only the teachers."""
    temperature: PositiveFloat = 2.0
    """Divisor of logits, which shows more of the small probabilities; 1 = off; numbers have none."""


@dataclass(kw_only=True)
class OfLayers(Distil):
    """The keys of methods that compare the layers of a student with those of one teacher."""

    teacher: TrainedRun
    """A trained run with the same tokenizer, RUN/best-2 or RUN/last."""
    logits: InputFile | None = None
    """The file that nlu.predict logits=true wrote from the training rows; null = computed before the first step."""
    prediction: NonNegativeFloat = 1.0
    """Weight of both losses of predictions together; 0 = layers only."""


@dataclass(kw_only=True)
class TinyBert(OfLayers):
    """The loss of method=distil, and three terms that compare the layers of student and teacher."""

    embeddings: NonNegativeFloat = 1.0
    """Weight of the difference of embeddings; 0 = off."""
    hidden: NonNegativeFloat = 1.0
    """Weight of the difference of hidden states; 0 = off."""
    attention: NonNegativeFloat = 1.0
    """Weight of the difference of attention scores; 0 = off."""
    layers: list[NonNegativeInt] | None = None
    """The teacher's layer for each layer of the model, such as [0, 3], from 0; null = every k-th one, the last one for
    the last."""


@dataclass(kw_only=True)
class MiniLm(OfLayers):
    """The loss of method=distil, and the divergence of the relations of tokens in one layer."""

    relations: PositiveFloat = 1.0
    """Weight of each of the terms of queries, keys and values."""
    relation_heads: PositiveInt | None = None
    """Parts of the vectors of a token, a number that divides both widths; null = the teacher's attention heads."""
    layer: int = -1
    """Layer of the teacher, from 0, or from the last, -1; the student's is its last."""
