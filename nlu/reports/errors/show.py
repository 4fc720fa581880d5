"""The errors of a run as a person reads them, in a terminal and on a page, and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from nlu.config.words import counted, path_text
from nlu.display.plain_page import html_section, html_table, write_plain_page
from nlu.display.tables import count_text, metric_text, print_table, table_of
from nlu.reports.errors.analysis import Report
from nlu.reports.errors.slices import Slice
from nlu.reports.flips import text_of
from nlu.runs.predictions import Record
from nlu.storage.files import plain

MAX_TEXT = 100
MOST_PARTS = 20
"""lines of a table by class in a terminal; a page and JSON have all"""
MOST_CONFUSED = 10
NUMBERS = frozenset({"probability", "similarity", "distance", "loss"})
"""headers of what is told of a mistake in numbers"""


@dataclass(frozen=True)
class Section:
    """A heading, a table below it and a sentence below that."""

    title: str
    header: Sequence[tuple[str, bool]]
    """of each column its name, and whether it holds numbers"""
    lines: Sequence[Sequence[str]]
    note: str = ""


def sections_of(found: Report, rows: int, most_parts: int | None = None) -> list[Section]:
    """Return the tables in order; at most `rows` mistakes and suspected labels, and `most_parts` parts by class."""
    shown = [_mistakes(found)] if found.mistakes and rows else []
    for key, (title, slices) in found.tables.items():
        if slices:
            shown.append(_parts(title, slices, most_parts if key == "class" else None, found.whole.rows))
    return [*shown, *_label_errors(found, rows)]


def print_report(found: Report, rows: int) -> None:
    """Print the tables, long texts cut, and what was left out."""
    print_table(f"{path_text(found.subject.folder)}  {headline(found)}", "")
    for section in sections_of(found, rows, MOST_PARTS):
        table = table_of(section.header)
        for line in section.lines:
            table.add_row(*(_cut(cell) for cell in line))
        print_table(*[section.title] * bool(section.title), table, *[section.note] * bool(section.note), "")
    for remark in found.remarks:
        print_table(remark)


def write_page(path: Path, found: Report, rows: int) -> None:
    """Write the same as a page of HTML that needs no other file, with whole texts."""
    parts = [
        html_section(html_table(section.header, section.lines), section.title, section.note)
        for section in sections_of(found, rows)
    ]
    if found.remarks:
        parts.append(html_section("".join(f"<p>{escape(remark)}</p>" for remark in found.remarks), "Remarks"))
    write_plain_page(path, f"Errors of {path_text(found.subject.folder)}", headline(found), parts)


def headline(found: Report) -> str:
    """Return what is wrong in all, in a line."""
    whole = found.whole
    ends = "" if whole.low is None else f" (95 %: {metric_text(whole.low)} to {metric_text(whole.high)})"
    if whole.wrong is None:
        return f"{found.subject.name}: {counted(whole.rows, 'row')}, mean distance {metric_text(whole.value)}{ends}"
    wrong = f"{whole.wrong:,} of {counted(whole.rows, 'row')} wrong"
    return f"{found.subject.name}: {wrong}, {metric_text(whole.value)}{ends}"


def _mistakes(found: Report) -> Section:
    told = [found.judge.told(one.record) for one in found.mistakes]
    headers = list(dict.fromkeys(header for cells in told for header in cells))
    trained = [_training_place(found, one.number) for one in found.mistakes]
    with_trained = any(trained)
    lines = [
        [_place(found, one.record), *(cells.get(header, "") for header in headers),
         *[place] * with_trained, text_of(one.record)]
        for one, cells, place in zip(found.mistakes, told, trained, strict=True)
    ]  # fmt: skip
    header = [("row", False), *((name, name in NUMBERS) for name in headers), *[("in train", False)] * with_trained,
              ("text", False)]  # fmt: skip
    return Section(f"mistakes, the largest {found.judge.ranked_by} first", header, lines)


def _parts(title: str, slices: Sequence[Slice], most: int | None, whole: int) -> Section:
    is_rate = slices[0].wrong is not None
    more = list(dict.fromkeys(header for one in slices for header in one.more))
    header = [(title, False), ("rows", True), *[("wrong", True)] * is_rate,
              ("error rate" if is_rate else "mean distance", True), ("95 % from", True), ("to", True),
              *((name, any(isinstance(one.more.get(name), int) for one in slices)) for name in more)]  # fmt: skip
    lines = [
        [one.name, count_text(one.rows), *[count_text(one.wrong)] * is_rate, metric_text(one.value),
         metric_text(one.low), metric_text(one.high), *(_cell(one.more.get(name)) for name in more)]
        for one in slices[:most]
    ]  # fmt: skip
    left = len(slices) - len(lines)
    if not left and sum(one.rows for one in slices) > whole:
        return Section("", header, lines, "a row may stand in several of these lines")
    return Section("", header, lines, f"and {left:,} more with fewer errors; --json and --html have all" * (left > 0))


def _cell(value: int | str | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _label_errors(found: Report, rows: int) -> list[Section]:
    errors = found.label_errors
    if errors is None:
        return []
    share = len(errors.suspects) / errors.rows
    suspects = f"{len(errors.suspects):,} of {counted(errors.rows, 'row')} ({share:.1%})"
    title = f"suspected label errors, {suspects}, the likeliest first (confident learning)"
    trained = [_training_place(found, suspect.number) for suspect, _ in found.suspects[:rows]]
    with_trained = any(trained)
    header = [("row", False), ("label", False), ("likely", False), ("p of label", True), ("margin", True),
              *[("in train", False)] * with_trained, ("text", False)]  # fmt: skip
    lines = [
        [_place(found, record), suspect.label, suspect.likely, f"{suspect.self_confidence:.4f}",
         f"{suspect.margin:+.4f}", *[place] * with_trained, text_of(record)]
        for (suspect, record), place in zip(found.suspects[:rows], trained, strict=True)
    ]  # fmt: skip
    left = len(errors.suspects) - len(lines)
    sections = [Section(title, header, lines, f"and {left:,} more; --json has all" * (left > 0))] if lines else []
    if errors.confused:
        note = "thresholds: " + ", ".join(f"{name} {value:.4f}" for name, value in errors.thresholds.items())
        table = [(label, likely, f"{count:,.1f}") for label, likely, count in errors.confused[:MOST_CONFUSED]]
        header = [("labelled", False), ("is rather", False), ("rows (estimated)", True)]
        estimated = f"about {errors.estimated:,.0f} labels are wrong ({errors.estimated / errors.rows:.1%} of the rows)"
        sections.append(Section(f"{estimated}, as the joint of labels and classes estimates it", header, table, note))
    return sections


def _place(found: Report, record: Record) -> str:
    fold = f"fold {record['fold']}, " if "fold" in record else ""
    path, _, row = found.place_of(record).rpartition(":")
    return f"{fold}{Path(path).name}:{row}"


def _training_place(found: Report, number: int) -> str:
    """The likest training text of a record: its place, and how like it is."""
    if found.overlap is None or (place := found.overlap.place_of(number)) is None:
        return ""
    path, _, row = place.rpartition(":")
    like = "same" if found.overlap.is_exact_N[number] else f"{found.overlap.similarity_N[number]:.2f}"
    label = f" {label}" if (label := found.overlap.label_of.get(number)) else ""
    return f"{like}: {Path(path).name}:{row}{label}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def report_as_json(found: Report) -> str:
    """Return all of it: parts by class and suspected labels in full, mistakes as far as they were asked for."""
    errors = found.label_errors
    content: dict[str, Any] = {
        "run": found.subject.folder, "set": found.subject.name, "kind": found.judge.kind,
        "whole": asdict(found.whole),
        "by": {name: [asdict(one) for one in slices] for name, (_, slices) in found.tables.items()},
        "mistakes": [
            {"place": found.place_of(one.record), found.judge.ranked_by: one.sureness, "tokens": one.tokens or None,
             **_training(found, one.number), **one.record}
            for one in found.mistakes
        ],
        "conflicts": found.overlap.conflicts if found.overlap else None,
        "label_errors": errors and {
            "method": errors.method, "rows": errors.rows, "thresholds": errors.thresholds,
            "estimated": errors.estimated if errors.confused else None,
            "confused": [{"label": label, "likely": likely, "rows": rows} for label, likely, rows in errors.confused],
            "suspects": [
                {"place": found.place_of(record), **{key: value for key, value in asdict(suspect).items()
                                                     if key != "number"},
                 **_training(found, suspect.number), "id": record["id"], "fold": record.get("fold"),
                 "text": text_of(record)}
                for suspect, record in found.suspects
            ],
        },
        "remarks": found.remarks,
    }  # fmt: skip
    return json.dumps(plain(content), indent=2, ensure_ascii=False)


def _training(found: Report, number: int) -> dict[str, object]:
    if found.overlap is None or (place := found.overlap.place_of(number)) is None:
        return {"in_train": None}
    same = bool(found.overlap.is_exact_N[number])
    similarity, label = float(found.overlap.similarity_N[number]), found.overlap.label_of.get(number)
    return {"in_train": {"place": place, "similarity": similarity, "same": same, "label": label}}
