"""The errors of a run in a terminal, on a page and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from nlu.config.words import counted, path_text, shortened
from nlu.display.page import html_table, section, write_page
from nlu.display.tables import Header, count_text, metric_text, numbers, print_table, table_of, texts
from nlu.reports.errors.analysis import ErrorReport
from nlu.reports.errors.slices import Slice
from nlu.reports.flips import text_of
from nlu.runs.predictions import Record
from nlu.storage.files import plain

MAX_TEXT = 100
MOST_PARTS = 20
"""lines of the table by class in a terminal; the page and JSON have all"""
MOST_CONFUSED = 10
NUMBERS = frozenset({"probability", "similarity", "distance", "loss"})
"""headers of the columns of a mistake that hold numbers"""


@dataclass(frozen=True)
class TableSection:
    """A heading, a table and a sentence below it."""

    title: str
    header: Sequence[Header]
    lines: Sequence[Sequence[str]]
    note: str = ""


def sections_of(found: ErrorReport, rows: int, most_parts: int | None = None) -> list[TableSection]:
    """Return the tables in order, with at most `rows` mistakes and suspected labels and `most_parts` classes."""
    shown = [_mistakes(found)] if found.mistakes and rows else []
    for key, (title, slices) in found.tables.items():
        if slices:
            shown.append(_parts(title, slices, most_parts if key == "class" else None, found.whole.rows))
    return [*shown, *_label_errors(found, rows)]


def print_report(found: ErrorReport, rows: int) -> None:
    """Print the tables, with long texts cut, and the remarks."""
    print_table(f"{path_text(found.source.folder)}  {headline(found)}", "")
    for one in sections_of(found, rows, MOST_PARTS):
        table = table_of(one.header, ([shortened(cell, MAX_TEXT) for cell in line] for line in one.lines))
        print_table(*[one.title] * bool(one.title), table, *[one.note] * bool(one.note), "")
    for remark in found.remarks:
        print_table(remark)


def write_errors_page(path: Path, found: ErrorReport, rows: int) -> None:
    """Write the same with whole texts as a page of HTML that needs no other file."""
    parts = [section(html_table(one.header, one.lines), one.title, remark=one.note) for one in sections_of(found, rows)]
    if found.remarks:
        parts.append(section("".join(f"<p>{escape(remark)}</p>" for remark in found.remarks), "Remarks"))
    write_page(path, f"Errors of {path_text(found.source.folder)}", headline(found), parts)


def headline(found: ErrorReport) -> str:
    """Return the error rate or mean distance of all rows, in a line."""
    whole = found.whole
    ends = "" if whole.low is None else f" (95 %: {metric_text(whole.low)} to {metric_text(whole.high)})"
    if whole.wrong is None:
        return f"{found.source.name}: {counted(whole.rows, 'row')}, mean distance {metric_text(whole.value)}{ends}"
    wrong = f"{whole.wrong:,} of {counted(whole.rows, 'row')} wrong"
    return f"{found.source.name}: {wrong}, {metric_text(whole.value)}{ends}"


def _mistakes(found: ErrorReport) -> TableSection:
    described = [found.kind.described(one.record) for one in found.mistakes]
    headers = list(dict.fromkeys(header for cells in described for header in cells))
    trained = [_training_place(found, one.number) for one in found.mistakes]
    with_trained = any(trained)
    lines = [
        [
            _place(found, one.record),
            *(cells.get(header, "") for header in headers),
            *[place] * with_trained,
            text_of(one.record),
        ]
        for one, cells, place in zip(found.mistakes, described, trained, strict=True)
    ]
    header = [*texts("row"), *((name, name in NUMBERS) for name in headers), *_last_columns(with_trained)]
    return TableSection(f"mistakes, the largest {found.kind.ranked_by} first", header, lines)


def _parts(title: str, slices: Sequence[Slice], most: int | None, whole: int) -> TableSection:
    is_rate = slices[0].wrong is not None
    more = list(dict.fromkeys(header for one in slices for header in one.more))
    counts = numbers("rows", *["wrong"] * is_rate, "error rate" if is_rate else "mean distance", "95 % from", "to")
    others = ((name, any(isinstance(one.more.get(name), int) for one in slices)) for name in more)
    header = [*texts(title), *counts, *others]
    lines = [
        [
            one.name,
            count_text(one.rows),
            *[count_text(one.wrong)] * is_rate,
            *map(metric_text, (one.value, one.low, one.high)),
            *(_cell(one.more.get(name)) for name in more),
        ]
        for one in slices[:most]
    ]
    left = len(slices) - len(lines)
    if not left and sum(one.rows for one in slices) > whole:
        return TableSection("", header, lines, "a row may stand in several of these lines")
    return TableSection(
        "", header, lines, f"and {left:,} more with fewer errors; --json and --html have all" * (left > 0)
    )


def _cell(value: int | str | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _label_errors(found: ErrorReport, rows: int) -> list[TableSection]:
    errors = found.label_errors
    if errors is None:
        return []
    share = len(errors.suspects) / errors.rows
    suspects = f"{len(errors.suspects):,} of {counted(errors.rows, 'row')} ({share:.1%})"
    title = f"suspected label errors, {suspects}, the likeliest first (confident learning)"
    trained = [_training_place(found, suspect.number) for suspect, _ in found.suspects[:rows]]
    with_trained = any(trained)
    header = [*texts("row", "label", "likely"), *numbers("p of label", "margin"), *_last_columns(with_trained)]
    lines = [
        [
            _place(found, record),
            suspect.label,
            suspect.likely,
            f"{suspect.self_confidence:.4f}",
            f"{suspect.margin:+.4f}",
            *[place] * with_trained,
            text_of(record),
        ]
        for (suspect, record), place in zip(found.suspects[:rows], trained, strict=True)
    ]
    left = len(errors.suspects) - len(lines)
    sections = [TableSection(title, header, lines, f"and {left:,} more; --json has all" * (left > 0))] if lines else []
    if errors.confused:
        note = "thresholds: " + ", ".join(f"{name} {value:.4f}" for name, value in errors.thresholds.items())
        table = [(label, likely, f"{count:,.1f}") for label, likely, count in errors.confused[:MOST_CONFUSED]]
        header = [*texts("labelled", "is rather"), *numbers("rows (estimated)")]
        estimated = f"about {errors.estimated:,.0f} labels are wrong ({errors.estimated / errors.rows:.1%} of the rows)"
        sections.append(
            TableSection(f"{estimated}, as the joint of labels and classes estimates it", header, table, note)
        )
    return sections


def _last_columns(with_trained: bool) -> list[Header]:
    return texts(*["in train"] * with_trained, "text")


def _place(found: ErrorReport, record: Record) -> str:
    fold = f"fold {record['fold']}, " if "fold" in record else ""
    path, _, row = found.place_of(record).rpartition(":")
    return f"{fold}{Path(path).name}:{row}"


def _training_place(found: ErrorReport, number: int) -> str:
    """Return the place of the training text most similar to a record, and the similarity."""
    if found.overlap is None or (place := found.overlap.place_of(number)) is None:
        return ""
    path, _, row = place.rpartition(":")
    like = "same" if found.overlap.is_exact_N[number] else f"{found.overlap.similarity_N[number]:.2f}"
    label = f" {label}" if (label := found.overlap.label_of.get(number)) else ""
    return f"{like}: {Path(path).name}:{row}{label}"


def report_as_json(found: ErrorReport) -> str:
    """Return the report as JSON, with all classes and suspected labels and the mistakes that were kept."""
    errors = found.label_errors
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
                **_training(found, one.number),
                **one.record,
            }
            for one in found.mistakes
        ],
        "conflicts": found.overlap.conflicts if found.overlap else None,
        "label_errors": errors
        and {
            "method": errors.method,
            "rows": errors.rows,
            "thresholds": errors.thresholds,
            "estimated": errors.estimated if errors.confused else None,
            "confused": [{"label": label, "likely": likely, "rows": rows} for label, likely, rows in errors.confused],
            "suspects": [
                {
                    "place": found.place_of(record),
                    **{key: value for key, value in asdict(suspect).items() if key != "number"},
                    **_training(found, suspect.number),
                    "id": record["id"],
                    "fold": record.get("fold"),
                    "text": text_of(record),
                }
                for suspect, record in found.suspects
            ],
        },
        "remarks": found.remarks,
    }
    return json.dumps(plain(content), indent=2, ensure_ascii=False)


def _training(found: ErrorReport, number: int) -> dict[str, object]:
    if found.overlap is None or (place := found.overlap.place_of(number)) is None:
        return {"in_train": None}
    same = bool(found.overlap.is_exact_N[number])
    similarity, label = float(found.overlap.similarity_N[number]), found.overlap.label_of.get(number)
    return {"in_train": {"place": place, "similarity": similarity, "same": same, "label": label}}
