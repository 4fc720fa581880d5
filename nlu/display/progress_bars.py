"""Progress of a run: live bars on a terminal, a log line now and then elsewhere.

The step loop only stores numbers. A thread of the display draws them four times a second, so that showing progress does
not slow down steps.
"""

import functools
import logging
import math
import os
import pdb
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LOG_INTERVAL_S = 30.0
REFRESH_S = 0.25
MIN_BAR_WIDTH = 8
MAX_BAR_WIDTH = 40
LOSS_SHARE = 0.02
"""weight of a step's loss in the running mean that is shown, since the loss of single batches is too noisy"""

logger = logging.getLogger("nlu")


@functools.cache
def console() -> Console:
    """Return the console on standard error, which live bars and log share so that they do not overwrite each other."""
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def on_terminal() -> bool:
    """Return whether standard error is a terminal that can redraw lines, with or without colours."""
    return console().file.isatty() and not console().is_dumb_terminal


class Bar:
    """A counter: `done` of `total` (None = unknown). As a context, it is shown until it ends."""

    def __init__(self, owner: "Progress", description: str, total: int | None, first: int = 0):
        self.description = description
        self.total = total
        self.first = first
        self.done = first
        self.started_s = time.monotonic()
        self._owner = owner

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._owner.log_if_due(self)

    def __enter__(self) -> "Bar":
        self._owner.show(self)
        return self

    def __exit__(self, *unused: object) -> None:
        self._owner.hide(self)

    def count(self) -> str:
        return f"{self.done:,}" if self.total is None else f"{self.done:,}/{self.total:,}"

    def times(self) -> str:
        """Return time elapsed, and time left at the mean pace since the start, including pauses such as evaluations."""
        elapsed_s = time.monotonic() - self.started_s
        words = f"{format_time(elapsed_s)} elapsed"
        if self.total is None or self.done <= self.first:
            return words
        left_s = elapsed_s / (self.done - self.first) * max(self.total - self.done, 0)
        return f"{words}, {format_time(left_s)} left"

    def words(self) -> list[str]:
        """Return the texts after the count; if the line is too narrow, the last but one is dropped first."""
        return [self.times()]


class TrainingBar(Bar):
    """The bar of the optimizer steps, with the loss as a running mean, the speed and the last evaluation."""

    loss: float | None = None
    _weight: float = 0.0
    """total weight of the losses so far in the running mean"""
    examples_per_s: float | None = None
    metric: str = ""

    def add_loss(self, loss: float) -> None:
        """Add the loss of a step to the mean. A loss that is not finite is shown until the next finite one."""
        if not math.isfinite(loss) or self.loss is None or not math.isfinite(self.loss):
            self.loss, self._weight = loss, 1.0
            return
        # The first steps have equal weights; after 1 / LOSS_SHARE of them, older ones decay.
        self._weight = 1.0 + (1.0 - LOSS_SHARE) * self._weight
        self.loss += (loss - self.loss) / self._weight

    def words(self) -> list[str]:
        loss = "" if self.loss is None else f"loss {self.loss:.4g}"
        speed = "" if self.examples_per_s is None else f"{self.examples_per_s:,.0f} examples/s"
        return [part for part in (loss, self.metric, speed, self.times()) if part]


