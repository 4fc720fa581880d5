"""Two or more configurations side by side: their settings, their metrics, and the rows that only one gets right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nlu.config.choices import RUN, with_defaults
from nlu.config.errors import UserError
from nlu.config.resolving import resolve
from nlu.config.schema import flat
from nlu.config.sentences import counted, listed, path_text
from nlu.display.console_tables import metric_text, numbers, print_table, table_of, texts, value_text
from nlu.reports.flips import Flip, Flips, adjusted, compare, text_of
from nlu.reports.run_table import FACTS, Configuration, Spread, identity_of, missing_folds, rows_of, spreads_of
from nlu.reports.run_table import table_of as table_of_runs
from nlu.reports.runs import RUN_KEYS, RunRecord, find_runs, saved_config
from nlu.runs.predictions import kept_sets

MAX_TEXT = 100
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""names of the configurations, in the order in which they were given"""
LEVEL = 0.05
"""p below which one of two is called better"""
Values = dict[str, tuple[object, ...]]
"""by key, the value of each side"""


@dataclass(frozen=True)
class Pair:
    """Two configurations, and how their predictions of a set differ."""

    letters: str
    flips: Flips
    p_value: float
    """corrected for all pairs of the set"""

    @property
    def better(self) -> str:
        """The letter of the better one; empty if the difference may be chance."""
        if self.p_value >= LEVEL:
            return ""
        return self.letters[0] if self.flips.examples_lost > self.flips.examples_won else self.letters[1]


@dataclass
class Comparison:
    """The differences of several configurations and of their results."""

    rows: list[Configuration]
    runs: list[list[RunRecord]]
    """the runs of each whose mean is shown"""
    config: Values
    metrics: dict[str, tuple[Spread | None, ...]]
    """by SET/NAME"""
    remarks: list[str]
    """what was not compared, and why"""
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    """by set"""


def comparison_of(folders: Sequence[Path], examples: int = 0) -> Comparison:
    """Read and compare runs, or folders with the seeds and folds of one configuration each.

    Runs of two configurations are compared seed by seed and fold by fold. The first `examples` rows that only one of a
    pair predicts right are kept. Raises UserError if a folder is named twice or does not hold exactly one
    configuration.
    """
    if len(folders) > len(LETTERS):
        raise UserError(f"{len(folders)} folders are named, but at most {len(LETTERS)} can be compared; name fewer")
    resolved = [folder.resolve() for folder in folders]
    # A configuration compared with itself would count as further tests, and their correction would weaken the others.
    if twice := [str(folder) for place, folder in enumerate(folders) if resolved[place] in resolved[:place]]:
        raise UserError(*(f"{folder} is named twice; name each once" for folder in twice))
    rows = [one_row(folder) for folder in folders]
    runs, remarks = _comparable(rows)
    # Seed and fold are compared only if each configuration is a single run.
    are_single = all(len(row.runs) == 1 for row in rows)
    config = differences([identity_of(row.runs[0].config, is_single=are_single) for row in rows])
    found = Comparison(rows, runs, config, _metrics_of(rows, runs), remarks)
    for name, flips in sorted(_flips(found, examples).items()):
        # Corrected within a set: each set is one question, with a test for every pair.
        p_values = adjusted([one.p_value for one in flips.values()])
        found.pairs[name] = [
            Pair(letters, one, p_value) for (letters, one), p_value in zip(flips.items(), p_values, strict=True)
        ]
    return found


def one_row(folder: Path) -> Configuration:
    """Return the configuration of a folder. Raises UserError if it does not hold exactly one."""
    runs, unread = find_runs([folder])
    if not runs:
        raise UserError(*(unread or [f"{folder} holds no run; give the folder of one"]))
    tables, _ = rows_of(runs)
    rows = [row for table in tables for row in table]
    if len(rows) > 1:
        shown = listed([str(row.runs[0].folder) for row in rows], 4)
        raise UserError(f"{folder} holds {len(rows)} configurations, not one; give one of {shown}")
    return rows[0]


