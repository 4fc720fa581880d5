"""The differences of three or more configurations, with tests of every pair."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.display.tables import numbers, print_table, table_of, texts
from nlu.reports.aggregate import Spread, TableRow
from nlu.reports.compare import (
    LETTERS,
    comparable,
    config_differences,
    metrics_of,
    one_row,
    pairs_of,
    print_sides,
    print_values,
    shared_sets,
    spread_cells,
)
from nlu.reports.flips import FEW_DISCORDANT, Flips, McNemar, compare, holm
from nlu.reports.runs import RunRecord
from nlu.storage.files import plain

LEVEL = 0.05
"""p below which one of two is called better"""
BETTER = f"better (p < {LEVEL})"
"""header of a column"""


@dataclass(frozen=True)
class McNemarPair:
    """The result of McNemar's test for two configurations on one set."""

    first: str
    second: str
    """their letters"""
    flips: Flips
    test: McNemar
    holm_p: float
    """corrected for all pairs of the set"""

    @property
    def better(self) -> str:
        """The letter of the better one; empty if the difference may be chance."""
        if self.holm_p >= LEVEL:
            return ""
        return self.first if self.flips.examples_lost > self.flips.examples_won else self.second


@dataclass
class Differences:
    """The differences of several configurations and of their results."""

    rows: list[TableRow]
    runs: list[list[RunRecord]]
    """the runs of each whose mean is shown"""
    config: dict[str, tuple[object, ...]]
    metrics: dict[str, tuple[Spread | None, ...]]
    remarks: list[str]
    pairs: dict[str, list[McNemarPair]] = field(default_factory=dict)
    """by set"""


def differences_of(folders: Sequence[Path]) -> Differences:
    """Read and compare three or more runs, or folders with the seeds and folds of one configuration each.

    Runs of two configurations are compared seed by seed and fold by fold. An example has one vote in each pair of
    configurations, however many seeds scored it. Raises UserError if a folder is named twice or does not hold exactly
    one configuration.
    """
    if len(folders) > len(LETTERS):
        raise UserError(f"{len(folders)} folders are named, but at most {len(LETTERS)} can be compared; name fewer")
    resolved = [folder.resolve() for folder in folders]
    # A configuration compared with itself would count as further tests, and Holm's correction would weaken the others.
    if twice := [str(folder) for place, folder in enumerate(folders) if resolved[place] in resolved[:place]]:
        raise UserError(*(f"{folder} is named twice; name each once" for folder in twice))
    rows = [one_row(folder) for folder in folders]
    runs, remarks = comparable(rows)
    found = Differences(rows, runs, config_differences(rows), metrics_of(runs), remarks)
    flips: dict[str, dict[tuple[str, str], Flips]] = {}
    for (first, a), (second, b) in combinations(zip(LETTERS, rows, strict=False), 2):
        for name, counted_flips in _flips_of(found, f"{first} and {second}", a, b).items():
            flips.setdefault(name, {})[first, second] = counted_flips
    for name, of_set in sorted(flips.items()):
        # Corrected within a set: each set is one question, with a test for every pair.
        tests = [one.test for one in of_set.values()]
        adjusted = holm([test.p_value for test in tests])
        found.pairs[name] = [
            McNemarPair(*letters, one, test, holm_p)
            for (letters, one), test, holm_p in zip(of_set.items(), tests, adjusted, strict=True)
        ]
    return found


def _flips_of(found: Differences, who: str, first: TableRow, second: TableRow) -> dict[str, Flips]:
    """Return the flips by set, and add a remark for each set that cannot be compared."""
    pairs = pairs_of(first.counted, second.counted)
    if not pairs:
        found.remarks.append(
            f"{who}: no run of one has seed and fold of a run of the other, so no predictions are compared"
        )
        return {}
    names = shared_sets(pairs)
    if not names:
        found.remarks.append(f"{who}: they kept predictions of none of the same set")
    flips = {}
    for name in names:
        try:
            flips[name] = compare(pairs, name)
        except UserError as error:
            found.remarks += [f"{who}: {problem}" for problem in error.problems]
    return flips


def print_differences(found: Differences) -> None:
    """Print keys and metrics with a column for each configuration, then a table of pairs for each set."""
    print_sides(found.rows, found.runs)
    print_values("config", found.config, "no key of the configuration differs")
    letters = LETTERS[: len(found.rows)]
    with_sd = any(side and side.sd is not None for sides in found.metrics.values() for side in sides)
    columns = numbers(*(header for letter in letters for header in (letter, *["sd"] * with_sd)))
    lines = ([name, *spread_cells(sides, with_sd)] for name, sides in found.metrics.items())
    print_table(table_of([*texts("metric"), *columns], lines), "")
    for name, pairs in found.pairs.items():
        _print_pairs(name, pairs)
    for remark in found.remarks:
        print_table(remark)


def _print_pairs(set_name: str, pairs: Sequence[McNemarPair]) -> None:
    several = any(pair.flips.pairs > 1 for pair in pairs)
    only = "oftener right" if several else "only right"
    counts = numbers("predictions", f"{only} in the first", f"{only} in the second")
    table = table_of([*texts("pair"), *counts, *texts("test"), *numbers("p", "p by Holm"), *texts(BETTER)])
    for pair in pairs:
        flips, test = pair.flips, pair.test
        method = "exact" if test.statistic is None else f"{test.method} = {test.statistic:.2f}"
        counted_rows = (f"{count:,}" for count in (flips.rows, flips.examples_lost, flips.examples_won))
        p_values = f"{test.p_value:.2g}", f"{pair.holm_p:.2g}"
        table.add_row(f"{pair.first} {pair.second}", *counted_rows, method, *p_values, pair.better)
    print_table(
        f"{set_name}: McNemar's test, exact if fewer than {FEW_DISCORDANT} rows are right in only one, else with the "
        f"correction for continuity; p by Holm is corrected for {counted(len(pairs), 'pair')}",
        table,
        "",
    )
    if several:
        print_table("rows of several seeds are each counted once: by which of the two was right with more of them", "")


def differences_as_json(found: Differences) -> str:
    """Return everything as JSON."""
    letters = LETTERS[: len(found.rows)]
    content = {
        "runs": {
            letter: {"state": row.state, "folders": [run.folder for run in row.runs]}
            for letter, row in zip(letters, found.rows, strict=True)
        },
        "config": {key: dict(zip(letters, held, strict=True)) for key, held in found.config.items()},
        "metrics": {
            name: {letter: vars(side) if side else None for letter, side in zip(letters, sides, strict=True)}
            for name, sides in found.metrics.items()
        },
        "mcnemar": {name: [_pair_fields(pair) for pair in pairs] for name, pairs in found.pairs.items()},
        "remarks": found.remarks,
    }
    return json.dumps(plain(content), indent=2, ensure_ascii=False)


def _pair_fields(pair: McNemarPair) -> dict[str, object]:
    flips, test = pair.flips, pair.test
    return {
        "first": pair.first,
        "second": pair.second,
        "pairs_of_runs": flips.pairs,
        "predictions": flips.rows,
        "only_first_right": flips.lost,
        "only_second_right": flips.won,
        "oftener_first_right": flips.examples_lost,
        "oftener_second_right": flips.examples_won,
        "test": test.method,
        "statistic": test.statistic,
        "p_value": test.p_value,
        "p_holm": pair.holm_p,
        "better": pair.better or None,
    }
