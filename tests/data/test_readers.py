"""Every format, read from real files, with the place of every value that cannot be used."""

from typing import get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nlu.config.command_keys import Input
from nlu.config.errors import DataError, UserError
from nlu.data.dialect import Dialect
from nlu.data.fields import FORMATS, SUFFIX_FORMATS
from nlu.data.reader import BadRow, Row
from nlu.data.readers import READERS, WIDTH, column_names, read_rows

TEXT_LABEL = {"text": "text", "label": "label"}


def read(path, fields=TEXT_LABEL, file_format="auto", header=None):
    return list(read_rows(path, file_format, fields, header))


def values(rows):
    return [tuple(row.values.values()) for row in rows]


def test_csv_quotes_may_hold_commas_quotes_and_newlines(write):
    path = write("a.csv", 'label,text\n1,"good, ""very"" good"\n0,"two\nlines"\n1,plain\n')
    rows = read(path)
    assert values(rows) == [('good, "very" good', "1"), ("two\nlines", "0"), ("plain", "1")]
    assert [row.number for row in rows] == [2, 3, 5]


def test_a_csv_quote_that_never_closes_is_an_error_at_its_row(write):
    path = write("a.csv", 'text,label\nfine,1\n"never closed,0\nnext,1\n')
    with pytest.raises(DataError, match=r"a\.csv:3: .*quotes"):
        read(path)


def test_tsv_knows_no_quotes(write):
    path = write("a.tsv", 'text\tlabel\n"he said\t1\nit is "so"\t0\n')
    assert values(read(path)) == [('"he said', "1"), ('it is "so"', "0")]


def test_tsv_lines_end_at_a_newline_only(write):
    path = write("a.tsv", "one\u2028text\x85more\x0c\t1\r\nnext\t0")
    assert values(read(path, {"text": 0, "label": 1})) == [("one\u2028text\x85more\x0c", "1"), ("next", "0")]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.tsv", "text\tlabel\nx\t1\n"), ("a.csv", "text,label\nx,1\n"), ("a.jsonl", '{"text": "x", "label": "1"}\n'),
     ("a.json", '[{"text": "x", "label": "1"}]')],
)  # fmt: skip
def test_a_byte_order_mark_is_removed(write, name, content):
    assert values(read(write(name, f"\ufeff{content}"))) == [("x", "1")]


def test_a_table_has_a_header_exactly_when_a_field_is_given_by_name(write):
    path = write("a.tsv", "text\tlabel\nx\t1\n")
    assert len(read(path, {"text": 0, "label": 1})) == 2
    assert len(read(path, {"text": 0, "label": "label"})) == 1
    assert len(read(path, {"text": 0, "label": 1}, header=True)) == 1


def test_a_column_that_the_header_lacks_is_refused_with_the_header(write):
    path = write("a.csv", "review,stars\nx,1\n")
    with pytest.raises(DataError, match=r"data\.fields\.text is 'text', but the header has \['review', 'stars'\]"):
        read(path)


def test_a_header_that_looks_like_a_row_is_refused_with_the_option_for_no_header(write):
    path = write("a.csv", f"{'it works ' * 9},5\nbad,1\n")
    with pytest.raises(DataError, match=r"works i\.\.\.', '5'\]; set .* a row of data, set data\.header=false"):
        read(path)


@pytest.mark.parametrize("fields", [TEXT_LABEL, {"text": 0, "label": 1}])
@pytest.mark.parametrize(
    ("name", "separator", "remedy"),
    [
        ("a.csv", ";", "set data.separator to ';'"),
        ("a.csv", "\t", "data.format=tsv"),
        ("a.tsv", ",", "data.format=csv"),
        ("a.tsv", "|", "set data.separator to '|'"),
    ],
)
def test_a_table_of_one_column_is_refused_with_the_separator_that_it_seems_to_have(
    write, name, separator, remedy, fields
):
    with pytest.raises(DataError) as refused:
        read(write(name, f"text{separator}label\nx{separator}1\n"), fields)
    assert f"seems to be {separator!r}: " in str(refused.value) and remedy in str(refused.value)


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_the_error_for_a_table_whose_lines_are_tokens_names_the_format(write, name):
    with pytest.raises(DataError, match=r"set data\.format=conll if each line is a token and its tag"):
        read(write(name, "my O\nand O\n"), {"tokens": 0, "tags": 1})


def test_a_column_number_beyond_the_row_is_refused(write):
    path = write("a.tsv", "x\t1\n")
    with pytest.raises(DataError, match=r"data\.fields\.label is column 2.*2 columns.*below 2"):
        read(path, {"text": 0, "label": 2})


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_row_of_another_width_is_bad_at_its_own_line(write, name, separator):
    lines = [["text", "label"], ["x", "1"], [], ["y", "1", "more"], ["z"], ["last", "0"]]
    rows = read(write(name, "\n".join(separator.join(cells) for cells in lines)))
    assert [(type(row), row.number) for row in rows] == [(Row, 2), (BadRow, 4), (BadRow, 5), (Row, 6)]
    assert "makes 3 columns where the first row of the file has 2" in rows[1].rule


