"""Profile some steps of a run without its folder, or the prediction of rows with a trained run.

A profile has the time by phase, torch's tables by operator and module, a trace for a browser, and what to change first.
The profiler slows everything down that is short, so speeds are measured without it.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from nlu.config.command_keys import STANDARD, Input, Predict, Profile
from nlu.data.examples import in_memory
from nlu.data.order import evaluation_batches
from nlu.data.reader import Row
from nlu.data.store import EncodedRows
from nlu.diagnosis.few_steps import built, computed_tokens, measured, take_step
from nlu.display.console_tables import numbers, print_table, table_of, texts
from nlu.display.progress_bars import Progress
from nlu.inference.cells import PredictedRow
from nlu.inference.input_rows import found
from nlu.inference.locate import Located
from nlu.inference.predict_files import Chunk, Work, work_of
from nlu.inference.predictor import Predictor
from nlu.inference.trained import load_trained
from nlu.optim.optimizer import set_learning_rate
from nlu.runs import logs
from nlu.storage.files import write_json
from nlu.storage.outputs import output_folder
from nlu.training.auto import with_precision
from nlu.training.experiment import choose_kernels
from nlu.training.memory import peak_mb
from nlu.training.parts import Training
from nlu.training.phases import HostPhases, phases_on
from nlu.training.ranks import Ranks, process_group

MODULE = "module "
"""how the ranges of modules in a trace begin"""
ROWS, NAME_WIDTH = 20, 60
"""of a table"""

INPUT = ("reading", "encoding", "data", "writing")
"""phases in which nothing is computed since rows are read, tokenized, gathered or written"""
# These three limits are those of PyTorch's own advice, RunProfileData.analyze of torch_tb_profiler
# (https://github.com/pytorch/kineto/tree/main/tb_plugin).
WAITING, BUSY, FULL = 0.05, 0.5, 0.9
MOST_TRACED = 3
"""steps under the profiler, whose trace has a line for each operator"""
TRACE, RESULT = "trace.json", "profile.json"


@dataclass(frozen=True)
class Traced:
    """What the profiler says of some steps."""

    rows: Any
    """torch's list of averages, a row for each name of an operator or a module"""
    steps: int
    on_cuda: bool

    def busy(self, step_s: float) -> float | None:
        """Return the share of a step in which kernels run on a CUDA device. They take as long as without the profiler,
        under which the host is slower, so `step_s` was measured without it."""
        kernels = [row for row in self.rows if row.device_type == DeviceType.CUDA and not row.is_user_annotation]
        kernels_us = sum(row.self_device_time_total for row in kernels)
        return min(1.0, kernels_us / 1e6 / self.steps / step_s) if self.on_cuda else None

    def tables(self) -> list[str]:
        """Return torch's tables: by the time with what is called, which shows modules, and by the own time, which shows
        operators."""
        side = "device" if self.on_cuda else "cpu"
        return [
            self.rows.table(sort_by=f"{kind}{side}_time_total", row_limit=ROWS, max_name_column_width=NAME_WIDTH)
            for kind in ("", "self_")
        ]


def trace(model: nn.Module, device: torch.device, step: Callable[[], object], steps: int, path: Path | None) -> Traced:
    """Run `steps` steps under the profiler; `path` is the Chrome trace to write, or None."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with _named(model), profile(activities=activities, profile_memory=True) as profiler:
        for _ in range(steps):
            step()
        if on_cuda:
            torch.cuda.synchronize(device)
    if path is not None:
        profiler.export_chrome_trace(str(path))
    return Traced(profiler.key_averages(), steps, on_cuda)


@contextmanager
def _named(model: nn.Module) -> Iterator[None]:
    """Make each call of a module in the block a range of the trace with its name."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            open_ranges: list[record_function] = []

            def enter(
                *_: object, name: str = without_numbers(name), ranges: list[record_function] = open_ranges
            ) -> None:
                ranges.append(record_function(MODULE + (name or "model")))
                ranges[-1].__enter__()

            def leave(*_: object, ranges: list[record_function] = open_ranges) -> None:
                ranges.pop().__exit__(None, None, None)

            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def without_numbers(name: str) -> str:
    """Return a dotted name with `*` for the numbers of layers, so that layers of one kind share a row."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name)


@dataclass(kw_only=True)
class Profiled:
    """The result of a profile."""

    what: str
    """what a step is: of training, or a batch that is predicted"""
    steps: int
    device: str
    seconds: dict[str, float]
    """of a step, by its phases (`nlu.training.phases`)"""
    examples_per_s: float
    real_tokens_per_s: float
    computed_tokens_per_s: float
    """with padding"""
    peak_mb: float
    limit_mb: float | None = None
    """memory of a CUDA device"""
    busy: float | None = None
    """share of a step in which a CUDA device computes"""

    @property
    def step_s(self) -> float:
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "step_s": self.step_s, "findings": list(findings(self))}


def device_name(device: torch.device) -> str:
    """Return the name of a device, with the number of threads of a processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, threads: {torch.get_num_threads()}"


def memory_mb(device: torch.device) -> float | None:
    """Return the memory of a CUDA device."""
    return torch.cuda.mem_get_info(device)[1] / 1e6 if device.type == "cuda" else None