def _comparable(rows: Sequence[Configuration]) -> tuple[list[list[RunRecord]], list[str]]:
    """Return the runs of each configuration whose mean is shown, and remarks.

    If a configuration lacks folds, only seeds and folds that all configurations have are shown. Raises UserError if
    two do not share a metric, such as runs of different tasks.
    """
    # Losses of different tasks and loss functions cannot be compared.
    metrics = [{metric for run in row.counted for held in run.metrics.values() for metric in held} for row in rows]
    for letter, row, found in list(zip(LETTERS, rows, metrics, strict=False))[1:]:
        if metrics[0] - {"loss"} and found - {"loss"} and (metrics[0] & found) <= {"loss"}:
            raise UserError(
                f"{LETTERS[0]} ({rows[0].runs[0].folder}) has {listed(sorted(metrics[0] - {'loss'}), 3)}, and {letter} "
                f"({row.runs[0].folder}) has {listed(sorted(found - {'loss'}), 3)}: they have no metric in common and "
                "cannot be compared; give runs of one task"
            )
    sides = [row.counted for row in rows]
    lacking = [
        f"{letter}: {sentence}" for letter, row in zip(LETTERS, rows, strict=False) for sentence in missing_folds(row)
    ]
    places = [{row.place_of(run) for run in row.counted} for row in rows]
    shared = set.intersection(*places)
    if not lacking or all(place == shared for place in places):
        return sides, []
    if not shared:
        return sides, [*lacking, "metrics: the configurations share no seed and fold, so the means are of other rows"]
    sides = [[run for run in row.counted if row.place_of(run) in shared] for row in rows]
    return sides, [*lacking, "metrics: the means are over the folds that all have"]


def differences(sides: Sequence[Mapping[str, object]]) -> Values:
    """Return the keys whose values differ, with the value of each side, None for a side that lacks the key."""
    keys = dict.fromkeys(key for side in sides for key in side)
    values = {key: tuple(side.get(key) for side in sides) for key in keys}
    return {key: held for key, held in values.items() if any(value != held[0] for value in held)}


def _metrics_of(
    rows: Sequence[Configuration], runs: Sequence[Sequence[RunRecord]]
) -> dict[str, tuple[Spread | None, ...]]:
    found = spreads_of(table_of_runs(rows, runs))
    names = dict.fromkeys(name for spreads in found for name in spreads if name not in FACTS)
    return {name: tuple(spreads.get(name) for spreads in found) for name in names}


def _flips(found: Comparison, examples: int) -> dict[str, dict[str, Flips]]:
    """Return by set the flips of each pair of letters, and add a remark for each pair that cannot be compared."""
    flips: dict[str, dict[str, Flips]] = {}
    for (first, a), (second, b) in combinations(zip(LETTERS, found.rows, strict=False), 2):
        who, pairs = f"{first} and {second}", _pairs_of(a, b)
        if not pairs:
            found.remarks.append(f"{who}: no run of one has seed and fold of a run of the other, so no predictions are "
                                 "compared")  # fmt: skip
            continue
        names = set.intersection(*(set(kept_sets(run.folder)) for pair in pairs for run in pair))
        if not names:
            found.remarks.append(f"{who}: they kept predictions of none of the same set")
        for name in sorted(names):
            try:
                flips.setdefault(name, {})[first + second] = compare(pairs, name, examples)
            except UserError as error:
                found.remarks += [f"{who}: {problem}" for problem in error.problems]
    return {name: of_set for name, of_set in flips.items() if of_set}


def _pairs_of(first: Configuration, second: Configuration) -> list[tuple[RunRecord, RunRecord]]:
    """Return the runs of two configurations with equal seed and fold; two single runs are always a pair."""
    # Two runs that were trained with different seeds still predicted the same rows.
    if len(first.counted) == len(second.counted) == 1:
        return [(first.counted[0], second.counted[0])]
    others = {second.place_of(run): run for run in second.counted}
    return [(run, others[place]) for run in first.counted if (place := first.place_of(run)) in others]


def print_comparison(found: Comparison) -> None:
    """Print keys and metrics with a column for each configuration, then a table of pairs for each set."""
    letters = LETTERS[: len(found.rows)]
    for letter, row, compared in zip(letters, found.rows, found.runs, strict=True):
        print_table(f"{letter}  {path_text(row.folder)}  {_described(row, compared)}")
    print_table("")
    print_keys(found.config)
    with_sd = any(side and side.sd is not None for sides in found.metrics.values() for side in sides)
    with_difference = numbers("B - A") * (len(letters) == 2)
    columns = numbers(*(header for letter in letters for header in (letter, *["sd"] * with_sd)))
    table = table_of([*texts("metric"), *columns, *with_difference])
    for name, sides in found.metrics.items():
        cells = []
        for side in sides:
            deviation = metric_text(side.sd) if side and side.sd is not None else ""
            cells += [metric_text(side.mean if side else None), *[deviation] * with_sd]
        first, second = sides[:2]
        difference = f"{second.mean - first.mean:+.4f}" if first and second else "-"
        table.add_row(name, *cells, *[difference] * len(with_difference))
    print_table(table, "")
    for name, pairs in found.pairs.items():
        _print_pairs(name, pairs)
    for remark in found.remarks:
        print_table(remark)


