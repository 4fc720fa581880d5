"""The table of runs, in Arrow, and its rows together by configuration, over seeds, folds and own splits.

`table_of` has a row for each run: its facts, the metrics of each set (SET/NAME, finite numbers only) and the keys of
its configuration (config/KEY, as JSON). All reports are views of it: of the means of its numbers, and of the columns in
which its rows differ.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import compute

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.schema import has_effect
from nlu.config.sentences import counted, path_text
from nlu.metrics.repeats import JoinedFolds, join_folds
from nlu.reports.runs import STATES, RunRecord, State, task_constants

REPEATED = ("seed", "seeds", "fold")
"""keys in which the runs of one configuration differ"""
SPLIT = ("data.dev", "data.test", "data.train")
"""keys that name files, of which a user may have one for each split"""
NUMBER = re.compile(
    r'((?<![a-z])(?:split|fold|part|cv)[_-]?)\d+(?=[^/"]*")|(?<!\d)(?<!\d\.)\d{1,2}(?=(?:\.[a-z]\w*)*")', re.IGNORECASE
)
"""the number of a split in the name of a file in JSON, behind such a word or, below 100, at the end of the stem"""
FACTS = ("best_step", "examples", "examples_per_s")
"""numbers of a run beside its metrics"""
CONFIG = "config/"
"""before the names of columns with the keys of the configuration"""
GROUP = "configuration"
"""the column with the number of a run's configuration"""


class Repeat(NamedTuple):
    """What distinguishes the runs of a configuration beside the fold."""

    seed: int | None
    split: str
    """the dev files, as JSON, of a configuration with several of its user's own splits; else empty"""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation, which is None for a single value."""

    mean: float
    sd: float | None
    n: int


@dataclass
class Configuration:
    """The runs of one configuration."""

    runs: list[RunRecord]
    metric: str | None
    set_name: str | None
    spreads: dict[str, Spread] = field(default_factory=dict)
    """by SET/NAME and by the names in FACTS, over the runs in `counted`"""
    asked: dict[str, str] = field(default_factory=dict)
    """the metrics that are shown, as SET/NAME, by the name that the user gave them"""
    joined: dict[int | None, JoinedFolds] = field(default_factory=dict)
    """the joined predictions of all folds, by seed"""
    name: str = ""
    """given by the user"""

    @property
    def values(self) -> dict[str, Spread | None]:
        """The metrics that are shown."""
        return {name: self.spreads.get(column) for name, column in self.asked.items()}

    @property
    def out_of_fold(self) -> dict[str, Spread | None]:
        """The same of the joined predictions, over seeds: none for metrics of another set than the held-out one."""
        held_out = f"{self.set_name}/"
        return {
            name: spread_of([one.metrics.get(column.removeprefix(held_out)) for one in self.joined.values()])
            for name, column in self.asked.items()
            if self.joined and column.startswith(held_out)
        }

    @property
    def counted(self) -> list[RunRecord]:
        """The runs whose values are shown: those of whole repeats, or without one those in the best state.

        A repeat is whole if its run, or each of its folds, is complete. If folds are missing, and for a pruned
        configuration, the complete runs count: a search prunes after some of the folds.
        """
        if self.state == "complete":
            whole = [repeat for repeat in self.repeats if not self.missing_of(repeat)]
            return [run for run in self.runs if self.repeat_of(run) in whole and run.state == "complete"]
        complete = [run for run in self.runs if run.state == "complete"]
        if self.state == "pruned":
            # The pruner compared the trial by all of these, so its value in a table is over the same ones.
            return [run for run in self.runs if run.state in ("complete", "pruned")]
        # Complete and incomplete runs are never averaged with each other: an incomplete one is at an earlier step.
        return complete or [run for run in self.runs if run.state == self.state]

    @property
    def state(self) -> State:
        """Pruned if any run was, else complete if a repeat is whole, else the best state of the other runs."""
        states = {run.state for run in self.runs}
        if "pruned" in states:
            return "pruned"
        if any(not self.missing_of(repeat) for repeat in self.repeats):
            return "complete"
        return min(states - {"complete"} or {"unfinished"}, key=STATES.index)

    @property
    def states(self) -> dict[str, int]:
        """The number of runs in each state; a fold without a run is missing."""
        counts: Counter[str] = Counter(run.state for run in self.runs)
        counts["missing"] = sum(state is None for repeat in self.repeats for state in self.missing_of(repeat).values())
        return {state: counts[state] for state in (*STATES, "missing") if counts[state]}

    @property
    def has_splits(self) -> bool:
        """Whether its runs were scored on several splits of the user's own."""
        return len({split_of(run) for run in self.runs}) > 1

    def repeat_of(self, run: RunRecord) -> Repeat:
        return Repeat(run.seed, split_of(run) if self.has_splits else "")

    def place_of(self, run: RunRecord) -> tuple[Repeat, int | None]:
        """Return what distinguishes a run from the others of the configuration."""
        return self.repeat_of(run), run.fold

    @property
    def repeats(self) -> list[Repeat]:
        return list(dict.fromkeys(map(self.repeat_of, self.runs)))

    def missing_of(self, repeat: Repeat) -> dict[int | None, State | None]:
        """Return the folds of a repeat that are not complete, with their state, which is None for one without a run.

        A run without folds counts as fold None.
        """
        runs = [run for run in self.runs if self.repeat_of(run) == repeat]
        states = {run.fold: run.state for run in runs}
        # A fold that was never started does not leave a folder, so the expected folds come from the configuration.
        wanted = range(runs[0].folds) if runs[0].folds and runs[0].fold is not None else states
        return {fold: states.get(fold) for fold in wanted if states.get(fold) != "complete"}

    @property
    def note(self) -> str:
        """The notes of its runs, each once, "" if they have none."""
        return "; ".join(dict.fromkeys(run.note for run in self.runs if run.note))

    def mean(self, name: str) -> float | None:
        """Return the mean of a column over the counted runs that have it."""
        return self.spreads[name].mean if name in self.spreads else None

    @property
    def folder(self) -> Path:
        """The folder of a run, or the one that holds its seeds and folds."""
        return self.runs[0].folder if len(self.runs) == 1 else self.runs[0].folder.parent

    @property
    def config(self) -> dict[str, object]:
        """The keys that belong to the configuration, without those in which its runs differ."""
        left_out = SPLIT if self.has_splits else ()
        return {key: value for key, value in identity_of(self.runs[0].config).items() if key not in left_out}


