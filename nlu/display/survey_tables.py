"""Tables of a survey of data files, for the terminal and for the page.

The record is what `nlu.data.survey.survey_report.as_record` returns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nlu.config.sentences import counted
from nlu.display.console_tables import Header, numbers, print_table, table_of, texts

MOST_LABELS = 30
MOST_TEXT = 60
Sets = Mapping[str, Mapping[str, Any]]


@dataclass
class SurveyTable:
    """A table with a title."""

    title: str
    columns: Sequence[Header]
    lines: Sequence[Sequence[str]]
    remark: str = ""


def survey_tables(record: Mapping[str, Any]) -> Iterator[SurveyTable]:
    """Yield the tables, in order."""
    sets: Sets = record["sets"]
    yield _sets(record, sets)
    labels = [one["labels"] for one in sets.values() if one["labels"]]
    if labels:
        yield _labels(sets)
    if any(one["numbers"] for one in sets.values()):
        yield _numbers(sets)
    yield _cuts(record, sets)
    if record["overlap"]:
        yield _overlap(record)


def _sets(record: Mapping[str, Any], sets: Sets) -> SurveyTable:
    unit = record["unit"]
    columns = [*texts("set"), *numbers("rows", "bad", "duplicates", "conflicts")]
    for what in ("characters", unit):
        columns += numbers(f"{what}: median", "95 %", "most")
    columns += [*numbers("unknown"), *texts("language")]
    lines = []
    for name, one in sets.items():
        unknown = "-" if one["unknown"] is None else f"{one['unknown']['rows'] / one['rows']:.1%} of rows"
        lines.append(
            [
                name,
                *(f"{one[key]:,}" for key in ("rows", "bad_rows", "duplicates", "conflicts")),
                *(f"{value:,}" for value in one["characters"]),
                *(f"{value:,}" for value in one["lengths"]),
                unknown,
                one["language"],
            ]
        )
    remark = (
        "duplicates: rows whose text occurred before in the set; conflicts: texts with several labels; unknown: rows "
        "with a token that the tokenizer does not know"
    )
    return SurveyTable("Sets", columns, lines, remark)


def _labels(sets: Sets) -> SurveyTable:
    shown = {name: one["labels"] for name, one in sets.items() if one["labels"]}
    order = dict.fromkeys(label for labels in shown.values() for label in labels)
    names = sorted(order, key=lambda label: -sum(labels.get(label, 0) for labels in shown.values()))
    columns = [*texts("label"), *(column for name in shown for column in numbers(name, "share"))]
    lines = [
        [
            label,
            *(
                cell
                for labels in shown.values()
                for cell in (f"{labels.get(label, 0):,}", f"{labels.get(label, 0) / sum(labels.values()):.1%}")
            ),
        ]
        for label in names[:MOST_LABELS]
    ]
    more = len(names) - MOST_LABELS
    return SurveyTable("Labels", columns, lines, f"and {counted(more, 'more label')}" if more > 0 else "")


def _numbers(sets: Sets) -> SurveyTable:
    shown = {name: one["numbers"] for name, one in sets.items() if one["numbers"]}
    names = list(next(iter(shown.values())))
    lines = [[name, *(f"{values[key]:.6g}" for key in names)] for name, values in shown.items()]
    return SurveyTable("Labels that are numbers", [*texts("set"), *numbers(*names)], lines)


def _cuts(record: Mapping[str, Any], sets: Sets) -> SurveyTable:
    lengths = sorted({cut["max_len"] for one in sets.values() for cut in one["cut"]})
    columns = numbers("max_len", *(part for name in sets for part in (f"{name}: rows cut", f"{record['unit']} lost")))
    lines = []
    for length in lengths:
        line = [f"{length}{' *' if length == record['max_len'] else ''}"]
        for one in sets.values():
            # Each set lists lengths only up to its longest row, beyond which nothing is cut.
            cut = next((cut for cut in one["cut"] if cut["max_len"] == length), {"rows": 0.0, "tokens": 0.0})
            line += [f"{cut['rows']:.2%}", f"{cut['tokens']:.2%}"]
        lines.append(line)
    suggested = record["suggested_max_len"]
    if record["max_len"] != suggested:
        return SurveyTable("Cut at max_len", columns, lines, f"* as asked; suggested: {suggested}")
    cut = next(cut["rows"] for cut in sets[record["train"]]["cut"] if cut["max_len"] == suggested)
    whole = f"* suggested: {suggested} leaves {1 - cut:.1%} of the rows of {record['train']} whole"
    return SurveyTable("Cut at max_len", columns, lines, whole)


def _overlap(record: Mapping[str, Any]) -> SurveyTable:
    lines = [
        [
            pair["first"],
            pair["second"],
            f"{pair['rows_of_first']:,}",
            f"{pair['rows_of_second']:,}",
            f"{pair['texts_with_other_labels']:,}",
        ]
        for pair in record["overlap"]
    ]
    columns = [*texts("A", "B"), *numbers("rows of A also in B", "rows of B also in A", "texts with other labels")]
    return SurveyTable("Overlap", columns, lines)


def print_survey(record: Mapping[str, Any]) -> None:
    """Print the tables, some repeated texts, the remarks and the command."""
    for name, one in record["sets"].items():
        print_table(f"{name}: {one['fields_because']}")
    for grid in survey_tables(record):
        print_table("", grid.title, table_of(grid.columns, grid.lines))
        if grid.remark:
            print_table(grid.remark, style="dim")
    for title, shown in shown_texts(record):
        print_table("", title)
        for one in shown[:3]:
            places = ", ".join(f"{place['row']} {place['label']}" for place in one["places"])
            print_table(f"  {_cut(one['text'])}  [{places}]")
    if record["remarks"]:
        print_table("", "To look at", *(f"  {remark}" for remark in record["remarks"]))
    print_table("", "To begin with", f"  {record['command']}", "")


def shown_texts(record: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Yield lists of texts that occur several times, each with its title."""
    for pair in record["overlap"]:
        if pair["examples"]:
            yield f"In {pair['first']} and in {pair['second']}", pair["examples"]
    for name, one in record["sets"].items():
        if one["shown_conflicts"]:
            yield f"{name}: one text, several labels", one["shown_conflicts"]
        if one["shown_duplicates"]:
            yield f"{name}: most repeated texts", one["shown_duplicates"]


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"
