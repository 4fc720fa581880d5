"""Profile some steps of a run without its folder: time by phase, torch's tables, what to change first."""

from functools import partial
from itertools import count
from pathlib import Path

from nlu.config.command_keys import Profile
from nlu.diagnosis.profiled import Profiled, device_name, memory_mb, print_profile
from nlu.diagnosis.profiled_prediction import profile_prediction
from nlu.diagnosis.steps import built, computed_tokens, measured, take_step
from nlu.diagnosis.traced import Traced, trace
from nlu.display.progress_bars import Progress
from nlu.inference.locate import Located
from nlu.optim.optimizer import set_learning_rate
from nlu.runs import logs
from nlu.storage.files import write_json
from nlu.storage.outputs import output_folder
from nlu.training.auto import with_precision
from nlu.training.experiment import choose_kernels
from nlu.training.memory import peak_mb
from nlu.training.parts import Training
from nlu.training.ranks import Ranks, process_group

MOST_TRACED = 3
"""steps under the profiler, whose trace has a line for each operator"""
TRACE, RESULT = "trace.json", "profile.json"


def run_profile(config: Profile, located: Located | None) -> int:
    """Profile the training of a configuration, or the prediction of rows with a run; returns the exit status."""
    logs.set_up(None, 0)
    with process_group(config.trainer.device) as ranks, Progress() as progress:
        choose_kernels(ranks.device)
        config = with_precision(config, ranks)
        work = profile_run if located is None else partial(profile_prediction, located)
        written: list[str] = []
        if config.out is None:
            profiled, traced = work(config, ranks, progress, None)
        else:
            with output_folder(config.out, "out", last=RESULT) as folder:
                profiled, traced = work(config, ranks, progress, folder / TRACE)
                write_json(folder / RESULT, profiled.to_json())
                written = [f"{config.out.rstrip('/')}/{path.name}" for path in sorted(folder.iterdir())]
    print_profile(profiled, traced, written)
    return 0


def profile_run(config: Profile, ranks: Ranks, progress: Progress, path: Path | None) -> tuple[Profiled, Traced]:
    """Measure the steps of a run; `path` is the Chrome trace to write, or None."""
    with built(config, ranks, progress) as run:
        with progress.task("profiling"):
            profiled = _measured_steps(run, config)
            following = count(config.warmup + config.steps)
            model, steps = run.stepper.model, min(config.steps, MOST_TRACED)
            traced = trace(model, ranks.device, lambda: run.stepper.read(take_step(run, next(following))), steps, path)
    profiled.busy = traced.busy(profiled.step_s)
    return profiled, traced


def _measured_steps(run: Training, config: Profile) -> Profiled:
    stepper = run.stepper
    stepper.model.train()
    # A step takes the same time at a rate of 0, and no loss can diverge.
    set_learning_rate(stepper.optimizer, 0.0)
    for number in range(config.warmup):
        stepper.read(take_step(run, number))
    stepper.phases.catch_up()
    stepper.phases.start()
    peak_mb(stepper.device)
    numbers = range(config.warmup, config.warmup + config.steps)
    found = measured(run, numbers)
    return Profiled(
        what="a step of training",
        steps=config.steps,
        seconds={phase: value / config.steps for phase, value in stepper.phases.take().items()},
        examples_per_s=found.examples / found.elapsed_s,
        real_tokens_per_s=found.tokens / found.elapsed_s,
        computed_tokens_per_s=sum(computed_tokens(run, each) for each in numbers) / found.elapsed_s,
        peak_mb=peak_mb(stepper.device),
        device=device_name(stepper.device),
        limit_mb=memory_mb(stepper.device),
    )