def table_of(configurations: Sequence[Configuration], runs: Sequence[Sequence[RunRecord]] | None = None) -> pa.Table:
    """Return the table of the runs of configurations, by default of those whose values are shown."""
    rows = [
        {
            GROUP: number,
            "folder": str(run.folder),
            "state": run.state,
            "seed": run.seed,
            "fold": run.fold,
            **{name: _finite(getattr(run, name)) for name in FACTS},
            **{f"{set_name}/{name}": _finite(value) for set_name, held in run.metrics.items()
               for name, value in held.items()},
            **{f"{CONFIG}{key}": as_json(value) for key, value in run.config.items()},
        }
        for number, of_one in enumerate(runs or [one.counted for one in configurations])
        for run in of_one
    ]  # fmt: skip
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def spreads_of(table: pa.Table) -> list[dict[str, Spread]]:
    """Return the spread of each column of numbers, by configuration."""
    names = [one.name for one in table.schema if one.type == pa.float64()]
    sd = compute.VarianceOptions(ddof=1)
    found = table.group_by(GROUP, use_threads=False).aggregate(
        [(name, *how) for name in names for how in (("mean",), ("stddev", sd), ("count",))]
    )
    return [
        {
            name: Spread(row[f"{name}_mean"], row[f"{name}_stddev"], row[f"{name}_count"])
            for name in names
            if row[f"{name}_count"]
        }
        for row in found.sort_by(GROUP).to_pylist()
    ]


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """Return mean and sample standard deviation of the finite values; None if no value is finite."""
    table = pa.table({GROUP: [0] * len(values), "value": pa.array(map(_finite, values), pa.float64())})
    return spreads_of(table)[0].get("value")


