"""The rows of a table of runs: one for each configuration, over its seeds and folds; a trial of a search is a row."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.schema import has_effect
from nlu.config.words import counted, path_text
from nlu.metrics.repeats import JoinedFolds, join_folds
from nlu.reports.runs import STATES, RunRecord, State, task_constants

REPEATED = ("seed", "seeds", "fold")
"""keys in which the runs of one configuration differ"""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation, which is None for a single value."""

    mean: float
    sd: float | None
    n: int


@dataclass
class TableRow:
    """The runs of one configuration."""

    runs: list[RunRecord]
    metric: str | None
    set_name: str | None
    values: dict[str, Spread | None] = field(default_factory=dict)
    """by metric, as the user named it, over the runs in `counted`"""
    out_of_fold: dict[str, Spread | None] = field(default_factory=dict)
    """the same for the joined predictions of all folds, over seeds; empty if folds are missing"""
    joined: dict[int | None, JoinedFolds] = field(default_factory=dict)
    """the joined predictions, by seed"""
    name: str = ""
    """given by the user"""

    @property
    def counted(self) -> list[RunRecord]:
        """The runs whose values the row shows: those of whole seeds, or without one those in the best state.

        A seed is whole if its run, or each of its folds, is complete. If folds are missing, and for a pruned
        configuration, the complete runs count: a search prunes after some of the folds.
        """
        if self.state == "complete":
            whole = [seed for seed in self.seeds if not self.missing_of(seed)]
            return [run for run in self.runs if run.seed in whole and run.state == "complete"]
        complete = [run for run in self.runs if run.state == "complete"]
        if self.state == "pruned":
            # The pruner compared the trial by all of these, so its value in a table is over the same ones.
            return [run for run in self.runs if run.state in ("complete", "pruned")]
        # Complete and incomplete runs are never averaged with each other: an incomplete one is at an earlier step.
        return complete or [run for run in self.runs if run.state == self.state]

    @property
    def state(self) -> State:
        """Pruned if any run was, else complete if a seed is whole, else the best state of the other runs."""
        states = {run.state for run in self.runs}
        if "pruned" in states:
            return "pruned"
        if any(not self.missing_of(seed) for seed in self.seeds):
            return "complete"
        return min(states - {"complete"} or {"unfinished"}, key=STATES.index)

    @property
    def states(self) -> dict[str, int]:
        """The number of runs in each state; a fold without a run is missing."""
        counts: Counter[str] = Counter(run.state for run in self.runs)
        counts["missing"] = sum(state is None for seed in self.seeds for state in self.missing_of(seed).values())
        return {state: counts[state] for state in (*STATES, "missing") if counts[state]}

    @property
    def seeds(self) -> list[int | None]:
        return list(dict.fromkeys(run.seed for run in self.runs))

    def missing_of(self, seed: int | None) -> dict[int | None, State | None]:
        """Return the folds of a seed that are not complete, with their state, which is None for a fold without a run.

        A run without folds counts as fold None.
        """
        runs = [run for run in self.runs if run.seed == seed]
        states = {run.fold: run.state for run in runs}
        # A fold that was never started does not leave a folder, so the expected folds come from the configuration.
        wanted = range(runs[0].folds) if runs[0].folds and runs[0].fold is not None else states
        return {fold: states.get(fold) for fold in wanted if states.get(fold) != "complete"}

    @property
    def note(self) -> str:
        """The notes of its runs, each once, "" if they have none."""
        return "; ".join(dict.fromkeys(run.note for run in self.runs if run.note))

    def mean(self, name: str) -> float | None:
        """Return the mean of a field of `RunRecord` over the counted runs that have it."""
        spread = spread_of(getattr(run, name) for run in self.counted)
        return spread.mean if spread else None

    @property
    def folder(self) -> Path:
        """The folder of a run, or the one that holds its seeds and folds."""
        return self.runs[0].folder if len(self.runs) == 1 else self.runs[0].folder.parent

    @property
    def config(self) -> dict[str, Any]:
        return {key: value for key, value in self.runs[0].config.items() if is_identity(key)}


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Return mean and sample standard deviation of the finite values; None if no value is finite."""
    # A run that diverged would make every mean NaN; `n` shows how many values are left.
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return None
    return Spread(statistics.fmean(finite), statistics.stdev(finite) if len(finite) > 1 else None, len(finite))


def is_identity(key: str) -> bool:
    """Return whether runs that differ in this key belong to different configurations."""
    return has_effect(key) and key not in REPEATED


def rows_of(runs: Iterable[RunRecord], metrics: Sequence[str] = ()) -> tuple[list[list[TableRow]], list[str]]:
    """Return tables of rows, best first, one for each metric that decides, and remarks on what was left out.

    `metrics` are `NAME`, of the set that decides, or `SET/NAME`. The first one sorts; without any, the metric that
    decides does. Raises UserError for a metric that no run has.
    """
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    rows, remarks = [], []
    for group in groups.values():
        kept, repeated = _without_repeated(group)
        if repeated:
            remarks.append(
                f"{counted(len(repeated), 'run')} left out, beside another with the same configuration, seed and fold: "
                + ", ".join(str(run.folder) for run in repeated)
            )
        # A job that failed before its first evaluation may lack the metric; it belongs to the same row.
        first = next((run for run in kept if run.metric), kept[0])
        rows.append(TableRow(kept, first.metric, first.set_name))
    _require(metrics, rows)
    tables: dict[str | None, list[TableRow]] = {}
    for row in rows:
        asked = metrics or ([row.metric] if row.metric else [])
        row.values = {
            name: spread_of(run.value(*split_metric(name, row.set_name)) for run in row.counted) for name in asked
        }
        tables.setdefault(metrics[0] if metrics else row.metric, []).append(row)
    return [sorted(table, key=_rank) for table in tables.values()], remarks


def join_predictions(row: TableRow) -> list[str]:
    """Join and score the held-out predictions of each seed whose folds are all complete.

    Returns a sentence for each seed whose folds do not belong together.
    """
    remarks = []
    for seed in row.seeds:
        runs = [run for run in row.runs if run.seed == seed]
        # Without one of the folds, some rows would lack a prediction, and the score would be that of other rows.
        if runs[0].fold is None or row.missing_of(seed):
            continue
        try:
            row.joined[seed] = join_folds([run.folder for run in sorted(runs, key=lambda run: run.fold or 0)])
        except UserError as error:
            remarks += error.problems
    for name in row.values:
        # The joined rows are those of the held-out set, so a metric of another set has no such value.
        set_name, metric = split_metric(name, row.set_name)
        if set_name == row.set_name and row.joined:
            row.out_of_fold[name] = spread_of(joined.metrics.get(metric) for joined in row.joined.values())
    return remarks


def missing_folds(row: TableRow) -> list[str]:
    """Return a sentence for each seed with missing folds, which names them and their states.

    The list is empty for a pruned trial.
    """
    if row.state == "pruned":
        return []
    found = []
    for seed in row.seeds:
        first, missing = next(run for run in row.runs if run.seed == seed), row.missing_of(seed)
        if first.fold is not None and missing:
            listed = ", ".join(f"{fold} ({state or 'no run'})" for fold, state in missing.items())
            found.append(
                f"seed {seed}, {path_text(first.folder)} and others: of {first.folds} folds are missing {listed}"
            )
    return found


def _identity(run: RunRecord) -> str:
    """Return a text that is equal for runs of one configuration; each trial of a search is a configuration."""
    config = {key: value for key, value in run.config.items() if is_identity(key)}
    # Two trials of a search may draw the same values, and are still two rows.
    trial = [run.config.get(f"trial.{key}") for key in ("storage", "study", "number")]
    return json.dumps([config, trial], sort_keys=True, default=str)


def _without_repeated(group: list[RunRecord]) -> tuple[list[RunRecord], list[RunRecord]]:
    """Keep one run for each seed and fold, the one in the best state or the last of these by path."""
    kept: dict[tuple[str, str], RunRecord] = {}
    for run in group:
        key = str(run.seed), str(run.fold)
        # <= prefers the later one by path, usually the repetition of an earlier run.
        if key not in kept or STATES.index(run.state) <= STATES.index(kept[key].state):
            kept[key] = run
    return list(kept.values()), [run for run in group if run not in kept.values()]


def split_metric(name: str, default_set: str | None) -> tuple[str | None, str]:
    """Return (set, metric) of `SET/NAME` or `NAME`."""
    set_name, slash, metric = name.rpartition("/")
    return (set_name if slash else default_set), metric


def _require(metrics: Sequence[str], rows: Sequence[TableRow]) -> None:
    measured = [row for row in rows if any(run.metrics for run in row.runs)]
    known = {
        text
        for row in measured
        for run in row.runs
        for set_name, values in run.metrics.items()
        for metric in values
        for text in ([f"{set_name}/{metric}", metric] if set_name == row.set_name else [f"{set_name}/{metric}"])
    }
    if unknown := [name for name in metrics if name not in known]:
        raise UserError(*(f"--metric is {name}, which no run here has; {hint(name, known)}" for name in unknown))


def lower_is_better(row: TableRow, name: str) -> bool:
    """Return whether lower values of a metric are better."""
    return split_metric(name, None)[1] in task_constants(row.runs[0].config).get("lower_is_better", ())


def _rank(row: TableRow) -> tuple[int, bool, float]:
    name, spread = next(iter(row.values.items()), ("", None))
    sign = 1 if lower_is_better(row, name) else -1
    return STATES.index(row.state), spread is None, sign * spread.mean if spread else 0.0
