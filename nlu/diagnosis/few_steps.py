"""Some steps of a run without its folder, for commands that measure them."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nlu.config.choices import target_of
from nlu.config.schema import Run
from nlu.config.targets import TARGET
from nlu.display.progress_bars import Progress
from nlu.training.build import build_run
from nlu.training.compiled import require_compilable
from nlu.training.meter import size_of_step
from nlu.training.parts import Training
from nlu.training.passes import Step
from nlu.training.ranks import Ranks
from nlu.training.warm_up import warm_up


@contextmanager
def built(config: Run, ranks: Ranks, progress: Progress) -> Iterator[Training]:
    """Build the run of a configuration, of several the first one, with its initial weights in a temporary folder, and
    compile it if it asks for that. Raises UserError where that is refused."""
    if config.trainer.compile:
        require_compilable(ranks.device)
    single = config.repeat(seed=config.seed, fold=config.folds_to_run[0])
    # A tracker would create another run.
    single.tracker = {TARGET: target_of("tracker", "none")}
    with TemporaryDirectory(prefix="nlu-steps-") as scratch:
        run = build_run(single, Path(scratch), ranks, progress, None)
        run.stepper.model.train()
        warm_up(run)
        yield run


def take_step(run: Training, number: int) -> Step:
    """Do the step with this number, counted from 0, as the training loop does, at the learning rates of the optimizer.

    The number may be beyond the end of the run.
    """
    run.stepper.phases.begin("data")
    run.state.step = number
    part, micro_batches, epoch = run.rows(number + 1)
    return run.stepper.step(part, micro_batches, number + 1, False, epoch)


@dataclass(frozen=True)
class Measured:
    """The time of some steps, and what was in them."""

    elapsed_s: float
    examples: int
    tokens: int


def measured(run: Training, numbers: range) -> Measured:
    """Do the steps with these numbers, counted from 0, and measure them together."""
    pending: deque[Step] = deque()
    began_s = time.perf_counter()
    for number in numbers:
        pending.append(take_step(run, number))
        # As in the training loop, an accelerator runs one step ahead of the host.
        while len(pending) > run.stepper.is_asynchronous:
            run.stepper.read(pending.popleft())
    while pending:
        run.stepper.read(pending.popleft())
    run.stepper.phases.catch_up()
    elapsed_s = time.perf_counter() - began_s
    examples, tokens = (sum(values) for values in zip(*(size_of_step(run, each) for each in numbers), strict=True))
    return Measured(elapsed_s, examples, tokens)


def computed_tokens(run: Training, number: int) -> int:
    """Return the tokens that the encoder computes in the step with this number, counted from 0, with padding.

    As one process would pad the micro-batch; with several ranks, each pads to the longest example of its own share.
    """
    lengths_N = run.train_set(number).lengths_N
    lengths = [lengths_N[examples_B] for examples_B in run.global_batches(number)]
    pads = run.stepper.model.backbone.pads
    return int(sum(part.max() * len(part) if pads else part.sum() for part in lengths))
