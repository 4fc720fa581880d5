"""Tables of runs for people, and as JSON and CSV."""

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import path_text, shortened
from nlu.display.tables import Column, count_text, fitted, metric_text, print_table, value_text
from nlu.metrics.repeats import OUT_OF_FOLD
from nlu.reports.aggregate import Spread, TableRow, missing_folds
from nlu.reports.columns import KeyColumns, differing_columns
from nlu.reports.runs import RunRecord, State, parts
from nlu.runs.predictions import write_predictions
from nlu.storage.copies import place_text
from nlu.storage.files import plain

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


def print_tables(tables: Sequence[Sequence[TableRow]]) -> None:
    """Print one table for each deciding metric, best row first."""
    for number, rows in enumerate(tables):
        columns = differing_columns(rows)
        table, gone = fitted(_columns(rows, columns), plain_width())
        print_table(*[""] * (number > 0), table)
        if gone:
            print_table(f"too wide to show: {', '.join(gone)}; --csv has every column", style="dim")
        _print_notes(rows, columns)


def _columns(rows: Sequence[TableRow], columns: KeyColumns) -> list[Column]:
    found = [
        Column(key, list(map(value_text, values)), is_number=False, may_go=max(0, place - KEPT_KEYS + 1))
        for place, (key, values) in enumerate(columns.shown.items())
    ]
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


def _spread_columns(header: str, spreads: Sequence[Spread | None]) -> list[Column]:
    """Return a column of means and, if any row has one, a column of standard deviations."""
    means = Column(header, [metric_text(spread.mean if spread else None) for spread in spreads])
    if not any(spread and spread.sd is not None for spread in spreads):
        return [means]
    sds = ["" if spread is None or spread.sd is None else metric_text(spread.sd) for spread in spreads]
    return [means, Column("sd", sds)]


def _print_notes(rows: Sequence[TableRow], columns: KeyColumns) -> None:
    if columns.implied:
        more = f" and {len(columns.implied) - MAX_IMPLIED} more" if len(columns.implied) > MAX_IMPLIED else ""
        print_table(f"differ with the columns shown: {', '.join(columns.implied[:MAX_IMPLIED])}{more}", style="dim")
    if any(row.missing_of(seed) for row in rows if row.state != "pruned" for seed in row.seeds if row.runs[0].folds):
        print_table("some configurations lack folds; their means are over the complete ones", style="dim")
    if any(run.state != "complete" for row in rows for run in row.counted):
        open_runs = [run for row in rows for run in row.counted if run.state not in ("complete", "pruned")]
        on_samples = ", on samples (trainer.eval_rows)" if any(run.config.get(EVAL_ROWS) for run in open_runs) else ""
        print_table(f"values of incomplete runs are their best so far{on_samples}", style="dim")
    runs = [run for row in rows for run in row.runs]
    if without := [run for run in runs if run.no_checkpoint]:
        print_table(
            f"without a best checkpoint (trainer.save, trainer.save_above): {len(without)} of {len(runs)} runs",
            style="dim",
        )
    ended: dict[tuple[State, str], list[Path]] = {}
    for run in runs:
        if run.reason:
            ended.setdefault((run.state, run.reason), []).append(run.folder)
    for (state, reason), folders in ended.items():
        print_table(f"{state}: {folders_of(folders)}: {reason}", style="red" if state == "failed" else "dim")


def _states(row: TableRow) -> str:
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


def write_joined(folder: Path, rows: Sequence[TableRow]) -> list[Path]:
    """Write the joined predictions of each row and seed; returns the files.

    Raises UserError with the missing folds if nothing could be joined, and if a file of that name exists.
    """
    several = sum(bool(row.joined) for row in rows) > 1
    files = {
        folder / f"{OUT_OF_FOLD}{f'-{place}' * several}{f'-seed-{seed}' * (len(row.joined) > 1)}.jsonl": joined
        for place, row in enumerate(rows, start=1)
        for seed, joined in row.joined.items()
    }
    if not files:
        raise UserError(
            *(sentence for row in rows for sentence in missing_folds(row)),
            summary="--join: no configuration has all its folds complete, so nothing can be joined",
        )
    # All are checked before the first is written, so a refused command leaves nothing behind.
    if existing := [path for path in files if path.exists()]:
        raise UserError(*(f"--join would write {path}, which exists; give another folder" for path in existing))
    for path, joined in files.items():
        write_predictions(path, joined.header, joined.records())
    return list(files)


def as_json(tables: Sequence[Sequence[TableRow]]) -> str:
    """Return the rows as JSON: differing keys, the spread of each metric, and the values of every run."""
    records = []
    for rows in tables:
        columns = differing_columns(rows)
        for place, row in enumerate(rows):
            records.append(
                {
                    "config": {key: values[place] for key, values in columns.shown.items()},
                    "set": row.set_name,
                    "metrics": {name: _fields(spread) for name, spread in row.values.items()},
                    "out_of_fold": {name: _fields(spread) for name, spread in row.out_of_fold.items()},
                    "state": row.state,
                    "states": row.states,
                    "best_step": row.mean("best_step"),
                    "examples": row.mean("examples"),
                    "examples_per_s": row.mean("examples_per_s"),
                    "runs": [_run_fields(run) for run in row.runs],
                }
            )
    return json.dumps(plain(records), indent=2, ensure_ascii=False)


def _fields(spread: Spread | None) -> dict[str, float | None] | None:
    return None if spread is None else {"mean": spread.mean, "sd": spread.sd, "n": spread.n}


def _run_fields(run: RunRecord) -> dict[str, object]:
    names = ("folder", "state", "seed", "fold", "metrics", "best_step", "examples", "examples_per_s", "reason")
    return {name: getattr(run, name) for name in names} | ({"note": run.note} if run.note else {})


def as_csv(tables: Sequence[Sequence[TableRow]]) -> str:
    """Return one line for each row, with all digits; keys of one table are empty in the others."""
    lines: list[dict[str, object]] = []
    for rows in tables:
        columns = differing_columns(rows)
        for place, row in enumerate(rows):
            line = {key: _cell(values[place]) for key, values in columns.shown.items()}
            for prefix, values in (("", row.values), ("out_of_fold/", row.out_of_fold)):
                for name, spread in values.items():
                    line[f"{prefix}{name}"] = spread.mean if spread else None
                    line[f"{prefix}{name} sd"] = spread.sd if spread else None
            line |= {"set": row.set_name, "n": len(row.counted), "state": _states(row)}
            line |= {name: row.mean(name) for name in ("best_step", "examples", "examples_per_s")}
            if row.note:
                line["note"] = row.note
            lines.append(line | {"folders": " ".join(place_text(run.folder) for run in row.runs)})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict, bool)) else value
