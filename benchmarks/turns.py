"""Sides of a comparison: each in a separate long-lived process, measured in turns, never two at a time.

A side is a function `work(turns, **settings)` that imports and builds what it needs, warms up, and then does one
measured segment for each turn it is given. Between its turns it waits without using a processor.
"""

import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

Measure = dict[str, float]
COMPILED = re.compile(", (torch_)?compiled?\\b")
"""how the name of a side says that it is compiled"""


class Turns:
    """The side's end: `wait` for a turn, then `report` what the turn measured."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def wait(self) -> None:
        """Say that this side is ready and return when its turn comes; ends the process after the last turn."""
        try:
            self._connection.send(("ready", time.monotonic()))
            self._connection.recv()
        # The other end is closed after the last turn; that is how a side ends.
        except (EOFError, BrokenPipeError):
            raise SystemExit(0) from None

    def report(self, **measure: float) -> None:
        self._connection.send(measure)


class StepPacer:
    """Cuts a training loop that runs on by itself into turns: it blocks the loop at the end of a step.

    A segment reaches from the end of one step to the end of a later one, so that fetching data, logging and everything
    else the loop does between steps counts.
    """

    def __init__(self, turns: Turns, *, warm_up_steps: int, steps: int, device: str):
        self._turns = turns
        self._left = warm_up_steps
        self._steps = steps
        self._warming_up = True
        self._on_cuda = device == "cuda"
        self._tokens = 0
        self._began_s = 0.0

    def after_step(self, real_tokens: int, host_s: float) -> None:
        """Count a step of so many real tokens; at the end of a segment report it and wait for the next turn. `host_s`
        is the time within the step."""
        self._tokens += real_tokens
        self._left -= 1
        if self._left:
            return
        if self._on_cuda:
            import torch

            torch.cuda.synchronize()
        elapsed_s = time.perf_counter() - self._began_s
        if not self._warming_up:
            self._turns.report(real_tokens_per_s=self._tokens / elapsed_s, step_s=elapsed_s / self._steps)
        self._warming_up, self._left, self._tokens = False, self._steps, 0
        self._turns.wait()
        self._began_s = time.perf_counter()


class Side:
    """One side, started and warmed up on entry, ended on exit."""

    ready_s = 0.0
    """from its start until it had warmed up"""

    def __init__(self, work: Callable[..., None], **settings: Any):
        self._began_s = time.monotonic()
        # Not fork: each side sets its own environment before it imports torch.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_begin, args=(theirs, work, settings))
        self._process.start()
        theirs.close()

    def __enter__(self) -> "Side":
        self.ready_s = self._expect_ready() - self._began_s
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        # Closing the pipe tells the side to end; see `Turns.wait`.
        self._connection.close()
        self._process.join()

    def turn(self) -> Measure:
        """Let the side do one segment and return what it measured."""
        self._connection.send("go")
        measure = self._receive()
        self._expect_ready()
        return measure

    def end_unless_ready(self, within_s: float) -> None:
        """End a side that has not warmed up so long after its start; entering it then fails."""
        if not self._connection.poll(max(0.0, self._began_s + within_s - time.monotonic())):
            self._process.kill()

    def _expect_ready(self) -> float:
        word, at_s = self._receive()
        assert word == "ready", word
        return at_s

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            self._process.join()
            raise SystemExit(f"a side of the comparison ended with status {self._process.exitcode}") from None


def entered(
    stack: ExitStack,
    sides: dict[str, Callable[[], Side]],
    *,
    at_once: bool,
    may_fail: Collection[str] = (),
    within_s: float | None = None,
) -> dict[str, Side]:
    """Start sides and wait until all have warmed up, one after another or, where they do not compute on the same
    processor, all at once. They end with the stack. Those of `may_fail` are left out, with a sentence, if they end, or
    take longer than `within_s`."""
    started = {name: start() for name, start in sides.items()} if at_once else {}
    found = {}
    for name, start in sides.items():
        side = started.get(name) or start()
        if name in may_fail and within_s:
            side.end_unless_ready(within_s)
        try:
            found[name] = stack.enter_context(side)
        except SystemExit as left:
            if name not in may_fail:
                raise
            print(f"left out: {name}: {left}", flush=True)
    return found


def with_batches(
    sides: dict[str, Callable[..., Side]], others: dict[str, Callable[[], Side]], arguments: Any
) -> tuple[dict[str, Side], dict[str, Measure]]:
    """Measure sides with each batch size of the command line, all in the same turns, and others once; returns the sides
    and the medians, by the names that `at` gives. A compiled side that fails before its first turn is in neither."""
    makers = {
        at(name, size): partial(maker, batch_size=size)
        for size in arguments.batch_size
        for name, maker in sides.items()
    }
    may_fail = set(filter(COMPILED.search, makers))
    with ExitStack() as stack:
        found = entered(
            stack, makers | others, at_once=arguments.device == "cuda", may_fail=may_fail, within_s=arguments.compiled
        )
        return found, alternate(found, arguments.turns)


def at(name: str, batch_size: int) -> str:
    """Return the name of a side, or of a claim, with its batch size."""
    return f"{name}, batch {batch_size}"


def compiling(sides: dict[str, Side], *names: str) -> str:
    """Return how much later those of these sides that are compiled were ready than the same ones without."""
    late = []
    for name in names:
        eager = COMPILED.sub("", name)
        if eager != name and eager in sides:
            late.append(f"{name.split(',')[0]} {sides[name].ready_s - sides[eager].ready_s:.0f} s")
    return ", ".join(late)


def _begin(connection: Connection, work: Callable[..., None], settings: dict[str, Any]) -> None:
    # The processes that this one starts (loader workers) must not hold the pipe open after its end.
    os.set_inheritable(connection.fileno(), False)
    work(Turns(connection), **settings)


def alternate(sides: dict[str, Side], turns: int) -> dict[str, Measure]:
    """Give each side `turns` turns, one after another in this order; returns the median of every figure."""
    measures: dict[str, list[Measure]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, side in sides.items():
            measures[name].append(side.turn())
    return {name: medians(found) for name, found in measures.items()}


def medians(measures: list[Measure]) -> Measure:
    return {key: statistics.median(measure[key] for measure in measures) for key in measures[0]}
