"""The difference of two configurations: their settings, their metrics, and the rows that flipped."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.schema import has_effect
from nlu.config.words import counted, listed, path_text, shortened
from nlu.display.tables import metric_text, numbers, print_table, table_of, texts, value_text
from nlu.reports.aggregate import Spread, TableRow, is_identity, missing_folds, rows_of, spread_of
from nlu.reports.flips import Flip, Flips, compare, texts_of
from nlu.reports.runs import RunRecord, find_runs
from nlu.runs.predictions import kept_sets
from nlu.storage.files import plain

MAX_TEXT = 100
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""names of the configurations, in the order in which they were given"""
Values = dict[str, tuple[object, ...]]
"""by key, the value of each side"""


@dataclass
class Difference:
    """The differences of two configurations and of their results."""

    first: TableRow
    second: TableRow
    runs: list[list[RunRecord]] = field(default_factory=list)
    """the compared runs of each"""
    config: Values = field(default_factory=dict)
    provenance: Values = field(default_factory=dict)
    """code, versions and devices"""
    metrics: dict[str, tuple[Spread | None, ...]] = field(default_factory=dict)
    """by SET/NAME"""
    flips: dict[str, Flips] = field(default_factory=dict)
    """by set"""
    remarks: list[str] = field(default_factory=list)
    """what was not compared, and why"""


def difference_of(first: Path, second: Path, examples: int = 5) -> Difference:
    """Read and compare two runs, or two folders with the seeds and folds of one configuration each.

    The first `examples` flipped rows each way are kept. Raises UserError if a folder does not hold exactly one
    configuration.
    """
    found = Difference(one_row(first), one_row(second))
    rows = [found.first, found.second]
    found.config = config_differences(rows)
    found.runs, found.remarks = comparable(rows)
    found.provenance = differences([_provenance(runs[0]) for runs in found.runs])
    found.metrics = metrics_of(found.runs)
    _compare_predictions(found, examples)
    return found


def one_row(folder: Path) -> TableRow:
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


def comparable(rows: Sequence[TableRow]) -> tuple[list[list[RunRecord]], list[str]]:
    """Return the runs of each configuration whose mean is shown, and remarks.

    If a configuration lacks folds, only seeds and folds that all configurations have are shown. Raises UserError if
    two do not share a metric, such as runs of different tasks.
    """
    _require_common_metrics(rows)
    sides = [row.counted for row in rows]
    lacking = {letter: missing_folds(row) for letter, row in zip(LETTERS, rows, strict=False)}
    places = [{(run.seed, run.fold) for run in side} for side in sides]
    shared = set.intersection(*places)
    if not any(lacking.values()) or all(place == shared for place in places):
        return sides, []
    remarks = [f"{letter}: {sentence}" for letter, sentences in lacking.items() for sentence in sentences]
    others = "the other" if len(rows) == 2 else "every other"
    if not shared:
        remarks.append(f"metrics: no run of one has seed and fold of a run of {others}, so the means are of other rows")
        return sides, remarks
    remarks.append(f"metrics: the means are over the folds that {'both' if len(rows) == 2 else 'all'} have")
    return [[run for run in side if (run.seed, run.fold) in shared] for side in sides], remarks


def _require_common_metrics(rows: Sequence[TableRow]) -> None:
    # Losses of different tasks and loss functions cannot be compared.
    metrics = [
        {metric for run in row.counted for held in run.metrics.values() for metric in held} - {"loss"} for row in rows
    ]
    for letter, row, found in list(zip(LETTERS, rows, metrics, strict=False))[1:]:
        if metrics[0] and found and metrics[0].isdisjoint(found):
            raise UserError(
                f"{LETTERS[0]} ({rows[0].runs[0].folder}) has {listed(sorted(metrics[0]), 3)}, and {letter} "
                f"({row.runs[0].folder}) has {listed(sorted(found), 3)}: they have no metric in common and "
                "cannot be compared; give runs of one task"
            )


def config_differences(rows: Sequence[TableRow]) -> Values:
    """Return the keys whose values differ between configurations, with the value of each.

    Seed and fold are compared only if each configuration is a single run.
    """
    are_single = all(len(row.runs) == 1 for row in rows)
    return differences([identity_of(row.runs[0].config, is_single=are_single) for row in rows])


