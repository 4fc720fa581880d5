"""compile=true: outputs of a trained run by torch.compile, over batches of few shapes that are chosen before."""

import logging
from collections.abc import Iterable

import torch

from nlu.config.types import ConfigLike
from nlu.data.examples import Examples
from nlu.data.shapes import SHAPES, Shapes, covering
from nlu.inference.int8.precision import Int8
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task
from nlu.training.compiled import Compiled, eager_because, require_compilable
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks
from nlu.training.warm_up import known_batches

log = logging.getLogger(__name__)

PLANNED = SHAPES * 2 // 3
"""the most shapes of batches that are known; the others hold whatever else comes"""


def compiled_for(
    model: TaskModel, task: Task, data: ConfigLike, precision: NumberFormat, device: torch.device
) -> Compiled | None:
    """Return what computes the outputs of a model on its device; None, with a warning, where they are computed eagerly.

    `data`: the configuration of its data. Raises UserError on a CPU, with the keys of a run, `trainer.compile` and
    `trainer.device`.
    """
    require_compilable(device)
    why = eager_because(model, task, data)
    if isinstance(precision, Int8):
        why = f"precision is {precision.name}"
    if why is None:
        return Compiled(device)
    log.warning("compile is true, but outputs are computed eagerly: %s", why)
    return None


def choose_shapes(compiled: Compiled, parts: Iterable[Examples], batch_size: int, longest: int, ranks: Ranks) -> None:
    """Choose at most SHAPES shapes: those of the batches of these sets, and others that hold all other batches.

    `longest`: the most tokens of a sequence.
    """
    known, sides = [], 1
    for part in parts:
        for each in known_batches(part, batch_size, ranks):
            known.append(each.shape)
            sides = max(sides, each.shape.sequences // each.rows)
    chosen = Shapes(known, PLANNED)
    others = covering(batch_size * sides, longest, SHAPES - len(chosen.shapes))
    chosen.shapes = sorted({*chosen.shapes, *others})
    compiled.scored = chosen
