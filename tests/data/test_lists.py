"""Lists of tokens and tags in tables: in the cells of a row, or a token a row."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nlu.config.errors import DataError
from nlu.data.reader import BadRow
from nlu.data.readers import read_rows

NAMED = {"tokens": "tokens", "tags": "tags"}


def read(path, fields=NAMED):
    return list(read_rows(path, "auto", fields, None))


def of(row):
    return row.values["tokens"], row.values["tags"]


@pytest.mark.parametrize(
    ("cells", "tokens", "tags"),
    [
        ("EU rejects x\tB-ORG O O", ["EU", "rejects", "x"], ["B-ORG", "O", "O"]),
        ("我\x02在\x02 \x02京\tO\x02O\x02O\x02B-LOC", ["我", "在", " ", "京"], ["O", "O", "O", "B-LOC"]),
        ("EU x\tB-ORG,O", ["EU", "x"], ["B-ORG", "O"]),
        ("EU, x\tB-ORG, O", ["EU", "x"], ["B-ORG", "O"]),
        ("a|b c\tO|X", ["a", "b c"], ["O", "X"]),
        ("我在北京\tO O B-LOC I-LOC", list("我在北京"), ["O", "O", "B-LOC", "I-LOC"]),
        (", .\t, .", [",", "."], [",", "."]),
        ("EU\tB-ORG", ["EU"], ["B-ORG"]),
        ("['EU', ' ', \"it's\"]\t['B-ORG', 'O', 'O']", ["EU", " ", "it's"], ["B-ORG", "O", "O"]),
        ('["EU", "x"]\t[3, 0]', ["EU", "x"], [3, 0]),
        ("['EU' 'x'\n 'y']\t[3 0 0]", ["EU", "x", "y"], [3, 0, 0]),
        ("[ 1 ]\tO O O", ["[", "1", "]"], ["O", "O", "O"]),
    ],
)
def test_a_cell_writes_a_list_of_tokens_or_tags(write, cells, tokens, tags):
    quoted = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells.split("\t"))
    first, _ = read(write("a.csv", f"tokens,tags\n{quoted}\nx y,O O\n"))
    assert of(first) == (tokens, tags)
    one, two = cells.split("\t")
    assert [of(row) for row in read(write("a.jsonl", json.dumps({"tokens": one, "tags": two})))] == [(tokens, tags)]


@pytest.mark.parametrize(
    "content",
    ["Sentence #,Word,POS,Tag\nSentence: 1,EU,N,B-ORG\n,x,V,O\nSentence: 2,y,N,O\n",
     "Word,sentence_idx,Tag\nEU,1,B-ORG\nx,1,O\ny,2,O\n", "Word,Tag\nEU,B-ORG\nx,O\n\ny,O\n"],
)  # fmt: skip
def test_a_table_may_have_a_token_a_row(write, content):
    rows = read(write("a.csv", content), {"tokens": "Word", "tags": "Tag"})
    assert [of(row) for row in rows] == [(["EU", "x"], ["B-ORG", "O"]), (["y"], ["O"])]
    assert rows[0].number == 2


def test_a_field_names_the_column_of_sentences_of_a_table_without_header(write):
    path = write("a.tsv", "7\tEU\tB-ORG\n7\tx\tO\n9\tz\tO\n9\ty\n")
    first, bad = read(path, {"sentence_id": 0, "tokens": 1, "tags": 2})
    assert of(first) == (["EU", "x"], ["B-ORG", "O"])
    assert isinstance(bad, BadRow) and bad.number == 4


def test_tokens_in_rows_without_sentences_are_refused_with_the_field_to_set(write):
    with pytest.raises(DataError, match=r"data\.fields\.sentence_id"):
        read(write("a.csv", "tokens,tags\nEU,B-ORG\nx,O\n"))


def test_numbers_of_parquet_have_the_names_that_datasets_wrote(tmp_path):
    names = ["O", "B-X", "I-X"]
    of_class = {"names": names, "_type": "ClassLabel"}
    features = {"tags": {"feature": of_class, "_type": "List"}, "label": of_class, "id": {"_type": "Value"}}
    table = pa.table({"tokens": [["a", "b"]], "tags": [[1, 2]], "label": [1], "id": [1]})
    written = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(written), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet", {**NAMED, "label": "label", "text": "id"})
    assert row.values == {"tokens": ["a", "b"], "tags": ["B-X", "I-X"], "label": "B-X", "text": 1}