def identity_of(config: Mapping[str, object], *, is_single: bool) -> dict[str, object]:
    """Return the keys of a flat configuration that are compared; seed and fold only if `is_single`."""
    return {key: value for key, value in config.items() if (has_effect if is_single else is_identity)(key)}


def _provenance(run: RunRecord) -> dict[str, object]:
    """Return commit, versions and devices of the last start, as far as the run recorded them."""
    try:
        start = json.loads((run.folder / "provenance.json").read_text(encoding="utf-8"))["starts"][-1]
    except (OSError, ValueError, KeyError, IndexError):
        return {}
    git = start.get("git") or {}
    facts: dict[str, object] = {
        "commit": (git.get("commit") or "")[:12] or None,
        "uncommitted changes": git.get("dirty"),
    }
    facts |= {f"{name} version": version for name, version in (start.get("versions") or {}).items()}
    return facts | {"devices": ", ".join(start.get("devices") or []), "processes": start.get("world_size")}


def differences(sides: Sequence[Mapping[str, object]]) -> Values:
    """Return the keys whose values differ, with the value of each side, None for a side that lacks the key."""
    keys = dict.fromkeys(key for side in sides for key in side)
    values = {key: tuple(side.get(key) for side in sides) for key in keys}
    return {key: held for key, held in values.items() if any(value != held[0] for value in held)}


def metrics_of(sides: Sequence[Sequence[RunRecord]]) -> dict[str, tuple[Spread | None, ...]]:
    """Return mean and deviation of each metric over the runs of each side, by SET/NAME."""
    names: dict[tuple[str, str], None] = {}
    for side in sides:
        for run in side:
            names |= {(set_name, metric): None for set_name, held in run.metrics.items() for metric in held}
    return {
        f"{set_name}/{metric}": tuple(spread_of(run.value(set_name, metric) for run in side) for side in sides)
        for set_name, metric in names
    }


def _compare_predictions(found: Difference, examples: int) -> None:
    pairs = pairs_of(*found.runs)
    if not pairs:
        found.remarks.append("predictions: no run of one has seed and fold of a run of the other, so none are compared")
        return
    shared = shared_sets(pairs)
    if not shared:
        found.remarks.append("predictions: they kept none of the same set")
    for name in shared:
        try:
            found.flips[name] = compare(pairs, name, examples)
        except UserError as error:
            found.remarks += [f"predictions: {problem}" for problem in error.problems]


