"""Texts that occur more than once: how many of their rows are shown, and which."""

import csv
from pathlib import Path
from typing import Any

import pytest

from nlu.data.survey.repeated_texts import Shown
from nlu.data.survey.sources import of_files
from nlu.data.survey.survey_report import Report, report_on
from nlu.data.survey.walk import walk

Rows = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report_of(examples: int, **sets: Rows | list[str]) -> Report:
    """A report on sets of rows, or of texts without labels."""
    surveys = []
    for name, rows in sets.items():
        with open(f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            has_labels = isinstance(rows[0], tuple)
            csv.writer(file).writerows([("text", "label")[: 1 + has_labels], *(r if has_labels else [r] for r in rows)])
        fields: Any = {"text": "text"} | ({"label": "label"} if has_labels else {})
        (source,) = of_files([f"{name}.csv"], fields, "auto", None, None)
        surveys.append(walk(source, None, lambda rows: None))
    return report_on(
        surveys, None, None, positions=None, max_len=None, examples=examples,
        advance=lambda rows: None,
    )  # fmt: skip


def places(shown: Shown) -> list[tuple[str, int, str]]:
    return [(one.set, int(one.row.partition(":")[2]), one.label) for one in shown.places]


def test_the_first_rows_of_a_repeated_text_and_those_with_other_labels_are_shown() -> None:
    labels = ["a"] * 1100
    labels[500] = labels[501] = "d"
    labels[1000] = "b"
    one = report_of(3, train=[("same", label) for label in labels]).withins["train"]
    (shown,) = one.shown_duplicates
    assert (shown.text, shown.rows) == ("same", 1100)
    # Line 1 is the header.
    first = [("train", line, "a") for line in range(2, 8)]
    assert places(shown) == [*first, ("train", 502, "d"), ("train", 1002, "b")]
    assert one.shown_conflicts == [shown] and (one.duplicates, one.with_same_label, one.conflicts) == (1099, 1097, 1)


def test_a_set_without_labels_is_in_no_conflict_with_one_that_has_some() -> None:
    for sets in ({"train": [("x", "a"), ("y", "b")], "test": ["x", "z", "x"]}, {"train": ["x", "z"], "dev": ["x"]}):
        (pair,) = report_of(2, **sets).betweens
        assert pair.conflicts == 0 and [shown.text for shown in pair.shown] == ["x"]
        assert pair.rows == (1, len([text for text in list(sets.values())[1] if text == "x"]))


def test_texts_of_pairs_and_rows_that_cannot_be_used_keep_their_lines() -> None:
    Path("p.jsonl").write_text(
        '{"a": "x", "b": "y", "l": 1}\n{"a": "", "b": "y", "l": 1}\n\n{"a": "x", "b": "y", "l": 0}\n'
    )
    (source,) = of_files(["p.jsonl"], {"text_a": "a", "text_b": "b", "label": "l"}, "auto", None, None)
    survey = walk(source, None, lambda rows: None)
    report = report_on([survey], None, None, positions=None, max_len=None, examples=2, advance=lambda rows: None)
    (shown,) = report.withins["p"].shown_conflicts
    assert shown.text == "x / y" and places(shown) == [("p", 1, "1"), ("p", 4, "0")]