WIDE = "a,x,1\nb,y,0,http://b,\nc,z\nd,v,1,,\n"
WIDTHS = [("a.csv", WIDE, [1, 4], []), ("a.tsv", WIDE.replace(",", "\t"), [1, 2, 4], [2]),
          ("longest_first.tsv", "b,y,0,http\na,x,1\nc,z\n".replace(",", "\t"), [1, 2], [2])]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "usable", "doubtful"), WIDTHS)
def test_rows_of_a_tsv_without_header_may_have_further_columns(write, tmp_path, name, text, usable, doubtful):
    rows = [row for row in read(write(name, text), {"text": 1, "label": 2}) if isinstance(row, Row)]
    assert [row.number for row in rows] == usable
    # Empty cells at the end are no doubt in any table. What the error of csv names reads them as tsv is read.
    without_quotes = read_rows(tmp_path / name, "csv", {"text": 1, "label": 2}, None, dialect=Dialect(",", quote=""))
    assert name != "a.csv" or [row.number for row in without_quotes if isinstance(row, Row)] == [1, 2, 4]
    assert [row.number for row in rows if WIDTH in row.values] == doubtful


def test_jsonl_rows_are_numbered_by_line_and_bad_ones_say_why(write):
    lines = ['{"text": "x", "label": 1}', "", '{"text": "y"', "[1]", '{"label": 1}', '{"text": "z"}']
    rows = read(write("a.jsonl", "\n".join(lines)))
    assert [(type(row), row.number) for row in rows] == [(Row, 1), (BadRow, 3), (BadRow, 4), (BadRow, 5), (Row, 6)]
    assert [row.rule.partition(":")[0] for row in rows[1:4]] == [
        "is not a JSON object", "is not an object with named fields", "lacks this field",
    ]  # fmt: skip
    assert rows[4].values == {"text": "z", "label": None}


def test_a_broken_json_list_is_an_error_with_its_line(write):
    with pytest.raises(DataError, match=r"a\.json:3: is not JSON: Expecting"):
        read(write("a.json", '[{"text": "x"},\n{"text": "y"},\n{"text" "z"}]'))


def test_parquet_columns_are_found_by_name_and_by_number(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [7, 8], "text": ["x", "y"], "label": [1, 0]}), path)
    assert values(read(path)) == values(read(path, {"text": 1, "label": 2})) == [("x", 1), ("y", 0)]


@pytest.mark.parametrize("column", ["stars", 3])
def test_a_column_that_parquet_lacks_is_refused_with_those_it_has(tmp_path, column):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [7], "text": ["x"], "label": [1]}), path)
    with pytest.raises(DataError, match=rf"no column \[{column!r}\]; the file has \['id', 'text', 'label'\]"):
        read(path, {"text": "text", "label": column})


def test_a_file_that_only_claims_to_be_parquet_is_refused(write):
    with pytest.raises(DataError, match="not a parquet file"):
        read(write("a.parquet", "text\tlabel\n"))


def test_conll_sentences_end_at_empty_lines_and_at_the_end(write):
    path = write("a.conll", "\nEU B-ORG 0\nrejects\t O\t0\n\n \t\nPeter B-PER 0\n\nBlackburn I-PER 0")
    rows = read(path, {"tokens": 0, "tags": 1})
    assert [(row.number, *row.values.values()) for row in rows] == [
        (2, ["EU", "rejects"], ["B-ORG", "O"]), (6, ["Peter"], ["B-PER"]), (8, ["Blackburn"], ["I-PER"]),
    ]  # fmt: skip


def test_the_wide_space_of_chinese_text_is_a_conll_token(write):
    (row,) = read(write("a.conll", "中 O\n\u3000 O\n国 B-LOC\n"), {"tokens": 0, "tags": 1})
    assert row.values == {"tokens": ["中", "\u3000", "国"], "tags": ["O", "O", "B-LOC"]}


def test_a_conll_line_without_a_tag_makes_its_sentence_bad_at_that_line(write):
    rows = read(write("a.conll", "a O\nb\nc O\n\nd O\n"), {"tokens": 0, "tags": 1})
    assert [(type(row), row.number) for row in rows] == [(BadRow, 2), (Row, 5)]


@pytest.mark.parametrize("fields", [{"text": 0, "label": 1}, {"tokens": "token", "tags": 1}])
def test_conll_with_other_fields_than_numbered_tokens_and_tags_is_refused(write, fields):
    with pytest.raises(DataError, match=r"tokens and tags, numbered from 0"):
        read(write("a.conll", "a O\n"), fields)