def _finite(value: float | None) -> float | None:
    # A run that diverged would make every mean NaN; `n` shows how many values are left.
    return float(value) if value is not None and math.isfinite(value) else None


def as_json(value: object) -> str:
    """Return a value of a configuration as text, which is equal for equal values, lists too."""
    return json.dumps(value, sort_keys=True, default=str)


def split_of(run: RunRecord) -> str:
    """Return the dev files of a run, as JSON."""
    return as_json({key: value for key, value in run.config.items() if _is_of(key, "data.dev")})


def scored_on(run: RunRecord) -> str:
    """Return the rows on which a run chooses its best weights: a file, or those held out of the training files."""
    config, folds = run.config, run.config.get("folds.count")
    named = {key.removeprefix("data.dev."): value for key, value in config.items() if _is_of(key, "data.dev") and value}
    file = "+".join(str(value) for value in (named or {"": config.get("data.train", "data")}).values())
    share = f"{folds} folds of " if folds else "" if named else f"{config.get('data.dev_fraction', 'a part')} of "
    return f"{share}{file}" + (f" (max_rows={most})" if (most := config.get("data.max_rows")) else "")


def _is_of(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")


def is_identity(key: str) -> bool:
    """Return whether runs that differ in this key belong to different configurations."""
    return has_effect(key) and key not in REPEATED


def identity_of(config: Mapping[str, object], *, is_single: bool = False) -> dict[str, object]:
    """Return the keys of a flat configuration that are compared; seed and fold only if `is_single`."""
    return {key: value for key, value in config.items() if (has_effect if is_single else is_identity)(key)}


def rows_of(
    runs: Iterable[RunRecord], metrics: Sequence[str] = (), names: Mapping[Path, str] | None = None
) -> tuple[list[list[Configuration]], list[str]]:
    """Return tables of configurations, best first, one for each metric that decides, and remarks on what was left out.

    `metrics` are `NAME`, of the set that decides, or `SET/NAME`. The first one sorts; without any, the metric that
    decides does. Runs in a folder of `names` are kept apart from others, and have its name. Raises UserError for a
    metric that no run has.
    """
    rows, remarks = [], []
    for name, group in _grouped(runs, names or {}):
        kept, repeated = _without_repeated(group)
        if repeated:
            remarks.append(
                f"{counted(len(repeated), 'run')} left out, beside another with the same configuration, seed and fold: "
                + ", ".join(str(run.folder) for run in repeated)
            )
        # A job that failed before its first evaluation may lack the metric; it belongs to the same row.
        first = next((run for run in kept if run.metric), kept[0])
        rows.append(Configuration(kept, first.metric, first.set_name, name=name))
    _require(metrics, rows)
    tables: dict[str | None, list[Configuration]] = {}
    for row, spreads in zip(rows, spreads_of(table_of(rows)) if rows else [], strict=True):
        asked = metrics or ([row.metric] if row.metric else [])
        row.spreads = spreads
        row.asked = {name: name if "/" in name else f"{row.set_name}/{name}" for name in asked}
        tables.setdefault(metrics[0] if metrics else row.metric, []).append(row)
    return [sorted(table, key=_rank) for table in tables.values()], remarks


def _grouped(runs: Iterable[RunRecord], names: Mapping[Path, str]) -> list[tuple[str, list[RunRecord]]]:
    """Return the runs of each configuration, with the name that the user gave them.

    Files of dev, test and train whose names differ only in NUMBER are splits of one configuration, if each dev file has
    one train file: `data.dev=split0.tsv` and `data.dev=split1.tsv`.
    """
    alike: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        inside = [folder for folder in names if run.folder.is_relative_to(folder)]
        # Named folders may lie within one another; the innermost one names the run.
        name = names[max(inside, key=lambda folder: len(folder.parts))] if inside else ""
        alike.setdefault((name, _identity(run, are_splits_equal=True)), []).append(run)
    found: dict[tuple[str, str], list[RunRecord]] = {}
    for (name, identity), group in alike.items():
        files = {(split_of(run), as_json(run.config.get("data.train"))) for run in group}
        are_splits = len(files) == len({dev for dev, _ in files}) == len({_identity(run) for run in group})
        for run in group:
            found.setdefault((name, identity if are_splits else _identity(run)), []).append(run)
    return [(name, group) for (name, _), group in found.items()]


def _identity(run: RunRecord, *, are_splits_equal: bool = False) -> str:
    """Return a text that is equal for runs of one configuration; each trial of a search is a configuration."""
    config = identity_of(run.config)
    if are_splits_equal:
        config = {
            key: NUMBER.sub(r"\1#", as_json(value)) if any(_is_of(key, group) for group in SPLIT) else value
            for key, value in config.items()
        }
    # Two trials of a search may draw the same values, and are still two rows.
    trial = [run.config.get(f"trial.{key}") for key in ("storage", "study", "number")]
    return as_json([config, trial])


def _without_repeated(group: list[RunRecord]) -> tuple[list[RunRecord], list[RunRecord]]:
    """Keep one run for each seed, fold and split, the one in the best state or the last of these by path."""
    kept: dict[tuple[str, ...], RunRecord] = {}
    for run in group:
        key = str(run.seed), str(run.fold), split_of(run)
        # <= prefers the later one by path, usually the repetition of an earlier run.
        if key not in kept or STATES.index(run.state) <= STATES.index(kept[key].state):
            kept[key] = run
    return list(kept.values()), [run for run in group if run not in kept.values()]


def _require(metrics: Sequence[str], rows: Sequence[Configuration]) -> None:
    known = {
        text
        for row in rows
        for run in row.runs
        for set_name, values in run.metrics.items()
        for metric in values
        for text in ([f"{set_name}/{metric}", metric] if set_name == row.set_name else [f"{set_name}/{metric}"])
    }
    if unknown := [name for name in metrics if name not in known]:
        raise UserError(*(f"--metric is {name}, which no run here has; {hint(name, known)}" for name in unknown))


def lower_is_better(row: Configuration, name: str) -> bool:
    """Return whether lower values of a metric are better."""
    return name.rpartition("/")[2] in task_constants(row.runs[0].config).get("lower_is_better", ())


def _rank(row: Configuration) -> tuple[int, bool, float]:
    name, spread = next(iter(row.values.items()), ("", None))
    sign = 1 if lower_is_better(row, name) else -1
    return STATES.index(row.state), spread is None, sign * spread.mean if spread else 0.0


def join_predictions(row: Configuration) -> list[str]:
    """Join and score the held-out predictions of each seed whose folds are all complete.

    Returns a sentence for each seed whose folds do not belong together.
    """
    remarks = []
    for repeat in row.repeats:
        runs = [run for run in row.runs if row.repeat_of(run) == repeat]
        # Without one of the folds, some rows would lack a prediction, and the score would be that of other rows.
        if runs[0].fold is None or row.missing_of(repeat):
            continue
        try:
            row.joined[repeat.seed] = join_folds([run.folder for run in sorted(runs, key=lambda run: run.fold or 0)])
        except UserError as error:
            remarks += error.problems
    return remarks


def missing_folds(row: Configuration) -> list[str]:
    """Return a sentence for each seed with missing folds, which names them and their states.

    The list is empty for a pruned trial.
    """
    if row.state == "pruned":
        return []
    found = []
    for repeat in row.repeats:
        first, missing = next(run for run in row.runs if row.repeat_of(run) == repeat), row.missing_of(repeat)
        if first.fold is not None and missing:
            named = ", ".join(f"{fold} ({state or 'no run'})" for fold, state in missing.items())
            found.append(
                f"seed {repeat.seed}, {path_text(first.folder)} and others: of {first.folds} folds are missing {named}"
            )
    return found
