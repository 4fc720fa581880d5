"""The keys of the methods of distillation (see `nlu.config.keys`), and the rules of teachers.

Validation calls the rules with the whole configuration before anything heavy is imported.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nlu.config.choices import choice_of
from nlu.config.errors import UserError
from nlu.config.keys import facts_of
from nlu.config.mixtures import is_mixture
from nlu.config.resolving import MISSING
from nlu.config.targets import TARGET
from nlu.config.types import (
    ConfigLike,
    Fraction,
    InputFile,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TrainedRun,
)

LEARNED = tuple(f"nlu.metrics.kinds.{name}" for name in ("ClassKind", "SpanKind", "LabelSetKind", "NumberKind"))
"""kinds of records of the tasks whose predictions can be learned"""


@dataclass(kw_only=True)
class Distil:
    """The task's loss, and the divergence of the predictions from those of teachers."""

    rules_of_config: ClassVar[str] = "nlu.distillation.keys.teacher_problems"
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


def teacher_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    """Yield each broken rule of `method.teacher` and `method.logits`, as key, value, rule and remedy."""
    method, kind = config["method"], task.get("kind")
    is_other = isinstance(kind, str) and kind.startswith("nlu.") and kind not in LEARNED
    if (is_other or _reads(config) != "logits") and method.get("prediction") != 0:
        name = choice_of("task", config["task"][TARGET])
        yield (
            f"task is {name}, but method={choice_of('method', method[TARGET])} learns predictions of classes, tags, "
            "label sets and numbers, which are logits; choose another task or loss, or set method=plain"
        )
    if is_mixture(config):
        yield (
            "data is mixture, but method.teacher teaches one task; distil each set in a separate run, or leave out "
            "method="
        )
    runs, files = _listed(method.get("teacher")), _listed(method.get("logits"))
    if not runs:
        yield "method.teacher is [], which names no run; name a trained run, or set method=plain"
    for run in runs:
        # The folder of RUN/best-2 does not exist: it is short for RUN/checkpoints/best-2.
        path = Path(with_head(run)[0]).expanduser()
        is_there = path.is_dir() or (path.name == "last" or path.name.startswith("best")) and path.parent.is_dir()
        if "://" not in run and run != MISSING and not is_there:
            yield f"method.teacher is {run!r}, which does not exist here; set it to the folder of a trained run"
    for file in files:
        if "://" not in file and not Path(file).expanduser().is_file():
            yield (
                f"method.logits is {file!r}, which does not exist; write it with python -m nlu.predict logits=true, "
                "or set method.logits=null"
            )


def with_head(reference: str) -> tuple[str, str | None]:
    """Split RUN#TASK, the head of a task of a run with several, into both; the second is None without a #."""
    run, mark, head = reference.rpartition("#")
    # A folder may have a # in its name.
    return (run, head) if mark and not Path(reference).expanduser().exists() else (reference, None)


def _reads(config: ConfigLike) -> str:
    """Return what the loss reads: logits, or cosines of texts."""
    # A loss that cannot be read is another problem, which is reported anyway.
    with suppress(UserError, KeyError, TypeError):
        return str(facts_of(config["loss"][TARGET]).get("reads", "logits"))
    return "logits"


def _listed(given: object) -> Sequence[str]:
    return [] if given is None else [given] if isinstance(given, str) else list(given)  # type: ignore[call-overload]