class Progress:
    """The display of one process, as a context.

    On a terminal it shows live bars, redrawn at most four times a second, with log lines above them. Elsewhere it logs
    the same words, at most once every `log_interval_s`. With `enabled=False` (ranks above 0) it shows and logs nothing;
    with `on_console=False` it only logs.
    """

    def __init__(self, *, enabled: bool = True, on_console: bool = True, log_interval_s: float = LOG_INTERVAL_S):
        self.live = enabled and on_console and on_terminal()
        self._logs = enabled and not self.live
        self._log_interval_s = log_interval_s
        self._next_log_s = time.monotonic() + log_interval_s
        self._bars: list[Bar] = []
        self._training: TrainingBar | None = None
        self._display: _Display | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *unused: object) -> None:
        if self._display is not None:
            self._display.end()
            self._display = None

    def start(self, total_steps: int, first_step: int = 0, description: str = "train") -> None:
        """Show the bar of the optimizer steps, of which `first_step` were done before (a resumed run)."""
        assert self._training is None, "the training bar was started before"
        self._training = TrainingBar(self, description, total_steps, first_step)
        self.show(self._training)

    def advance(self, step: int, loss: float | None = None, examples_per_s: float | None = None) -> None:
        """Set the number of steps done; None keeps the number shown before. Takes about a microsecond."""
        bar = self._training
        assert bar is not None, "start() comes first"
        # Stores numbers only. The thread of the display reads them, and an old number beside a new one does no harm.
        bar.done = step
        if loss is not None:
            bar.add_loss(loss)
        if examples_per_s is not None:
            bar.examples_per_s = examples_per_s
        self.log_if_due(bar)

    def metric(self, name: str, value: float) -> None:
        """Show the result of the last evaluation beside the loss."""
        assert self._training is not None, "start() comes first"
        self._training.metric = f"{name}={value:.4g}"

    def task(self, description: str, total: int | None = None) -> Bar:
        """Return a bar for an evaluation or preprocessing: `with progress.task(...) as bar: bar.advance(n)`."""
        return Bar(self, description, total)

    def show(self, bar: Bar) -> None:
        """Add a bar below the others."""
        self._bars.append(bar)
        if self.live and self._display is None:
            self._display = _Display(self._render)

    def hide(self, bar: Bar) -> None:
        """Remove a bar."""
        self._bars.remove(bar)

    def log_if_due(self, bar: Bar) -> None:
        """Log this bar if nothing is drawn and the last line is `log_interval_s` old."""
        # One clock for all bars, so that several of them do not log more often together.
        if not self._logs or (now_s := time.monotonic()) < self._next_log_s:
            return
        self._next_log_s = now_s + self._log_interval_s
        logger.info("%s %s  %s", bar.description, bar.count(), "  ".join(bar.words()))

    def _render(self) -> RenderableType:
        # Called by the thread of the display; the copy stays complete while the main thread adds or removes bars.
        return Group(*(_render_bar(bar, console().width) for bar in tuple(self._bars)))


class _Display:
    """Draws bars in a thread, until the first `breakpoint()`, which needs the terminal."""

    def __init__(self, render: Callable[[], RenderableType]):
        self._render = render
        self._has_ended = False
        self._live = self._begin()
        self._outer = sys.breakpointhook
        sys.breakpointhook = self._broken

    def _begin(self) -> Live:
        # rich would print a redirected standard output on this console.
        live = Live(
            console=console(),
            get_renderable=self._render,
            refresh_per_second=1 / REFRESH_S,
            redirect_stdout=sys.stdout.isatty(),
        )
        live.start(refresh=True)
        return live

    def _broken(self, *given: object, **named: object) -> object:
        self.end()
        if self._outer is not sys.__breakpointhook__ or "PYTHONBREAKPOINT" in os.environ:
            return self._outer(*given, **named)
        # Python's own hook would stop here, and not where the user stands.
        pdb.Pdb(nosigint=True).set_trace(sys._getframe(1))
        return None

    def end(self) -> None:
        """Draw the bars for the last time."""
        if not self._has_ended:
            sys.breakpointhook, self._has_ended = self._outer, True
            self._live.stop()


def format_time(duration_s: float) -> str:
    """Return `4:07`, or `1:04:07` from one hour on."""
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _render_bar(bar: Bar, console_width: int) -> RenderableType:
    """Return one line; if it is too long, the drawn bar shrinks, then is dropped, then texts are dropped."""
    before, words = f"{bar.description} {bar.count()}", bar.words()
    width = min(console_width - cell_len("  ".join([before, "", *words])) - 1, MAX_BAR_WIDTH)
    if width < MIN_BAR_WIDTH:
        while len(words) > 1 and cell_len("  ".join([before, *words])) >= console_width:
            del words[-2]
        return Text("  ".join([before, *words]), no_wrap=True, overflow="ellipsis")
    line = Table.grid(padding=(0, 2, 0, 0))
    drawn = ProgressBar(total=bar.total, completed=bar.done, width=width, pulse=bar.total is None)
    line.add_row(before, drawn, "  ".join(words))
    return line


def bars(progress: Progress) -> Callable[[str], AbstractContextManager[Callable[[int], None]]]:
    """Return the function with which `prepare` shows its progress."""

    @contextmanager
    def bar(description: str) -> Iterator[Callable[[int], None]]:
        with progress.task(description) as shown:
            yield shown.advance

    return bar
