"""The errors of a run in a terminal and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nlu.config.words import counted, path_text, shortened
from nlu.display.tables import count_text, metric_text, numbers, print_table, table_of, texts
from nlu.reports.errors.analysis import ErrorReport
from nlu.reports.errors.slices import Slice
from nlu.reports.flips import text_of
from nlu.runs.predictions import Record
from nlu.storage.files import plain

MAX_TEXT = 100
MOST_PARTS = 20
"""lines of the table by class; JSON has all"""
NUMBERS = frozenset({"probability", "similarity", "distance", "loss"})
"""headers of the columns of a mistake that hold numbers"""


def print_report(found: ErrorReport, rows: int) -> None:
    """Print at most `rows` mistakes and suspected labels with their texts, the tables between them, and the remarks."""
    print_table(f"{path_text(found.source.folder)}  {headline(found)}", "")
    if found.mistakes and rows:
        _print_mistakes(found)
    for key, (title, slices) in found.tables.items():
        if slices:
            _print_slices(title, slices, MOST_PARTS if key == "class" else None, found.whole.rows)
    if found.suspects is not None:
        _print_suspects(found, rows)
    for remark in found.remarks:
        print_table(remark)


def headline(found: ErrorReport) -> str:
    """Return the error rate or mean distance of all rows, in a line."""
    whole = found.whole
    ends = "" if whole.low is None else f" (95 %: {metric_text(whole.low)} to {metric_text(whole.high)})"
    if whole.wrong is None:
        return f"{found.source.name}: {counted(whole.rows, 'row')}, mean distance {metric_text(whole.value)}{ends}"
    wrong = f"{whole.wrong:,} of {counted(whole.rows, 'row')} wrong"
    return f"{found.source.name}: {wrong}, {metric_text(whole.value)}{ends}"


def _print_mistakes(found: ErrorReport) -> None:
    described = [found.kind.described(one.record) for one in found.mistakes]
    headers = list(dict.fromkeys(header for cells in described for header in cells))
    table = table_of([*texts("row"), *((name, name in NUMBERS) for name in headers), *texts("text")])
    for one, cells in zip(found.mistakes, described, strict=True):
        shown = (shortened(cells.get(header, ""), MAX_TEXT) for header in headers)
        table.add_row(_place(found, one.record), *shown, text_of(one.record, MAX_TEXT))
    print_table(f"mistakes, the largest {found.kind.ranked_by} first", table, "")


def _print_slices(title: str, slices: Sequence[Slice], most: int | None, whole: int) -> None:
    is_rate = slices[0].wrong is not None
    more = list(dict.fromkeys(header for one in slices for header in one.more))
    counts = numbers("rows", *["wrong"] * is_rate, "error rate" if is_rate else "mean distance", "95 % from", "to")
    others = ((name, any(isinstance(one.more.get(name), int) for one in slices)) for name in more)
    table = table_of([*texts(title), *counts, *others])
    for one in slices[:most]:
        wrong = [count_text(one.wrong)] * is_rate
        values = map(metric_text, (one.value, one.low, one.high))
        table.add_row(one.name, count_text(one.rows), *wrong, *values, *(_cell(one.more.get(name)) for name in more))
    left = len(slices) - len(slices[:most])
    notes = [f"and {left:,} more with fewer errors; --json has all"] * (left > 0)
    if not left and sum(one.rows for one in slices) > whole:
        notes.append("a row may stand in several of these lines")
    print_table(table, *notes, "")


def _cell(value: int | str | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else shortened(value, MAX_TEXT)


def _print_suspects(found: ErrorReport, rows: int) -> None:
    suspects, count = found.suspects or [], found.whole.rows
    share = f"{len(suspects):,} of {counted(count, 'row')} ({len(suspects) / count:.1%})"
    table = table_of([*texts("row", "label", "likely"), *numbers("p of label"), *texts("text")])
    for suspect, record in suspects[:rows]:
        confidence, text = f"{suspect.self_confidence:.4f}", text_of(record, MAX_TEXT)
        table.add_row(_place(found, record), suspect.label, suspect.likely, confidence, text)
    left = len(suspects) - len(suspects[:rows])
    more = [f"and {left:,} more; --json has all"] * (left > 0 and bool(rows))
    title = f"suspected label errors, {share}, the likeliest first (confident learning)"
    print_table(title, *[table] * bool(suspects[:rows]), *more, "")


def _place(found: ErrorReport, record: Record) -> str:
    fold = f"fold {record['fold']}, " if "fold" in record else ""
    path, _, row = found.place_of(record).rpartition(":")
    return f"{fold}{Path(path).name}:{row}"


def report_as_json(found: ErrorReport) -> str:
    """Return the report as JSON, with all classes and suspected labels and the mistakes that were kept."""
    content: dict[str, object] = {
        "run": found.source.folder,
        "set": found.source.name,
        "kind": found.kind.plural,
        "whole": asdict(found.whole),
        "by": {name: [asdict(one) for one in slices] for name, (_, slices) in found.tables.items()},
        "mistakes": [
            {
                "place": found.place_of(one.record),
                found.kind.ranked_by: one.confidence,
                "tokens": one.tokens or None,
                **one.record,
            }
            for one in found.mistakes
        ],
        "label_errors": found.suspects
        and [
            {
                "place": found.place_of(record),
                "label": suspect.label,
                "likely": suspect.likely,
                "self_confidence": suspect.self_confidence,
                "id": record["id"],
                "fold": record.get("fold"),
                "text": text_of(record),
            }
            for suspect, record in found.suspects
        ],
        "remarks": found.remarks,
    }
    return json.dumps(plain(content), indent=2, ensure_ascii=False)
