"""Before the first step of a compiled run: choose the shapes of its batches, and compute each twice."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.order import evaluation_batches
from nlu.data.shapes import Shape, Shapes, planned_together
from nlu.data.targets import SCORING
from nlu.data.targets.base import Key
from nlu.runs import summary
from nlu.tasks.task import Outputs
from nlu.training.compiled import Compiled
from nlu.training.evaluation import scoring
from nlu.training.memory import divided, more_pieces, release, tried
from nlu.training.parts import Training
from nlu.training.passes import Share
from nlu.training.ranks import Ranks

log = logging.getLogger(__name__)

KNOWN = 10_000
"""batches, evenly over the run, whose dimensions are looked at; it takes up to a millisecond each"""
TIMES = 2
"""passes over a shape: CUDA graphs are recorded by the second one"""
BEFORE = -1
"""the number of a step that stands for no step of the run"""


class Known:
    """A batch that will come, made again when it is needed."""

    def __init__(self, part: Examples, examples_B: np.ndarray, key: Key, times: float):
        """`times`: how often it stands for a batch of the run."""
        self.part, self.times, self._examples_B, self._key = part, times, examples_B, key
        self.rows = len(examples_B)
        self.shape = Shape.of(self.batch())

    def batch(self) -> Batch:
        """Return the batch, on the host."""
        return collate(self.part, self._examples_B, self._key)


def warm_up(run: Training) -> None:
    """Choose the shapes of a compiled run, compile and record them all, and change nothing else; unless it was done.

    If memory runs out on a rank, the micro-batches of all ranks are divided into more pieces. Every rank must call it.
    """
    stepper, began_s = run.stepper, time.perf_counter()
    compiled, ranks = stepper.compiled, stepper.ranks
    if compiled is None or compiled.pieces == stepper.pieces:
        return
    while True:
        compiled.pieces = stepper.pieces
        trained, scored = list(_trained(run)), list(_scored(run))
        compiled.trained, compiled.scored = planned_together(_counted(trained), _counted(scored))
        fits = _computed(run, compiled, trained, scored)
        if ranks.world_size > 1:
            fits = not ranks.sum_on_host([float(not fits)])[0]
        if fits:
            break
        release(ranks.device)
        _, micro_batches, _ = run.rows(1)
        stepper.pieces = more_pieces(micro_batches, stepper.pieces, ranks, run.task, 1)
    log.info(
        "trainer.compile: %d shapes of training and %d of scoring in %.0f s",
        len(compiled.trained.shapes),
        len(compiled.scored.shapes),
        time.perf_counter() - began_s,
    )


def _computed(run: Training, compiled: Compiled, trained: list[Known], scored: list[Known]) -> bool:
    """Compute each shape, for each set of a mixture, which has a graph of its own; returns whether memory sufficed."""
    passes, fits = run.stepper.passes, True
    nothing = dict.fromkeys(passes.weights, 0.0)

    def train(batch: Batch) -> Tensor:
        return passes.backward(Share(batch, is_own=True), nothing, BEFORE, 0)

    @torch.inference_mode()
    def score(batch: Batch) -> Outputs:
        evaluator = run.evaluator(batch.member)
        with scoring(evaluator.model):
            return evaluator.outputs(batch)

    to_train, to_score = _one_of_each(trained, compiled.trained), _one_of_each(scored, compiled.scored)
    with run.progress.task("trainer.compile", len(to_train) + len(to_score)) as bar, summary.unheard():
        passes.buffers.begin(BEFORE)
        for known in to_train:
            fits = fits and _twice(train, known)
            bar.advance()
        passes.forget_gradients()
        passes.undo(BEFORE)
        for known in to_score:
            # A batch that does not fit is halved when its set is scored.
            _twice(score, known)
            bar.advance()
    return fits


def _twice(compute: Callable[[Batch], object], known: Known) -> bool:
    """Compute a batch TIMES times; returns whether memory sufficed."""
    return all(tried(partial(compute, known.batch())) is not None for _ in range(TIMES))


def _one_of_each(known: list[Known], shapes: Shapes) -> list[Known]:
    """Return a batch for each shape and each set of a mixture. The largest first: what memory does not hold shows at
    once, and others use what it has taken."""
    found = {(shapes.of(each.shape), each.part.member): each for each in known}
    return [found[key] for key in sorted(found, reverse=True)]


def _counted(known: list[Known]) -> Mapping[Shape, float]:
    """Return how often batches of each dimensions come."""
    found: dict[Shape, float] = defaultdict(float)
    for each in known:
        found[each.shape] += each.times
    return found


def _trained(run: Training) -> Iterator[Known]:
    """Yield micro-batches of this rank, or their pieces, evenly over the run."""
    total = run.due.total_steps
    numbers = np.unique(np.linspace(1, total, KNOWN).astype(int)).tolist()
    for number in numbers:
        part, micro_batches, epoch = run.rows(number)
        for examples_B in divided(micro_batches, run.stepper.pieces):
            if len(examples_B):
                yield Known(part, examples_B, (run.seed, epoch), total / len(numbers))


def known_batches(part: Examples, batch_size: int, ranks: Ranks, times: float = 1) -> Iterator[Known]:
    """Yield batches of this rank, evenly over a set that is scored so many times."""
    batches = evaluation_batches(part.lengths_N, batch_size=batch_size, rank=ranks.rank, world_size=ranks.world_size)
    places = np.unique(np.linspace(0, max(0, len(batches) - 1), KNOWN).astype(int))[: len(batches)]
    yield from (Known(part, batches[each], SCORING, times * len(batches) / len(places)) for each in places.tolist())


def _scored(run: Training) -> Iterator[Known]:
    """Yield batches of this rank, evenly over the sets that are scored: while training, and at the end of the run."""
    ranks, total = run.stepper.ranks, run.due.total_steps
    evaluations = sum(run.due.evaluates(number) for number in range(1, total + 1))
    at_the_end = [run.store.of_role("dev")[name] for name in run.sampled_rows]
    at_the_end += run.store.of_role("test").values()
    for part, times in [*((part, evaluations) for part in run.eval_sets.values()), *((part, 1) for part in at_the_end)]:
        yield from known_batches(part, run.trainer.rows_to_score, ranks, times)
