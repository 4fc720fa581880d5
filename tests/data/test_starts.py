"""Rows of a file that are read from places between them are those that are read from its start."""

from pathlib import Path

import pytest

from nlu.data.dialect import PLAIN, Dialect
from nlu.data.originals import Originals

QUOTED = 'id,text\r\n1,"a, ""b""\r\nc"\r\n\r\n2,d\r\n3,"中文\n\n"\r\n4,\r\n5\r\n6,e\r\n'
FILES = {
    "csv": ("a.csv", QUOTED, {"text": "text"}, PLAIN),
    "csv with a mark": ("a.csv", "\ufeff" + QUOTED, {"text": "text"}, PLAIN),
    "csv behind other lines": ("a.csv", "\ufeffmade é\n\n" + QUOTED, {"text": "text"}, Dialect(skip_lines=2)),
    "csv without a header": ("a.csv", '\n"1\n",a\n2,"b\n"\n3\n4,c,d\n5,e\n', {"text": 1}, PLAIN),
    "csv in single quotes": ("a.csv", "text;n\n'a;\nb';1\nc;2\nd;3\n", {"text": "text"}, Dialect(";", "'")),
    "tsv": ("a.tsv", 'text\tn\r\na "b\t1\r\n\r\n中\rc\t2\nd\t3', {"text": "text"}, PLAIN),
    "jsonl": ("a.jsonl", '\ufeff{"text": "a"}\n\n{"text": "中"}\n[1\n{"text": "b"}', {"text": "text"}, PLAIN),
    "json document": ("a.json", '[{"text": "a"},\n {"text": "b"}, {"text": "c"}]', {"text": "text"}, PLAIN),
    "lines": ("a.txt", "a\r\n\n中 b\n \nc", {}, PLAIN),
    "conll": ("a.conll", "-DOCSTART- O\n\na O\n中 B-X\n\n\nb O\n\n# no\nc O\nd O\n", {"tokens": 0}, PLAIN),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("every", [1, 2])
def test_rows_from_any_start_are_those_of_the_whole_file(tmp_path: Path, name: str, every: int) -> None:
    file_name, text, fields, dialect = FILES[name]
    (tmp_path / file_name).write_text(text, newline="")
    kind = "lines" if name == "lines" else file_name.partition(".")[2]
    source, starts = Originals(tmp_path / file_name, kind, fields, None, dialect), []
    whole = list(source.rows())
    assert list(source.rows_and_starts(every, starts)) == whole and len(whole) >= 3
    assert len(starts) == -(-len(whole) // every) and (None in starts[1:]) == (name == "json document")
    for number, start in enumerate(starts):
        assert list(source.rows(start)) == whole[number * every if start else 0 :], f"from {start}"