def test_each_line_of_plain_lines_is_a_text(write):
    rows = read(write("a.txt", "one, two\r\n\n  \nthree\tfour"), {}, "lines")
    assert [(row.number, row.values["text"]) for row in rows] == [(1, "one, two"), (4, "three\tfour")]


def test_a_suffix_that_tells_no_format_is_refused(write):
    with pytest.raises(DataError, match=r"'\.dat' tells no format; set data\.format"):
        read(write("a.dat", "x"))


def test_every_accepted_format_is_read():
    assert set(FORMATS) == {"auto", *READERS} and get_args(get_type_hints(Input)["format"]) == FORMATS
    assert set(SUFFIX_FORMATS.values()) <= set(READERS)


def test_a_bad_row_is_described_by_file_row_field_value_and_rule(tmp_path):
    said = [BadRow.of(3, "label", value, "is unknown").describe(tmp_path) for value in ("5", 5, None, ["é"])]
    assert [text.partition(": ")[2] for text in said] == [
        f"field label: {shown} is unknown" for shown in ("'5'", "5", "null", '["é"]')
    ]
    for length, shown in ((80, "x" * 80), (81, "x" * 77 + "...")):
        assert f"field label: {shown!r} is unknown" in BadRow(3, "label", "x" * length, "is unknown").describe(tmp_path)
    text = BadRow(12, "label", "x" * 100, "is not one of the labels").describe(tmp_path / "a.tsv")
    assert text == f"{tmp_path}/a.tsv:12: field label: {'x' * 77 + '...'!r} is not one of the labels"


@pytest.mark.parametrize(
    ("name", "content", "separator", "found"),
    [
        ("t.csv", 'text;label\n"a; b";1\n"c ""d""";2\n', ";", [("a; b", "1"), ('c "d"', "2")]),
        ("t.tsv", 'text|label\n"a, b|1\n', "|", [('"a, b', "1")]),
        ("t.csv", "text\tlabel\na,b\t1\n", "\t", [("a,b", "1")]),
    ],
)
def test_cells_are_separated_by_the_configured_separator(tmp_path, name, content, separator, found):
    path = tmp_path / name
    path.write_text(content)
    fields, dialect = {"text": "text", "label": "label"}, Dialect(separator)
    rows = list(read_rows(path, "auto", fields, None, dialect=dialect))
    assert [(row.values["text"], row.values["label"]) for row in rows] == found
    assert column_names(path, "auto", dialect) == ["text", "label"]


@pytest.mark.parametrize(
    ("name", "content", "quote", "found"),
    [
        ("t.csv", 'text,label\n"a" b,1\n5" c,2\n', "", [('"a" b', "1"), ('5" c', "2")]),
        ("t.csv", "text,label\n'a, b',1\nsays \"c\",2\n", "'", [("a, b", "1"), ('says "c"', "2")]),
        ("t.tsv", 'text\tlabel\n"a\tb\nc"\t1\n', '"', [("a\tb\nc", "1")]),
    ],
)
def test_cells_are_quoted_by_the_configured_character(tmp_path, name, content, quote, found):
    path = tmp_path / name
    path.write_text(content)
    rows = list(read_rows(path, "auto", {"text": "text", "label": "label"}, None, dialect=Dialect(quote=quote)))
    assert [(row.values["text"], row.values["label"]) for row in rows] == found


@pytest.mark.parametrize(
    ("name", "content", "fields", "number", "values"),
    [
        (
            "t.csv",
            'Report, "2026\n\ntext,label\na,1\n',
            {"text": "text", "label": "label"},
            4,
            {"text": "a", "label": "1"},
        ),
        ("t.tsv", "x\ty\tz\n#\ntext\na\n", {"text": "text"}, 4, {"text": "a"}),
        ("t.jsonl", 'not JSON\n\n{"text": "a"}\n', {"text": "text"}, 3, {"text": "a"}),
        ("t.conll", "a O\n\nb O\n", {"tokens": 0, "tags": 1}, 3, {"tokens": ["b"], "tags": ["O"]}),
        ("t.txt", "one\ntwo\nthree\n", {}, 3, {"text": "three"}),
    ],
)
def test_the_first_lines_of_a_file_may_be_skipped_and_still_count(tmp_path, name, content, fields, number, values):
    path = tmp_path / name
    path.write_text(content)
    file_format = "lines" if name.endswith(".txt") else "auto"
    assert list(read_rows(path, file_format, fields, None, dialect=Dialect(skip_lines=2))) == [Row(number, values)]
    if name.endswith("sv"):
        assert column_names(path, "auto", Dialect(skip_lines=2)) == list(fields)


@pytest.mark.parametrize("settings", [{"quote": "ab"}, {"quote": ";", "separator": ";"}, {"quote": "a"}, {"sheet": -1}])
def test_an_impossible_quote_or_sheet_is_refused(settings):
    with pytest.raises(UserError, match=r"data\.(quote|sheet) is"):
        Dialect(**settings)