def shared_sets(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[str]:
    """Return the names of the sets whose predictions all these runs kept."""
    return sorted(set.intersection(*(set(kept_sets(run.folder)) for pair in pairs for run in pair)))


def pairs_of(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """Return the runs of two configurations with equal seed and fold; two single runs are always a pair."""
    # Two runs that were trained with different seeds still predicted the same rows.
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    others = {(run.seed, run.fold): run for run in second}
    return [(run, others[run.seed, run.fold]) for run in first if (run.seed, run.fold) in others]


def print_difference(found: Difference) -> None:
    """Print the differences, with the flipped rows that were kept."""
    print_sides((found.first, found.second), found.runs)
    print_values("config", found.config, "no key of the configuration differs")
    print_values("made with", found.provenance, "")
    _print_metrics(found)
    for set_name, flips in found.flips.items():
        _print_flips(set_name, flips)
    for remark in found.remarks:
        print_table(remark)


def print_sides(rows: Sequence[TableRow], runs: Sequence[Sequence[RunRecord]]) -> None:
    """Print the letter of each configuration, its folder and its state."""
    for letter, row, compared in zip(LETTERS, rows, runs, strict=False):
        print_table(f"{letter}  {path_text(row.folder)}  {_runs(row, compared)}")
    print_table("")


def _runs(row: TableRow, compared: Sequence[RunRecord]) -> str:
    if len(row.runs) == 1:
        fold = "" if row.runs[0].fold is None else f"fold {row.runs[0].fold} of {row.runs[0].folds}, "
        return f"{fold}{row.runs[0].state}"
    return f"mean of {counted(len(compared), 'run')}, {row.state}"


def print_values(title: str, values: Values, otherwise: str) -> None:
    """Print a line for each key with its value on each side; without keys print `otherwise`."""
    if values:
        letters = LETTERS[: len(next(iter(values.values())))]
        lines = ([key, *map(value_text, held)] for key, held in values.items())
        print_table(table_of(texts(title, *letters), lines), "")
    elif otherwise:
        print_table(otherwise, "")


def _print_metrics(found: Difference) -> None:
    with_sd = any(side and side.sd is not None for pair in found.metrics.values() for side in pair)
    sides = numbers("A", *["sd"] * with_sd, "B", *["sd"] * with_sd, "B - A")
    table = table_of([*texts("metric"), *sides])
    for name, (first, second) in found.metrics.items():
        difference = f"{second.mean - first.mean:+.4f}" if first and second else "-"
        table.add_row(name, *spread_cells((first, second), with_sd), difference)
    print_table(table, "")


def spread_cells(sides: Sequence[Spread | None], with_sd: bool) -> list[str]:
    """Return the mean of each side, each followed by the standard deviation if `with_sd`."""
    cells = []
    for side in sides:
        cells.append(metric_text(side.mean if side else None))
        cells += [metric_text(side.sd) if side and side.sd is not None else ""] * with_sd
    return cells


def _print_flips(set_name: str, flips: Flips) -> None:
    chance = f"by chance alone: p = {flips.test.p_value:.2g}, McNemar, {flips.test.method}"
    several = flips.pairs > 1
    print_table(
        f"{set_name}: {flips.rows:,} {f'predictions by {flips.pairs} pairs of runs' if several else 'rows'}, "
        f"{flips.both_right:,} right in both, {flips.both_wrong:,} wrong in both ({flips.moved:,} of them in another "
        f"way); {flips.won:,} only right in B, {flips.lost:,} only right in A{'' if several else f' ({chance})'}"
    )
    if several:
        print_table(
            f"rows, each counted once: {flips.examples_won:,} oftener right in B, {flips.examples_lost:,} oftener "
            f"right in A ({chance})"
        )
    for title, shown in (("only right in B", flips.first_won), ("only right in A", flips.first_lost)):
        if not shown:
            continue
        found = texts_of(shown, set_name)
        places = numbers("seed", "fold") * several
        table = table_of([*places, *numbers("row"), *texts("label", "A", "B", "text")])
        for place, flip in enumerate(shown):
            own = [value_text(value) for value in (flip.run.seed, flip.run.fold)] * several
            table.add_row(*own, *_flip_cells(flip), shortened(found.get(place, ""), MAX_TEXT))
        print_table("", title, table)
    print_table("")


def _flip_cells(flip: Flip) -> list[str]:
    cells = [str(flip.row.get("row", "")), _spoken(flip.row["label"])]
    for row, answer in zip((flip.row, flip.other), flip.answers, strict=True):
        probability = f" {row['probability']:.2f}" if "probability" in row else ""
        cells.append(f"{_spoken(answer)}{probability}")
    return cells


def _spoken(value: object) -> str:
    """Return a label, a list of labels, or spans as `type first-last`."""
    if isinstance(value, list):
        return ", ".join(map(_spoken_item, value)) or "none"
    return str(value)


def _spoken_item(item: object) -> str:
    if isinstance(item, list):
        first, last, kind = item
        return f"{kind} {first}-{last}"
    return str(item)


def difference_as_json(found: Difference) -> str:
    """Return everything as JSON."""
    content = {
        "config": {key: {"a": first, "b": second} for key, (first, second) in found.config.items()},
        "provenance": {key: {"a": first, "b": second} for key, (first, second) in found.provenance.items()},
        "metrics": {
            name: {side: vars(spread) if spread else None for side, spread in zip("ab", pair, strict=True)}
            for name, pair in found.metrics.items()
        },
        "predictions": {
            name: {
                "rows": flips.rows,
                "pairs": flips.pairs,
                "both_right": flips.both_right,
                "both_wrong": flips.both_wrong,
                "only_a_right": flips.lost,
                "only_b_right": flips.won,
                "oftener_a_right": flips.examples_lost,
                "oftener_b_right": flips.examples_won,
                "p_value": flips.test.p_value,
                "test": flips.test.method,
                "examples": [
                    {"seed": flip.run.seed, "fold": flip.run.fold, "a": flip.row, "b": flip.other}
                    for flip in [*flips.first_won, *flips.first_lost]
                ],
            }
            for name, flips in found.flips.items()
        },
        "remarks": found.remarks,
    }
    return json.dumps(plain(content), indent=2, ensure_ascii=False)
