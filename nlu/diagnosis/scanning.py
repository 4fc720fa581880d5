"""Scan the learning rate or the batch size of a configuration: build its run, take steps, print, draw.

A scan of the batch size finds how fast steps are by the size of the micro-batch, and the smallest size that is about as
fast as any.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial

from matplotlib.figure import Figure
from rich.console import RenderableType

from nlu.config.command_keys import Scan
from nlu.config.errors import OutOfMemory
from nlu.config.schema import Trainer
from nlu.diagnosis.few_steps import built, measured, take_step
from nlu.diagnosis.profiling import device_name
from nlu.diagnosis.range_test import RangeTest, run_range_test
from nlu.display.canvas import SET_COLOURS, new_figure, save_drawn, styled
from nlu.display.console_tables import numbers, print_table, table_of
from nlu.display.progress_bars import Progress
from nlu.optim.optimizer import set_learning_rate
from nlu.runs import logs
from nlu.runs.records import Cell, Table
from nlu.storage.files import write_json
from nlu.storage.outputs import output_folder
from nlu.tasks.task import comparing_loss
from nlu.training import memory
from nlu.training.auto import with_precision
from nlu.training.experiment import choose_kernels
from nlu.training.memory import peak_mb, release
from nlu.training.ordering import order_of
from nlu.training.parts import Training
from nlu.training.ranks import Ranks, process_group

SHARE = 0.8
"""of the free memory of a machine that steps may take on a CPU, where the system ends a process that takes too much"""
WARMUP = 2
"""steps of each size before the measured ones, which make memory that the others use again"""
CLOSE = 0.95
"""share of the best rate that counts as equally fast; a smaller size leaves memory"""
DOUBLINGS = 2
"""doublings in a row without a gain, after which the scan ends"""

RESULT = "scan.json"


@dataclass(frozen=True)
class Size:
    """What was measured of one size of micro-batches."""

    batch_size: int
    step_s: float
    examples_per_s: float
    real_tokens_per_s: float
    peak_mb: float
    """as in train.tsv"""


@dataclass
class BatchScan:
    """The sizes that were measured, the smallest first, and what follows from them."""

    sizes: list[Size]
    device: str
    end: str
    """why no larger size was measured, as the rest of a sentence"""
    trainer: Trainer
    compares: str | None = None
    """the name of a loss whose value for a row depends on the other rows of the micro-batch, if there is one"""

    @property
    def fastest(self) -> float:
        """Tokens of a second of the fastest size; rows of few steps are longer or shorter by chance."""
        return max(size.real_tokens_per_s for size in self.sizes)

    @property
    def recommended(self) -> Size:
        """The smallest size that is at most 5 % slower than the best one."""
        return next(size for size in self.sizes if size.real_tokens_per_s >= CLOSE * self.fastest)

    @property
    def overrides(self) -> str:
        """The overrides that set the recommended size; a step keeps its examples where they are a multiple of it."""
        size, accumulation = self.recommended.batch_size, self.trainer.accumulation
        examples = 0 if isinstance(self.trainer.batch_size, str) else self.trainer.batch_size * accumulation
        if examples and not self.compares and examples % size == 0:
            accumulation = examples // size
        return f"trainer.batch_size={size} trainer.accumulation={accumulation}"

    def to_json(self) -> dict[str, object]:
        return {
            "of": "batch_size",
            "recommended": self.recommended.batch_size,
            "overrides": self.overrides,
        }

    def rows(self) -> Iterator[dict[str, Cell]]:
        """Yield the sizes as a table."""
        yield from map(asdict, self.sizes)

    def said(self) -> Iterator[RenderableType]:
        """Yield what to print: the table, why it ends, and the suggestion."""
        rows = [
            [f"{size.batch_size:,}", f"{1e3 * size.step_s:,.1f}", f"{size.examples_per_s:,.1f}",
             f"{size.real_tokens_per_s:,.0f}", f"{size.real_tokens_per_s / self.fastest:.0%}", f"{size.peak_mb:,.0f}"]
            for size in self.sizes
        ]  # fmt: skip
        headers = numbers("batch_size", "ms per step", "examples/s", "real tokens/s", "of the best", "peak MB")
        yield f"steps of one micro-batch and its update, on {self.device}"
        yield ""
        yield table_of(headers, rows)
        yield ""
        yield f"larger sizes were not measured: {self.end}"
        yield f"recommended: {self.overrides}"
        yield f"This is the smallest size with at least {CLOSE:.0%} of the most tokens per second."
        if self.compares:
            yield f"note: {self.compares} compares the rows of a micro-batch, so its size also changes what is learned"


def run_batch_scan(run: Training, config: Scan, advance: Callable[[int], None]) -> BatchScan:
    """Measure steps of one micro-batch of 1, 2, 4, ... examples, with an update after each that changes no weight.

    It ends at `max_batch_size`, at the number of training rows, where memory ends, or where two doublings are no
    faster. Raises OutOfMemory if the first size does not fit.
    """
    stepper = run.stepper
    # At a rate of 0 a step takes the same time, and no loss can diverge.
    set_learning_rate(stepper.optimizer, 0.0)
    rows = max(map(len, run.store.of_role("train").values()))
    most = min(rows, config.max_batch_size or rows)
    before = memory.resident_bytes()
    end = f"max_batch_size is {most:,}" if most == config.max_batch_size else f"there are {rows:,} training rows"
    found = BatchScan([], device_name(stepper.device), end, config.trainer, comparing_loss(run.task))
    rates: list[float] = []
    batch_size = 2 if found.compares else 1
    while batch_size <= most:
        on_host = 2 * (1e6 * peak_mb(stepper.device) - before) if stepper.device.type == "cpu" else 0
        if rates and on_host > SHARE * memory.free_bytes():
            found.end = f"{batch_size} examples might take more than {SHARE:.0%} of the free memory"
            break
        advance(batch_size)
        try:
            size = _measured(run, config, batch_size)
        except OutOfMemory:
            if not rates:
                raise
            size = None
        if size is None:
            release(stepper.device)
            found.end = f"memory ran out with {batch_size} examples"
            break
        found.sizes.append(size)
        rates.append(size.real_tokens_per_s)
        if len(rates) > DOUBLINGS and max(rates) * CLOSE <= max(rates[:-DOUBLINGS]):
            found.end = "they would not be faster"
            break
        batch_size *= 2
    return found


def _measured(run: Training, config: Scan, batch_size: int) -> Size | None:
    """Measure some steps of one micro-batch of this size; returns None if memory ran out."""
    stepper, trainer = run.stepper, replace(config.trainer, batch_size=batch_size, accumulation=1)
    run.order = order_of(replace(config, trainer=trainer), run.store, stepper.ranks)
    for number in range(WARMUP):
        stepper.read(take_step(run, number))
    # On a CPU the peak is that of the process, which grows with the size too.
    peak_mb(stepper.device)
    found = measured(run, range(WARMUP, WARMUP + config.num_steps))
    if stepper.pieces > 1:
        return None
    rate, step_s = 1 / found.elapsed_s, found.elapsed_s / config.num_steps
    return Size(batch_size, step_s, found.examples * rate, found.tokens * rate, peak_mb(stepper.device))


def run_scan(config: Scan) -> int:
    """Scan; returns the exit status: 0, or 1 if no value can be recommended."""
    logs.set_up(None, 0)
    with process_group(config.trainer.device) as ranks, Progress() as progress:
        choose_kernels(ranks.device)
        config = with_precision(config, ranks)
        found = scan(config, ranks, progress)
        written: list[str] = []
        if config.out is not None:
            with output_folder(config.out, "out", last=RESULT) as folder:
                rows = list(found.rows())
                table = Table(folder / f"{config.of}.tsv", tuple(rows[0]))
                for row in rows:
                    table.append(**row)
                if isinstance(found, RangeTest):
                    save_drawn(folder / f"{config.of}.png", partial(figure_of, found))
                write_json(folder / RESULT, found.to_json())
                written = ["", *(f"{config.out.rstrip('/')}/{path.name}" for path in sorted(folder.iterdir()))]
    print_table(*found.said(), *written)
    return 1 if found.recommended is None else 0


def scan(config: Scan, ranks: Ranks, progress: Progress) -> RangeTest | BatchScan:
    """Take the steps of a scan and analyze them."""
    # A loss that is too large is a result here, and no weights are kept.
    trainer = replace(config.trainer, max_loss=None, detect_anomaly=False)
    if config.of == "lr":
        lr_config = replace(config, trainer=replace(trainer, ema_decay=0.0))
        with built(lr_config, ranks, progress) as run, progress.task("rising rates", config.num_steps) as bar:
            return run_range_test(run, lr_config, bar.advance)
    # Each size replaces this one.
    first = replace(config, trainer=replace(trainer, batch_size=2, accumulation=1))
    with built(first, ranks, progress) as run, progress.task("batch sizes") as bar:

        def show(batch_size: int) -> None:
            bar.description = f"micro-batches of {batch_size:,}"
            bar.advance()

        return run_batch_scan(run, config, show)


def figure_of(found: RangeTest) -> Figure:
    """Draw the curve of a range test, and the suggestion as a line."""
    with styled():
        figure, axes = new_figure()
        axes.plot(found.lr_N, found.loss_N, color="#9aa5b1", linewidth=0.9, label="loss of a step")
        axes.plot(found.lr_N, found.smoothed_N, color=SET_COLOURS[0], label="smoothed")
        # Losses that have diverged must not flatten the rest of the curve.
        axes.set_ylim(top=1.5 * found.start)
        axes.set(xlabel="learning rate (optimizer.lr), higher at each step", ylabel="loss", xscale="log")
        axes.xaxis.set_major_formatter("{x:.0e}")
        if (best := found.recommended) is not None:
            axes.axvline(best, color=SET_COLOURS[5], linewidth=1.6, label=f"recommended: {best:g}")
        axes.set_title("scan of optimizer.lr", loc="left", fontsize=10, color="#444444")
        axes.legend(loc="best")
    return figure
