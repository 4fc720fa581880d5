"""Which columns are taken for texts and labels where nobody says."""

import json
from pathlib import Path

import pytest

from nlu.config.errors import DataError
from nlu.data.survey.columns import guess

LONG = "a text of some length that nobody else has"


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def table(header: list[str] | None, rows: list[list[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in [*([header] if header else []), *rows])


ROWS = [[str(n), f"{LONG} {n}", ("bad", "good")[n % 2]] for n in range(30)]


@pytest.mark.parametrize(
    ("header", "rows", "fields", "has_header"),
    [
        (["id", "review", "stars"], ROWS, {"text": "review", "label": "stars"}, True),
        (["n", "words of people", "kind"], ROWS, {"text": "words of people", "label": "kind"}, True),
        (None, ROWS, {"text": 1, "label": 2}, False),
        (["sentence1", "sentence2", "label"], [[row[1], row[1][2:], "0"] for row in ROWS],
         {"text_a": "sentence1", "text_b": "sentence2", "label": "label"}, True),
        (None, [[row[1], f"another one of like length {row[0]}", str(n % 2)] for n, row in enumerate(ROWS)],
         {"text_a": 0, "text_b": 1, "label": 2}, False),
        (["评论", "标签"], [[row[1], row[2]] for row in ROWS], {"text": "评论", "label": "标签"}, True),
        (["text"], [[row[1]] for row in ROWS], {"text": "text"}, True),
    ],
)  # fmt: skip
def test_columns_of_a_table(
    tmp_path: Path, header: list[str] | None, rows: list[list[str]], fields: dict[str, str | int], has_header: bool
) -> None:
    found = guess(written(tmp_path, "rows.tsv", table(header, rows)), "auto", None)
    assert (found.fields, found.header) == (fields, has_header)


def test_the_reason_of_each_column_is_told(tmp_path: Path) -> None:
    found = guess(written(tmp_path, "rows.tsv", table(["n", "words", "stars"], ROWS)), "auto", None)
    assert found.sentence() == "text = words (the longest texts), label = stars (by its name)"


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        ({"text": "x", "label": {"name": {"x": [[0, 0]]}}}, {"text": "text", "spans": "label"}),
        ({"tokens": ["x"], "ner_tags": ["O"]}, {"tokens": "tokens", "tags": "ner_tags"}),
        ({"question": "x", "answer": "y"}, {"text_a": "question", "text_b": "answer"}),
        ({"content": "x", "topics": ["a", "b"]}, {"text": "content", "label": "topics"}),
    ],
)
def test_columns_of_records(tmp_path: Path, record: dict[str, object], fields: dict[str, str]) -> None:
    found = guess(written(tmp_path, "rows.jsonl", f"{json.dumps(record)}\n" * 3), "auto", None)
    assert found.fields == fields


def test_text_files_are_tables_tags_or_lines_by_what_they_hold(tmp_path: Path) -> None:
    tags = guess(written(tmp_path, "tags.txt", "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n"), "auto", None)
    assert (tags.file_format, tags.fields) == ("conll", {"tokens": 0, "tags": 2})
    lines = guess(written(tmp_path, "lines.txt", "one text\nanother text\n"), "auto", None)
    assert (lines.file_format, lines.fields) == ("lines", {})
    both = guess(written(tmp_path, "table.txt", table(None, [row[1:] for row in ROWS])), "auto", None)
    assert (both.file_format, both.fields) == ("tsv", {"text": 0, "label": 1})


def test_a_table_with_separators_of_another_is_refused(tmp_path: Path) -> None:
    for name, separator in (("semicolons.csv", ";"), ("tabs.csv", "\t"), ("bars.tsv", "|")):
        path = written(tmp_path, name, f"text{separator}label\n" + f"good{separator}1\n" * 3)
        with pytest.raises(DataError, match=r"of one column, whose lines all hold .*write commas or tabs"):
            guess(path, "auto", None)
    for one_column in ("one; two\nthree\nfour; five; six\n", "a one;\na two;\na three;\n", '"a; b"\n"c; d"\n"e; f"\n'):
        texts = written(tmp_path, "texts.csv", f"text\n{one_column}")
        assert guess(texts, "auto", None).fields == {"text": "text"}


def test_a_file_without_texts_is_refused_with_its_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "numbers.csv", "width,height\n" + "1,2\n" * 9)
    with pytest.raises(DataError, match="no column seems to hold texts; it has width, height; .*--fields text=COLUMN"):
        guess(path, "auto", None)


@pytest.mark.parametrize(
    ("text", "tags"), [("text", "label"), ("tokens", "ner_tags"), ("sentence", "tags"), ("chars", "marks")]
)
def test_lists_of_characters_and_their_tags_are_recognised(tmp_path: Path, text: str, tags: str) -> None:
    rows = [
        {"id": str(number), text: list("在北京见王明"), tags: ["O", "B-LOC", "I-LOC", "O", "B-PER", "I-PER"]}
        for number in range(20)
    ]
    path = written(tmp_path, "t.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert guess(path, "auto", None).fields == {"tags": tags, "tokens": text}


def test_lists_of_labels_are_no_tags(tmp_path: Path) -> None:
    rows = [{"text": f"{LONG} {number}", "labels": ["sport", "money"][: number % 3]} for number in range(20)]
    path = written(tmp_path, "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert guess(path, "auto", None).fields["text"] == "text"
