"""Profile some steps of a run without its folder: time by phase, module and operator, memory, what to change first."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch.utils.flop_counter import FlopCounterMode

from nlu.config.inference import Profile
from nlu.data.sampling import sampled
from nlu.diagnosis.bottlenecks import Measured, findings
from nlu.diagnosis.limits import limit_gflops
from nlu.diagnosis.profiled import Profiled, draw_memory, print_profile
from nlu.diagnosis.profiled_prediction import profile_prediction
from nlu.diagnosis.steps import built, computed_tokens, take_step
from nlu.diagnosis.traced import Traced, trace
from nlu.diagnosis.usable import device_name, with_machine
from nlu.display.progress import Progress
from nlu.inference.locate import Located
from nlu.optim.update import set_learning_rate
from nlu.runs import logs
from nlu.storage.files import write_json
from nlu.storage.outputs import output_folder
from nlu.training.auto import with_precision
from nlu.training.evaluation import score
from nlu.training.experiment import choose_kernels
from nlu.training.memory import peak_mb
from nlu.training.meter import size_of_step
from nlu.training.parts import Training
from nlu.training.phases import HostPhases
from nlu.training.ranks import Ranks, process_group
from nlu.training.result import Step
from nlu.training.saving import trained_parts

log = logging.getLogger(__name__)

MOST_TRACED = 3
"""steps under the profiler, whose trace has a line for each operator"""
COUNTED_STEPS = 100_000
"""evaluations and checkpoints of a longer run are counted up to here"""
EVALUATED_BATCHES = 8
TRACE, MEMORY, RESULT = "trace.json", "memory.png", "profile.json"


def run_profile(config: Profile, located: Located | None) -> int:
    """Profile the training of a configuration, or the prediction of rows with a run; returns the exit status."""
    logs.set_up(None, 0)
    joined = process_group(config.trainer.device)
    with joined as ranks, Progress() as progress:
        choose_kernels(ranks.device)
        config = with_precision(config, ranks)
        work = profile_run if located is None else partial(profile_prediction, located)
        written: list[str] = []
        if config.out is None:
            profiled, _ = work(config, ranks, progress, None)
        else:
            with output_folder(config.out, "out", last=RESULT) as folder:
                profiled, traced = work(config, ranks, progress, folder / TRACE)
                draw_memory(folder / MEMORY, traced.memory)
                write_json(folder / RESULT, profiled.to_json())
                written = [f"{config.out.rstrip('/')}/{path.name}" for path in sorted(folder.iterdir())]
    print_profile(profiled, written)
    return 0


def profile_run(config: Profile, ranks: Ranks, progress: Progress, path: Path | None) -> tuple[Profiled, Traced]:
    """Measure the steps of a run; `path` is the Chrome trace to write, or None."""
    with built(config, ranks, progress) as run:
        with progress.task("profiling", config.steps) as bar:
            profiled = _measured_steps(run, config, lambda: bar.advance(1))
            _add_costs_between_steps(run, profiled)
            first = config.warmup + config.steps
            profiled.gflops = _gflops(run, first, profiled)
            profiled.limit_gflops = limit_gflops(run.stepper.precision, ranks.device)
            numbers = range(first + 1, first + 1 + min(config.steps, MOST_TRACED))
            following = iter(numbers)
            traced = trace(
                run.stepper.model,
                ranks.device,
                lambda phases: _traced_step(run, next(following), phases),
                len(numbers),
                path,
            )
    # Steps have different lengths, so times are those of a step with as many tokens as the measured ones.
    tokens = sum(computed_tokens(run, number) for number in numbers) / len(numbers)
    traced.scale(profiled.measured.computed_tokens / max(1, tokens))
    profiled.modules, profiled.operators = traced.modules, traced.operators
    profiled.measured = replace(
        profiled.measured, operators=traced.calls, computing_s=traced.computing_s, traced_s=traced.passes_s
    )
    profiled.findings = findings(profiled.measured)
    return profiled, traced


def _step(run: Training, number: int) -> Step:
    """Do the step with this number, counted from 0, as the training loop does."""
    total = run.due.total_steps
    # A short run may have fewer steps than are profiled.
    set_learning_rate(run.stepper.optimizer, run.scheduler.factor(min(number + 1, total), total, run.clock))
    return take_step(run, number)


def _traced_step(run: Training, number: int, phases: HostPhases) -> None:
    run.stepper.phases = run.stepper.passes.phases = phases
    run.stepper.read(_step(run, number))


def _measured_steps(run: Training, config: Profile, advance: Callable[[], None]) -> Profiled:
    stepper = run.stepper
    stepper.model.train()
    for number in range(config.warmup):
        stepper.read(_step(run, number))
    stepper.phases.catch_up()
    stepper.phases.start()
    peak_mb(stepper.device)
    pending: deque[Step] = deque()
    began_s = time.perf_counter()
    for number in range(config.warmup, config.warmup + config.steps):
        pending.append(_step(run, number))
        # As in the training loop, an accelerator runs one step ahead of the host.
        while len(pending) > stepper.is_asynchronous:
            stepper.read(pending.popleft())
        advance()
    while pending:
        stepper.read(pending.popleft())
    stepper.phases.catch_up()
    elapsed_s = time.perf_counter() - began_s
    seconds = {phase: value / config.steps for phase, value in stepper.phases.take().items()}
    numbers = range(config.warmup, config.warmup + config.steps)
    examples, real = (sum(values) for values in zip(*(size_of_step(run, each) for each in numbers), strict=True))
    computed = sum(computed_tokens(run, each) for each in numbers)
    measured = Measured(seconds, real_tokens=real / config.steps, computed_tokens=computed / config.steps)
    return Profiled(
        "a step of training",
        config.steps,
        device_name(stepper.device),
        with_machine(measured, stepper.device),
        examples / elapsed_s,
        real / elapsed_s,
        computed / elapsed_s,
    )


def _add_costs_between_steps(run: Training, profiled: Profiled) -> None:
    """Add what evaluations and checkpoints cost, by one of each, and how many the run has."""
    total = run.due.total_steps
    counted = range(1, min(total, COUNTED_STEPS) + 1)
    longer = total / len(counted)
    profiled.total_steps = total
    profiled.evaluations = longer * sum(map(run.due.evaluates, counted))
    profiled.checkpoints = longer * sum(map(run.due.saves, counted)) if run.trainer.save else 0.0
    profiled.evaluation_s = 0.0
    for part in run.eval_sets.values():
        evaluator = run.evaluator(part.member)
        sample = sampled(part, EVALUATED_BATCHES * evaluator.batch_size, run.seed)
        began_s = time.perf_counter()
        score(evaluator, sample, {}, lambda rows: None).spool.close()
        profiled.evaluation_s += (time.perf_counter() - began_s) * len(part) / max(1, len(sample))
    began_s = time.perf_counter()
    if run.trainer.save:
        run.checkpoints.save_last(trained_parts(run.stepper).gather(), run.state, run.order_key)
    profiled.checkpoint_s = time.perf_counter() - began_s
    profiled.measured = replace(
        profiled.measured,
        evaluation_s=profiled.evaluations * profiled.evaluation_s / total,
        saving_s=profiled.checkpoints * profiled.checkpoint_s / total,
    )


def _gflops(run: Training, number: int, profiled: Profiled) -> float:
    """Return the rate of a step in 10^9 operations per second, by the operations of one step for each token."""
    with FlopCounterMode(display=False) as counter:
        run.stepper.read(_step(run, number))
    return counter.get_total_flops() / max(1, computed_tokens(run, number)) * profiled.computed_tokens_per_s / 1e9
