"""Tables of runs for people, and as CSV."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from nlu.config.sentences import path_text, shortened
from nlu.display.console_tables import Column, count_text, fitted, metric_text, print_table, value_text
from nlu.reports.differing_keys import KeyColumns, differing_columns
from nlu.reports.run_table import FACTS, Configuration, Spread, scored_on
from nlu.reports.runs import State, parts
from nlu.storage.run_copies import place_text

MAX_IMPLIED = 6
MAX_FOLDERS = 4
KEPT_KEYS = 2
"""number of differing keys that stay if the table is too wide; the others are dropped, the last one first"""
PLAIN_WIDTH = 120
EVAL_ROWS = "trainer.eval_rows"


def plain_width() -> int:
    """Return the width of lines in a file or a pipe: $COLUMNS, or 120 characters."""
    written = os.environ.get("COLUMNS", "")
    return int(written) if written.isdecimal() and int(written) else PLAIN_WIDTH


def print_tables(tables: Sequence[Sequence[Configuration]]) -> None:
    """Print one table for each deciding metric, best row first."""
    for number, rows in enumerate(tables):
        columns = differing_columns(rows)
        table, gone = fitted(_columns(rows, columns), plain_width())
        print_table(*[""] * (number > 0), table)
        if gone:
            print_table(f"too wide to show: {', '.join(gone)}; --csv has every column", style="dim")
        _print_notes(rows, columns)


def _columns(rows: Sequence[Configuration], columns: KeyColumns) -> list[Column]:
    keys, other_rows = columns.shown, []
    if are_other_rows(rows):
        other_rows = [Column("scored on", [", ".join(scored_rows(row)) for row in rows], is_number=False)]
        keys = {key: values for key, values in keys.items() if key != "data.dev"}
    # Choices such as task and model stay longest, and files go first, whose names are long.
    kept = sorted(keys, key=lambda key: ("." in key, "/" in str(keys[key])))
    found = [
        Column(key, list(map(value_text, values)), is_number=False, may_go=max(0, kept.index(key) - KEPT_KEYS + 1))
        for key, values in keys.items()
    ] + other_rows
    sets = {row.set_name for row in rows if row.set_name}
    one_set = f"{sets.pop()}/" if len(sets) == 1 else ""
    for name in dict.fromkeys(name for row in rows for name in row.values):
        found += _spread_columns(name if "/" in name else f"{one_set}{name}", [row.values.get(name) for row in rows])
    for name in dict.fromkeys(name for row in rows for name in row.out_of_fold):
        found += _spread_columns(f"out-of-fold {name}", [row.out_of_fold.get(name) for row in rows])
    found += [
        Column("n", [str(len(row.counted)) for row in rows]),
        Column("state", [_states(row) for row in rows], is_number=False),
    ]
    facts = (("best step", "best_step"), ("examples", "examples"), ("examples/s", "examples_per_s"))
    for may_go, (header, name) in enumerate(facts, start=len(columns.shown) + 1):
        found.append(Column(header, [count_text(row.mean(name)) for row in rows], may_go=may_go))
    if any(row.note for row in rows):
        found.append(Column("note", [shortened(row.note) for row in rows], is_number=False, may_go=1))
    folders = [folders_of([run.folder for run in row.runs]) for row in rows]
    return [*found, Column("folder", folders, is_number=False)]


def scored_rows(row: Configuration) -> list[str]:
    """Return the rows on which the runs of a configuration were scored."""
    return list(dict.fromkeys(map(scored_on, row.runs)))


def are_other_rows(rows: Sequence[Configuration]) -> bool:
    """Return whether some of these configurations were scored on other rows than others."""
    return len({tuple(scored_rows(row)) for row in rows if any(row.values.values())}) > 1


def _spread_columns(header: str, spreads: Sequence[Spread | None]) -> list[Column]:
    """Return a column of means and, if any row has one, a column of standard deviations."""
    means = Column(header, [metric_text(spread.mean if spread else None) for spread in spreads])
    if not any(spread and spread.sd is not None for spread in spreads):
        return [means]
    sds = ["" if spread is None or spread.sd is None else metric_text(spread.sd) for spread in spreads]
    return [means, Column("sd", sds)]


def _print_notes(rows: Sequence[Configuration], columns: KeyColumns) -> None:
    if columns.implied:
        more = f" and {len(columns.implied) - MAX_IMPLIED} more" if len(columns.implied) > MAX_IMPLIED else ""
        print_table(f"differ with the columns shown: {', '.join(columns.implied[:MAX_IMPLIED])}{more}", style="dim")
    if are_other_rows(rows):
        print_table('values of runs that were "scored on" other rows do not compare', style="dim")
    if any(row.has_splits for row in rows):
        print_table(
            "files of data.dev whose names differ in their numbers are splits of one configuration", style="dim"
        )
    if any(row.missing_of(one) for row in rows if row.state != "pruned" for one in row.repeats if row.runs[0].folds):
        print_table("some configurations lack folds; their means are over the complete ones", style="dim")
    if any(run.state != "complete" for row in rows for run in row.counted):
        open_runs = [run for row in rows for run in row.counted if run.state not in ("complete", "pruned")]
        on_samples = ", on samples (trainer.eval_rows)" if any(run.config.get(EVAL_ROWS) for run in open_runs) else ""
        print_table(f"values of incomplete runs are their best so far{on_samples}", style="dim")
    runs = [run for row in rows for run in row.runs]
    ended: dict[tuple[State, str], list[Path]] = {}
    for run in runs:
        if run.reason:
            ended.setdefault((run.state, run.reason), []).append(run.folder)
    for (state, reason), folders in ended.items():
        print_table(f"{state}: {folders_of(folders)}: {reason}", style="red" if state == "failed" else "dim")


def _states(row: Configuration) -> str:
    states = row.states
    return row.state if len(states) == 1 else ", ".join(f"{count} {state}" for state, count in states.items())


def folders_of(folders: Sequence[Path]) -> str:
    """Return the folders of runs relative to the working folder: `sweep/{0,2,5}`; for folds and seeds their parent."""
    if len(folders) == 1:
        return path_text(folders[0])
    paths = [Path(os.path.abspath(folder)) for folder in folders]
    above = Path(os.path.commonpath(paths))
    top = path_text(above)
    # All folds and seeds of a run are written as the run itself.
    if {path.name for path in paths} == {path.name for path in parts(above)}:
        return top
    names = [str(path.relative_to(above)) for path in paths]
    return f"{top}/{{{','.join(names[:MAX_FOLDERS])}{',...' if len(names) > MAX_FOLDERS else ''}}}"


def write_csv(tables: Sequence[Sequence[Configuration]]) -> None:
    """Write one line for each row on standard output, with all digits; keys of one table are empty in the others."""
    lines: list[dict[str, object]] = []
    for rows in tables:
        columns = differing_columns(rows)
        for place, row in enumerate(rows):
            line: dict[str, object] = {key: _cell(values[place]) for key, values in columns.shown.items()}
            for prefix, values in (("", row.values), ("out_of_fold/", row.out_of_fold)):
                for name, spread in values.items():
                    line[f"{prefix}{name}"] = spread.mean if spread else None
                    line[f"{prefix}{name} sd"] = spread.sd if spread else None
            line |= {"set": row.set_name, "scored_on": " ".join(scored_rows(row)), "n": len(row.counted)}
            line |= {"state": _states(row), **{name: row.mean(name) for name in FACTS}}
            if row.note:
                line["note"] = row.note
            lines.append(line | {"folders": " ".join(place_text(run.folder) for run in row.runs)})
    names = dict.fromkeys(name for line in lines for name in line)
    table = pa.table({name: [line.get(name) for line in lines] for name in names})
    csv.write_csv(table, sys.stdout.buffer, csv.WriteOptions(quoting_style="needed"))


def _cell(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
