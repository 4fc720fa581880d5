"""The output of a search: a line for each event, on the console and in sweep.log."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial
from rich.console import Console

from nlu.config.sentences import counted
from nlu.search import pruners
from nlu.search.channel import COMPLETE
from nlu.search.goals import MEASURED, Goals
from nlu.search.plan import Plan

LOG = "sweep.log"


class Board:
    """As a context: prints what happens, and writes it to sweep.log."""

    def __init__(self, sweep_dir: Path):
        self._console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
        # Unbuffered: with a full disk, closing a buffered file would fail again.
        self._file = open(sweep_dir / LOG, "ab", buffering=0)
        self._is_written = True

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *unused: object) -> None:
        self._file.close()

    def say(self, text: str, style: str | None = None) -> None:
        """Print a text and write it to sweep.log; after a first failure, such as a full disk, only print it."""
        self._console.print(text, style=style)
        lines = [f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n" for line in text.splitlines()]
        try:
            if self._is_written:
                self._file.write("".join(lines).encode())
        except OSError as error:
            self._is_written = False
            self._console.print(f"{LOG} is no longer written: {error}", style="yellow")


def announce(board: Board, plan: Plan, finished: int, begun: int, paused: int) -> None:
    """Print the plan and the cost of a search, and how much of it is done if it continues."""
    board.say(
        f"search {plan.name}: {counted(plan.n_trials, 'trial')}, {plan.slots.count} at a time, {plan.drawn_by}, "
        f"{plan.direction} ({plan.folder})"
    )
    for line in pruners.announced(plan.spec, plan.n_trials):
        board.say(line)
    if plan.warning is not None:
        board.say(f"warning: {plan.warning}", style="yellow")
    if finished or begun or paused:
        also = f", {paused} paused" if paused else ""
        board.say(f"continuing: {counted(finished, 'trial')} finished, {begun} begun{also}")
    else:
        board.say(f"to continue after a break: the same command with hydra.sweep.dir={plan.folder}")


class Idle:
    """The share of the slots' time in which no trial ran although trials were left."""

    def __init__(self, slots: int):
        self._slots, self._used_s, self._last_s = slots, 0.0, time.time()
        self._total_s = 0.0
        self._running = 0

    def changed(self, running: int, remaining: int, at_s: float | None = None) -> None:
        """Note that from now on, or since `at_s`, `running` jobs run; `remaining` trials were neither ended nor begun.

        Slots for which no trial remains count as used: they are not idle but over.
        """
        # Jobs write when they ended. The clock of another machine may differ, so a time neither precedes the last
        # change nor lies in the future.
        now_s = max(self._last_s, min(at_s, time.time()) if at_s is not None else time.time())
        elapsed_s = now_s - self._last_s
        self._used_s += elapsed_s * self._running
        self._total_s += elapsed_s * self._wanted
        self._last_s, self._running = now_s, running
        # At the end of a search fewer trials are left than slots.
        self._wanted = min(self._slots, running + remaining)

    _wanted = 0

    @property
    def share(self) -> float:
        return 1 - self._used_s / self._total_s if self._total_s > 0 else 0.0


def when(pause_s: float) -> str:
    """Return when a pause ends, in words."""
    return f"in {pause_s:.0f} s" if pause_s >= 1 else "now"


def parameters(values: Mapping[str, object]) -> str:
    """Return drawn values on one line."""
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )


def ended_line(trial: FrozenTrial, outcome: Mapping[str, Any], goals: Goals) -> str:
    """Return the line about a trial that is complete or pruned: value, objectives, broken constraints, cost."""
    measured = trial.user_attrs.get(MEASURED, {})
    broken = goals.broken(measured)
    examples = f" after {outcome['examples']:,} examples" if outcome.get("examples") else ""
    word = "finished" if outcome["state"] == COMPLETE else outcome.get("error") or "pruned"
    value = f"{outcome['value']:.6g}" if outcome["value"] is not None else "no value"
    others = "".join(f", {name} {measured[name]:.6g}" for name in goals.objectives if name in measured)
    infeasible = f" (breaks {', '.join(broken)})" if broken else ""
    return f"trial {trial.number} {word}: {value}{others}{examples}, {outcome['wall_s']:.0f} s{infeasible}"
