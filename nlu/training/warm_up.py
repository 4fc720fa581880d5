"""Before the first step of a compiled run: choose the shapes of its batches, and compute each once."""

import logging
import time
from collections.abc import Iterator

import numpy as np
import torch

from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.order import evaluation_batches
from nlu.data.shapes import SHAPES, Shape, Shapes
from nlu.data.targets import SCORING
from nlu.data.targets.base import Key
from nlu.runs import summary
from nlu.training.parts import Training
from nlu.training.passes import Share

log = logging.getLogger(__name__)

KNOWN = 2000
"""batches, evenly over the run, whose dimensions are looked at"""
SCORED = SHAPES // 3
"""shapes of scoring; the others are those of training"""
TIMES = 2
"""passes over a shape: CUDA graphs are recorded by the second one"""
BEFORE = -1
"""the number of a step that stands for no step of the run"""


def warm_up(run: Training) -> None:
    """Choose the shapes of a compiled run, compile and record them all, and change nothing else."""
    if (compiled := run.stepper.compiled) is None:
        return
    began_s = time.perf_counter()
    trained, scored = list(_trained(run)), list(_scored(run))
    compiled.trained = Shapes([each.shape for each in trained], SHAPES - SCORED)
    compiled.scored = Shapes([each.shape for each in scored], SCORED)
    # The largest first: what memory does not hold shows at once, and others use what it has taken.
    to_train = sorted({compiled.trained.of(each.shape): each for each in trained}.items(), reverse=True)
    to_score = sorted({compiled.scored.of(each.shape): each for each in scored}.items(), reverse=True)
    passes, model = run.stepper.passes, run.stepper.model
    with run.progress.task("trainer.compile", len(to_train) + len(to_score)) as bar, summary.unheard():
        passes.buffers.begin(BEFORE)
        for _, known in to_train:
            for _ in range(TIMES):
                passes.backward(Share(known.batch(), is_own=True), dict.fromkeys(passes.weights, 0.0), BEFORE, 0)
            bar.advance()
        passes.forget_gradients()
        passes.undo(BEFORE)
        model.eval()
        for _, known in to_score:
            evaluator = run.evaluator(known.part.member)
            with torch.inference_mode():
                for _ in range(TIMES):
                    evaluator.outputs(known.batch())
            bar.advance()
        model.train()
    log.info(
        "trainer.compile: %d shapes of training and %d of scoring in %.0f s",
        len(to_train),
        len(to_score),
        time.perf_counter() - began_s,
    )


class Known:
    """A batch that will come, made again when it is needed."""

    def __init__(self, part: Examples, examples_B: np.ndarray, key: Key):
        self.part, self._examples_B, self._key = part, examples_B, key
        self.shape = Shape.of(self.batch())

    def batch(self) -> Batch:
        """Return the batch, on the host."""
        return collate(self.part, self._examples_B, self._key)


def _trained(run: Training) -> Iterator[Known]:
    """Yield micro-batches of this rank, evenly over the run."""
    for number in np.unique(np.linspace(1, run.due.total_steps, KNOWN).astype(int)).tolist():
        part, micro_batches, epoch = run.rows(number)
        yield from (Known(part, each_B, (run.seed, epoch)) for each_B in micro_batches if len(each_B))


def _scored(run: Training) -> Iterator[Known]:
    """Yield batches of this rank, evenly over the sets that are scored while training."""
    ranks = run.stepper.ranks
    for part in run.eval_sets.values():
        batches = evaluation_batches(
            part.lengths_N, batch_size=run.trainer.rows_to_score, rank=ranks.rank, world_size=ranks.world_size
        )
        places = np.unique(np.linspace(0, max(0, len(batches) - 1), KNOWN).astype(int))
        yield from (Known(part, batches[place], SCORING) for place in places[: len(batches)])