def _described(row: Configuration, compared: Sequence[RunRecord]) -> str:
    if len(row.runs) == 1:
        fold = "" if row.runs[0].fold is None else f"fold {row.runs[0].fold} of {row.runs[0].folds}, "
        return f"{fold}{row.runs[0].state}"
    return f"mean of {counted(len(compared), 'run')}, {row.state}"


def print_keys(values: Values) -> None:
    """Print a line for each key with its value on each side, or that no key differs."""
    if values:
        letters = LETTERS[: len(next(iter(values.values())))]
        lines = ([key, *map(value_text, held)] for key, held in values.items())
        print_table(table_of(texts("config", *letters), lines), "")
    else:
        print_table("no key of the configuration differs", "")


def _print_pairs(set_name: str, pairs: Sequence[Pair]) -> None:
    several, is_corrected = any(pair.flips.pairs > 1 for pair in pairs), len(pairs) > 1
    only = "oftener right" if several else "only right"
    counts = numbers("predictions", "both right", "both wrong", f"{only} in the first", f"{only} in the second")
    p_values = numbers("p", *["p corrected"] * is_corrected)
    table = table_of([*texts("pair"), *counts, *p_values, *texts(f"better (p < {LEVEL})")])
    for pair in pairs:
        flips = pair.flips
        cells = (flips.rows, flips.both_right, flips.both_wrong, flips.examples_lost, flips.examples_won)
        p_cells = [f"{flips.p_value:.2g}", *[f"{pair.p_value:.2g}"] * is_corrected]
        table.add_row(" ".join(pair.letters), *(f"{count:,}" for count in cells), *p_cells, pair.better)
    correction = f"; corrected for {counted(len(pairs), 'pair')} by Benjamini and Hochberg" if is_corrected else ""
    print_table(f"{set_name}: McNemar's test, exact{correction}", table, "")
    if several:
        print_table("rows of several seeds are each counted once: by which of the two was right with more of them", "")
    for pair in pairs:
        for letter, shown in zip(reversed(pair.letters), (pair.flips.first_won, pair.flips.first_lost), strict=True):
            if shown:
                _print_flips(f"only right in {letter}", pair.letters, shown, several)


def _print_flips(title: str, letters: str, flips: Sequence[Flip], several: bool) -> None:
    table = table_of([*numbers("seed", "fold") * several, *numbers("row"), *texts("label", *letters, "text")])
    for flip in flips:
        own = [value_text(value) for value in (flip.run.seed, flip.run.fold)] * several
        answers = [
            f"{_spoken(answer)} {row['probability']:.2f}" if "probability" in row else _spoken(answer)
            for row, answer in zip((flip.row, flip.other), flip.answers, strict=True)
        ]
        text = text_of(flip.row, MAX_TEXT) or text_of(flip.other, MAX_TEXT)
        table.add_row(*own, str(flip.row.get("row", "")), _spoken(flip.row["label"]), *answers, text)
    print_table(title, table, "")


def _spoken(value: object) -> str:
    """Return a label, a list of labels, or spans as `type first-last`."""
    if isinstance(value, list):
        spans = (f"{one[2]} {one[0]}-{one[1]}" if isinstance(one, list) else str(one) for one in value)
        return ", ".join(spans) or "none"
    return str(value)


def print_planned(folder: Path, file: Path) -> None:
    """Print the keys in which a run, or the runs of one configuration, differ from a composed configuration in a file.

    Keys that either lacks have their defaults. The seed is compared only with a single run. Raises UserError if the
    file does not hold the configuration of a run.
    """
    row = one_row(folder)
    # Both sides get the defaults of this version, so a key that is new since the run does not count as a difference.
    own = flat(with_defaults(saved_config(row.runs[0].folder), RUN))
    known = [identity_of(side, is_single=len(row.runs) == 1) for side in (own, flat(_config_in(file)))]
    print_table(f"A  {path_text(row.folder)}", f"B  {file}", "")
    print_keys(differences(known))


def _config_in(file: Path) -> dict[str, object]:
    try:
        config = OmegaConf.load(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; give a file of a configuration") from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise UserError(
            f"{file} is not YAML ({str(error).partition(chr(10))[0]}); give a file of a configuration"
        ) from error
    if not isinstance(config, DictConfig) or not RUN_KEYS <= config.keys():
        raise UserError(
            f"{file} is not the configuration of a run; python -m nlu.train KEY=VALUE ... --cfg job prints one"
        )
    found, problems = resolve(config)
    if problems:
        raise UserError(*(f"{file}: {problem}" for problem in problems))
    return with_defaults(found, RUN)