def findings(found: Profiled) -> Iterator[str]:
    """Yield what to change, by three rules of PyTorch's own advice."""
    is_prediction = "encoding" in found.seconds
    if found.limit_mb and found.peak_mb > FULL * found.limit_mb:
        used = f"memory: {found.peak_mb:,.0f} of {found.limit_mb:,.0f} MB are in use"
        remedy = "lower batch_size" if is_prediction else "lower trainer.batch_size and raise trainer.accumulation"
        yield f"{used}; {remedy}, or set precision=bf16"
    if (waits := sum(found.seconds.get(phase, 0.0) for phase in INPUT) / found.step_s) > WAITING:
        remedy = (
            "predict in several processes (devices=2), each of which tokenizes its own part"
            if is_prediction
            else "put the cache on a local disk (NLU_CACHE); a target of your own should gather whole columns"
        )
        yield f"input: {waits:.0%} of the time nothing is computed, since rows are read and gathered; {remedy}"
    if found.busy is not None and found.busy < BUSY:
        key = "batch_size" if is_prediction else "trainer.batch_size, and optimizer.lr with it"
        yield f"device: it computes in {found.busy:.0%} of the time; raise {key}"


def print_profile(found: Profiled, traced: Traced, files: Sequence[str]) -> None:
    """Print the phases, the facts, torch's tables, what to change first, and the paths of files."""
    phases = sorted(found.seconds.items(), key=lambda item: -item[1])
    rows = [[name, f"{1e3 * spent_s:.2f}", f"{spent_s / found.step_s:.1%}"] for name, spent_s in phases if spent_s]
    rows.append(["together", f"{1e3 * found.step_s:.2f}", "100.0%"])
    facts = table_of(texts("", ""), _facts(found))
    facts.show_header = False
    title = f"{found.what}, mean of {found.steps}, on {found.device}"
    print_table(title, "", table_of([*texts("phase"), *numbers("ms", "share")], rows), "", facts)
    print(f"\nunder torch.profiler, sums of {traced.steps}\n")
    print(*traced.tables(), sep="\n")
    advice = list(findings(found)) or ["nothing stands out: input, memory and the use of the device"]
    print_table("What to change first", *advice, "", *files)


def _facts(found: Profiled) -> Iterator[list[str]]:
    yield ["speed", f"{found.examples_per_s:,.0f} examples/s, {found.real_tokens_per_s:,.0f} real tokens/s"]
    yield ["padding", f"{1 - found.real_tokens_per_s / found.computed_tokens_per_s:.1%} of the computed tokens"]
    limit = f" of {found.limit_mb:,.0f}" if found.limit_mb else ""
    yield ["peak memory", f"{found.peak_mb:,.0f}{limit} MB"]
    if found.busy is not None:
        yield ["device computes", f"{found.busy:.0%} of the time"]


def profile_prediction(
    located: Located, config: Profile, ranks: Ranks, progress: Progress, path: Path | None
) -> tuple[Profiled, Traced]:
    """Measure batches of the rows of `config.rows`; `path` is the Chrome trace to write, or None."""
    assert config.run is not None and config.rows is not None, "validated together"
    batch_size = config.trainer.eval_batch_size or 64
    asked = Predict(run=config.run, input=Input(path=config.rows), output=STANDARD, batch_size=batch_size)
    trained = load_trained(located)
    with found(config.rows, "auto", "rows") as file, progress.task("profiling"):
        predictor = Predictor(trained, ranks.device, batch_size=batch_size, owns=True)
        work = work_of(asked, file, predictor)
        phases = phases_on(ranks.device)
        rows = iter(work.source.rows())
        first = list(islice(rows, config.warmup * batch_size))
        if first:
            _predict(work, first, phases)
        phases.catch_up()
        phases.start()
        began_s = time.perf_counter()
        with phases.within("reading"):
            chunk = list(islice(rows, config.steps * batch_size))
        # A small file is used up by the warm-up, so its rows are predicted again, without the time of reading them.
        encoded = _predict(work, chunk or first, phases)
        phases.catch_up()
        elapsed_s = time.perf_counter() - began_s
        part = in_memory(encoded, trained.layout)
        lengths_N = part.lengths_N
        batches = evaluation_batches(lengths_N, batch_size=batch_size, rank=0, world_size=1)
        pads = trained.model.backbone.pads
        computed = sum(lengths_N[each_B].max() * len(each_B) if pads else lengths_N[each_B].sum() for each_B in batches)
        profiled = Profiled(
            what="a batch of prediction",
            steps=len(batches),
            seconds={phase: value / len(batches) for phase, value in phases.take().items()},
            examples_per_s=len(part) / elapsed_s,
            real_tokens_per_s=int(lengths_N.sum()) / elapsed_s,
            computed_tokens_per_s=int(computed) / elapsed_s,
            peak_mb=peak_mb(ranks.device),
            device=device_name(ranks.device),
            limit_mb=memory_mb(ranks.device),
        )
        some = work.predictor.encode([row.values for row, _ in (chunk or first)[:batch_size] if isinstance(row, Row)])
        traced = trace(trained.model, ranks.device, lambda: work.predictor.predict(some), 1, path)
    profiled.busy = traced.busy(profiled.step_s)
    return profiled, traced


def _predict(work: Work, chunk: Chunk, phases: HostPhases) -> EncodedRows:
    """Predict rows, all of which can be used, and make the bytes that nlu.predict would write; returns their tokens."""
    rows = [(row, original) for row, original in chunk if isinstance(row, Row)]
    with phases.within("encoding"):
        encoded = work.predictor.encode([row.values for row, _ in rows])
    with phases.within("forward"):
        predictions = work.predictor.predict(encoded)
    with phases.within("writing"):
        cells = [work.columns.cells(row.values, one) for (row, _), one in zip(rows, predictions, strict=True)]
        work.output.piece([PredictedRow(original, own, "") for (_, original), own in zip(rows, cells, strict=True)])
    return encoded


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
