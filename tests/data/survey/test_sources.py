"""Which columns are taken for texts and labels without --fields."""

import json
from pathlib import Path

import pytest

from nlu.config.errors import DataError
from nlu.data.survey.sources import guess

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


def test_separators_within_the_texts_of_one_column_are_no_other_table(tmp_path: Path) -> None:
    texts = written(tmp_path, "texts.csv", "text\none; two\nthree\nfour; five; six\n")
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


def columns_of(folder: Path, records: list[dict[str, object]]) -> dict[str, str | int]:
    path = written(folder, "rows.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    return guess(path, "auto", None).fields


@pytest.mark.parametrize(
    ("first", "second", "fields"),
    [
        # Two columns of texts are a pair while one is at most two and a half times as long as the other.
        (25, 10, {"text_a": "p", "text_b": "q"}), (26, 10, {"text": "p"}), (10, 25, {"text_a": "p", "text_b": "q"}),
        (10, 26, {"text": "q"}),
    ],
)  # fmt: skip
def test_texts_of_like_length_are_a_pair(tmp_path: Path, first: int, second: int, fields: dict[str, str]) -> None:
    records: list[dict[str, object]] = [
        {"p": f"{n:02}".rjust(first, "x"), "q": f"{n:02}".rjust(second, "y"), "n": n} for n in range(10, 20)
    ]
    assert columns_of(tmp_path, records) == fields


@pytest.mark.parametrize(
    ("different", "of", "is_label"),
    [(5, 10, True), (6, 10, False), (7, 7, True), (8, 8, False), (1, 10, False), (2, 10, True)],
)
def test_a_column_of_few_different_values_may_be_the_label(
    tmp_path: Path, different: int, of: int, is_label: bool
) -> None:
    records: list[dict[str, object]] = [{"of it": f"{LONG} {n}", "kind": f"k{n % different}"} for n in range(of)]
    found = columns_of(tmp_path, records)
    assert found == {"text": "of it"} | ({"label": "kind"} if is_label else {})


def test_at_most_two_hundred_different_values_are_labels_and_the_fewest_are_taken(tmp_path: Path) -> None:
    for most, label in ((200, {"label": "many"}), (201, {})):
        records: list[dict[str, object]] = [{"of it": f"{LONG} {n}", "many": n % most} for n in range(500)]
        assert columns_of(tmp_path, records) == {"text": "of it"} | label
    records = [{"of it": f"{LONG} {n}", "four": f"v{n % 4}", "three": f"v{n % 3}"} for n in range(40)]
    assert columns_of(tmp_path, records) == {"text": "of it", "label": "three"}


@pytest.mark.parametrize(
    ("numbers", "texts", "same", "is_text"),
    [(4, 6, 0, True), (5, 5, 0, False), (0, 4, 6, True), (0, 3, 7, False), (0, 2, 8, False)],
)
def test_a_column_of_texts_is_mostly_not_numbers_and_mostly_different(
    tmp_path: Path, numbers: int, texts: int, same: int, is_text: bool
) -> None:
    values = [*(f" {n}.5 " for n in range(numbers)), *(f"{LONG} {n}" for n in range(texts - (same > 0)))]
    values += ["the same"] * (same + (same > 0))
    path = written(tmp_path, "rows.jsonl", "".join(json.dumps({"value": value}) + "\n" for value in values))
    if is_text:
        assert guess(path, "auto", None).fields == {"text": "value"}
    else:
        with pytest.raises(DataError, match="no column seems to hold texts; it has value; "):
            guess(path, "auto", None)


@pytest.mark.parametrize(
    ("first", "rows", "is_header"),
    [
        (["n" * 40, "k"], [["a b", "1"]], True), (["n" * 41, "k"], [["a b", "1"]], False),
        (["a", ""], [["b", "1"]], False),
        (["k", "k"], [["b", "1"]], False), (["a", "b"], [["c", "d"]], False), (["a", "7"], [["c", "8"]], False),
        (["a", "b"], [["c", "1"], ["d", "x"]], False), ([" Text ", "b"], [["c", "d"]], True), (["a", "b"], [], False),
        (["a", "Premise"], [["c", "d"]], True),
    ],
)  # fmt: skip
def test_a_first_row_is_a_header_by_its_names_or_where_numbers_follow(
    tmp_path: Path, first: list[str], rows: list[list[str]], is_header: bool
) -> None:
    path = written(tmp_path, "rows.tsv", table(first, rows))
    assert guess(path, "auto", None).header == is_header


@pytest.mark.parametrize(
    ("lines", "file_format"),
    [
        ("a O\n\nb B-x\n", "conll"), ("a O\nb B-x\n", "lines"), ("a b\n\nc d\n", "lines"),
        ("a\tb c\n\nc\td e\n", "tsv"),
        # More than nine of ten lines hold a tag; so much of a sentence may lack it.
        ("\n" + "a O\n" * 10 + "b\n", "conll"), ("\n" + "a O\n" * 9 + "b\n", "lines"),
    ],
)  # fmt: skip
def test_the_format_of_a_text_file_is_recognized_by_its_lines(tmp_path: Path, lines: str, file_format: str) -> None:
    assert guess(written(tmp_path, "rows.txt", lines), "auto", None).file_format == file_format
