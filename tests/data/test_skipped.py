"""data.on_bad_row=skip leaves out every bad row that it meets, finds the rows behind it, and counts and lists them."""

import pytest

from nlu.config.errors import DataError
from nlu.data.dialect import Dialect
from nlu.data.facts import describe, lines
from nlu.data.reader import BadRow
from nlu.data.readers import read_rows

NAMED = {"text": "text", "label": "label"}


@pytest.fixture
def skipped(write, open_files):
    """The texts that are left of a training set, and the bad rows that are listed."""

    def read(name, content, **settings):
        train = write(name, content)
        settings = {"fields": NAMED, "on_bad_row": "skip", "labels": ["0", "1"], **settings}
        store = open_files(train=train, dev=train, **settings)
        facts = describe(store)["sets"]["train"]
        assert f"train: {facts['bad_rows']} bad row" in "\n".join(lines(describe(store)))
        texts = [text for found in store.sets["train"].texts() for text in found.values()]
        return texts, [line.removeprefix(f"{train.parent}/") for line in facts["listed_bad_rows"]]

    return read


@pytest.mark.parametrize(
    ("content", "texts", "bad"),
    [
        # The quote that opens in line 3 meets those of line 5, none at all, or the end of the file.
        ('text,label\nfine,1\n"never closed,0\nnext,1\nsome "quoted",0\n"two\nlines",1\n',
         ["fine", "next", 'some "quoted"', "two\nlines"], ["t.csv:3: the row '\"never closed,0' has quotes"]),
        ('text,label\nfine,1\n"never closed,0\nnext,1\n', ["fine", "next"], ["t.csv:3: the row"]),
        ('text,label\n"a"b,1\n"open,0\n"also open,0\n"x, y",1\nnext,1\n"last,1', ["x, y", "next"],
         ["t.csv:2: ", "t.csv:3: ", "t.csv:4: ", "t.csv:7: "]),
        ("text,label\nfine,1\none\n,0\nx,2\na,b,1\nlast,0\n", ["fine", "last"],
         ["t.csv:3: the row 'one' makes 1 column", "t.csv:4: field text: '' is empty", "t.csv:5: field label: '2' is",
          "t.csv:6: the row 'a,b,1' makes 3 columns"]),
    ],
    ids=["quotes later", "no quotes later", "several", "other rows"],
)  # fmt: skip
def test_rows_of_a_table_that_cannot_be_read_are_left_out(skipped, content, texts, bad):
    found, listed = skipped("t.csv", content)
    assert found == texts and len(listed) == len(bad)
    assert all(line.startswith(start) for line, start in zip(listed, bad, strict=True))


@pytest.mark.parametrize(
    ("name", "head", "line", "settings"),
    [
        ("t.csv", b"text,label\n", b"sch\xf6n,1\n", {}), ("t.tsv", b"text\tlabel\n", b"sch\xf6n\t1\n", {}),
        ("t.csv", b"text,label\n", b"x,sch\xf6n\n", {"labels": ["sch\u00f6n", "y"]}),
        ("t.jsonl", b"", b'{"text": "sch\xf6n", "label": "1"}\n', {}),
        ("t.jsonl", b"", b'{"tokens": ["sch\xf6n"], "tags": ["O"]}\n',
         {"layout": "units", "fields": {"tokens": "tokens", "tags": "tags"}, "labels": ["X"]}),
        ("t.conll", b"", b"sch\xf6n\tB-X\n\n",
         {"layout": "units", "fields": {"tokens": 0, "tags": 1}, "labels": ["X"]}),
    ],
)  # fmt: skip
def test_a_line_with_bytes_that_are_not_utf_8_is_left_out(skipped, write, open_files, name, head, line, settings):
    good = line.replace(b"\xf6", "\u00f6".encode())
    texts, listed = skipped(name, head + 3 * good + line + good, **settings)
    assert len(texts) == 4 and len(listed) == 1
    assert listed[0].startswith(f"{name}:{7 if 'conll' in name else 4 + bool(head)}: field ") and "UTF-8" in listed[0]
    with pytest.raises(DataError, match="fix this line, or set data.on_bad_row=skip to leave such rows out"):
        open_files(train=write(name, head + line + 3 * good), **{"fields": NAMED, **settings})


def test_a_file_in_another_encoding_is_refused_although_bad_rows_are_left_out(skipped):
    content = "text,label\n" + "".join(f"\u597d\u8bc4 {n},{n % 2}\n" for n in range(9))
    with pytest.raises(DataError, match="iconv -f gb18030"):
        skipped("t.csv", content.encode("gbk"))


def test_many_quotes_that_never_close_take_little_time(write):
    path = write("t.csv", "text,label\n" + '"open,1\n' * 2000 + "plain,0\n" * 20_000)
    rows = list(read_rows(path, "csv", NAMED, True, dialect=Dialect(skips=True)))
    assert sum(isinstance(row, BadRow) for row in rows) == 2000 and len(rows) == 22_000
    assert [row.number for row in rows] == list(range(2, 22_002))
