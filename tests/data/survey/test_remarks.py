"""What a report says of sets, and the command that it begins with, at each bound where they change."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data.dataset import SourceFile
from nlu.data.reader import BadRow, BadRows
from nlu.data.reading import Reading
from nlu.data.survey.letters import Letters
from nlu.data.survey.survey_report import Report, command, histogram, numbers_of, percentiles, remarks, report_on
from nlu.data.survey.walk import Source, Survey, Unknown
from nlu.data.tokenizing import wordpiece

TABLE: dict[str, Any] = {"text": "text", "label": "label"}


def survey(
    name: str, labels: Sequence[str], *, texts: Sequence[int] | None = None, tokens: Sequence[int] | None = None,
    fields: dict[str, Any] = TABLE, files: Sequence[SourceFile] | None = None, file_format: str = "auto",
    header: bool | None = None, letters: str = "a", **changes: Any,
) -> Survey:  # fmt: skip
    """A survey of rows with these labels, the numbers of their texts and how many tokens each has."""
    reading = Reading(fields, file_format, header, None, None)
    count = len(labels)
    found = Survey(Source(name, files or [SourceFile(Path(f"{name}.csv"))], reading, ""), **changes)
    found.labels, found.has_labels = Counter(labels), bool(set(labels) - {"(none)"})
    found.is_numeric = changes.get("is_numeric", False)
    found.hash_N = np.array(range(count) if texts is None else texts, np.int64)
    found.target_N = np.array([hash(label) for label in labels], np.int64)
    found.tokens_N = np.array([5] * count if tokens is None else tokens, np.int32)
    found.characters_N = 2 * found.tokens_N
    found.letters = Letters()
    found.letters.add([[letters]])
    return found


def report_of(*surveys: Survey, max_len: int | None = 128, words: bool = False, positions: int | None = None) -> Report:
    tokenizer = None if words else wordpiece(["[UNK]", "[CLS]", "[SEP]", "a"], True, "a test")
    return report_on(
        surveys, tokenizer, None if words else "REF", positions=positions, max_len=max_len, examples=0,
        advance=lambda rows: None,
    )  # fmt: skip


FINE = ["x", "y"] * 50
BAD = BadRows()
BAD.add(Path("a.csv"), BadRow(1, "text", "", "is empty"))


@pytest.mark.parametrize(
    ("one", "said"),
    [
        ({"labels": FINE}, []),
        ({"labels": ["x"] * 20 + ["y"]}, []),
        ({"labels": ["x"] * 21 + ["y"]}, ["the most frequent label has 21 times as many rows as the rarest"]),
        ({"labels": ["x"] * 5}, ["every row has the label x, so there is nothing to learn"]),
        ({"labels": ["x"] * 4 + ["(none)"]}, ["1 row without a label", "every row has the label x"]),
        ({"labels": ["(none)"] * 4}, []),
        ({"labels": [*FINE, "(none)"], "is_several": True}, []),
        ({"labels": ["x"] * 99 + ["y"]}, ["few rows have the label y (1); is it one?", "has 99 times as many"]),
        ({"labels": ["x"] * 98 + ["y"]}, ["has 98 times as many"]),
        ({"labels": ["x"] * 500 + [*"abcdefgh"]},
         ["a (1), b (1), c (1), d (1), e (1), f (1), g (1), h (1); is it one?", "has 500 times as many"]),
        ({"labels": ["x"] * 500 + [*"abcdefghi"]}, ["g (1), h (1), i (1); is it one?", "has 500 times as many"]),
        ({"labels": FINE, "bad": BAD}, ["1 row cannot be used; fix them, or set data.on_bad_row=skip"]),
        ({"labels": FINE, "texts": [0] * 6 + [*range(1, 95)]}, ["no model gets all of their rows right"]),
        ({"labels": ["x"] * 50 + ["y"] * 50, "texts": [0] * 6 + [*range(1, 95)]}, []),
        ({"labels": ["x"] * 50 + ["y"] * 50, "texts": [0] * 7 + [*range(1, 94)]}, ["6 rows (6%) with a text that"]),
        ({"labels": FINE, "tokens": [129] * 5 + [128] * 95}, []),
        ({"labels": FINE, "tokens": [129] * 6 + [128] * 94}, ["6.0% of the rows are longer than max_len 128 and are"]),
        ({"labels": FINE, "tokens": [2] * 100, "unknown": Unknown(2)}, []),
        ({"labels": FINE, "tokens": [2] * 100, "unknown": Unknown(3)},
         ["1.5% of the tokens are unknown to the tokenizer, which may be for another language"]),
        ({"labels": FINE, "letters": "a\ufffd\ufffd"}, ["2 damaged or private characters, which suggest"]),
        ({"labels": FINE, "letters": "a\u200b"}, ["1 invisible or control character; tokenizers drop them"]),
    ],
)  # fmt: skip
def test_remarks_on_a_set_name_only_its_anomalies(one: dict[str, Any], said: list[str]) -> None:
    found = remarks(report_of(survey("rows", **one)))
    assert len(found) == len(said)
    assert all(text.startswith("rows: ") and part in text for text, part in zip(found, said, strict=True))


def test_remarks_name_shared_texts_first_and_then_anomalies_of_each_set() -> None:
    train = survey("train", ["x", "y", "x"], texts=[1, 2, 3])
    dev = survey("dev", ["x", "y", "z", "(none)"], texts=[1, 3, 4, 5])
    test = survey("test", ["y", "y"], texts=[6, 7])
    found = remarks(report_of(dev, train, test))
    assert [text.partition(";")[0].partition(": scores")[0] for text in found] == [
        "2 rows of train have a text that dev has too, 1 text of them with other labels",
        "dev: 1 row without a label, which data.on_bad_row=skip leaves out",
        "dev: has labels that train lacks, which are never learned: z",
        "test: every row has the label y, so scores of this set say nothing about x",
    ]
    unlabelled = survey("other", ["(none)"] * 2, texts=[1, 9])
    assert [text.partition(":")[0] for text in remarks(report_of(train, unlabelled))] == [
        "1 row of other has a text that train has too"
    ]


@pytest.mark.parametrize(
    ("tokens", "words", "positions", "suggested", "tried"),
    [
        ([3], False, None, 16, [16]), ([16] * 100, False, None, 16, [16]), ([17] * 100, False, None, 24, [16, 24]),
        ([24] * 100, False, None, 24, [16, 24]), ([25] * 100, False, None, 32, [16, 32]),
        # Words lack the special tokens.
        ([14] * 9, True, None, 16, [16]), ([15] * 9, True, None, 24, [16, 24]),
        # One row of a hundred may be cut, of a hundred and one too.
        ([10] * 100 + [40], False, None, 16, [16, 32, 64]), ([10] * 98 + [40, 40], False, None, 40, [16, 32, 40]),
        ([600] * 9, False, None, 512, [16, 32, 64, 96, 128, 192, 256, 384, 512]),
        ([60] * 9, False, 48, 48, [16, 32, 48]),
        ([64] * 9, False, None, 64, [16, 32, 64]), ([65] * 9, False, None, 72, [16, 32, 64, 72]),
    ],
)  # fmt: skip
def test_a_max_len_is_suggested_that_leaves_nearly_all_rows_whole(
    tokens: list[int], words: bool, positions: int | None, suggested: int, tried: list[int]
) -> None:
    one = survey("rows", ["x"] * len(tokens), tokens=tokens)
    report = report_of(one, max_len=None, words=words, positions=positions)
    assert report.suggested_max_len == report.max_len == suggested
    assert [max_len for max_len, _, _ in report.cuts(one)] == tried
    lengths_N = np.array(tokens) + 2 * words
    assert report.lengths(one).tolist() == lengths_N.tolist()
    for max_len, rows, lost in report.cuts(one):
        assert rows == pytest.approx(sum(length > max_len for length in lengths_N) / len(tokens))
        assert lost == pytest.approx(sum(max(0, length - max_len) for length in lengths_N) / lengths_N.sum())


def test_pairs_of_words_have_three_special_tokens_and_a_given_max_len_is_kept() -> None:
    pair = survey("rows", ["x", "y"], tokens=[10, 20], fields={"text_a": "a", "text_b": "b"})
    report = report_of(pair, words=True, max_len=7)
    assert report.lengths(pair).tolist() == [13, 23] and (report.max_len, report.suggested_max_len) == (7, 24)
    assert [max_len for max_len, _, _ in report.cuts(pair)] == [7, 16, 32]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300))
def test_each_value_is_in_the_bin_of_its_width_and_the_last_one_holds_the_rest(values: list[int]) -> None:
    found = histogram(np.array(values))
    width, counts = found["width"], found["counts"]
    assert sum(counts) == len(values) and len(counts) <= 64 and found["most"] == max(values)
    end = max(1, sorted(values)[-(-(len(values) - 1) * 995 // 1000)])
    assert width == (end + 64) // 64, "the smallest with which 64 bins reach the end"
    for place, count in enumerate(counts[:-1]):
        assert count == sum(place * width <= value < (place + 1) * width for value in values)
    assert counts[-1] == sum(value >= (len(counts) - 1) * width for value in values)
    assert end // width >= len(counts) - 1


def test_percentiles_are_median_95_and_most() -> None:
    assert percentiles(np.arange(101)) == [50, 95, 100] and percentiles(np.array([1, 2])) == [1, 1, 2]
    numbers = survey("rows", [str(n) for n in range(60)], is_numeric=True)
    numbers.numbers_N = np.array([*range(59), np.nan])
    assert numbers_of(numbers) == {"least": 0.0, "25 %": 14.5, "median": 29.0, "75 %": 43.5, "greatest": 58.0}
    assert numbers_of(survey("rows", ["x", "y"])) is None


LABELLED = [SourceFile(Path("n.txt"), "neg"), SourceFile(Path("p.txt"), "pos")]
SEVERAL = [SourceFile(Path("a.csv")), SourceFile(Path("b.csv"))]
FIELDS = "'data.fields={text: text, label: label}'"


OF_FILE = f"data=files data.train=train.csv {FIELDS} data.max_len=128"


@pytest.mark.parametrize(
    ("surveys", "model", "words"),
    [
        ([{}], None, f"model=e5_small {OF_FILE}"),
        ([{"letters": "好"}], None, OF_FILE),
        ([{}], "hf://m", f"model.pretrained=hf://m {OF_FILE}"),
        ([{"texts": [0, 0, 2, 3], "labels": [*"xxyy"]}], "m",
         f"model.pretrained=m {OF_FILE} data.drop_duplicates=true"),
        ([{"texts": [0, 0, 2, 3], "labels": [*"xyxy"]}], "m", f"model.pretrained=m {OF_FILE}"),
        ([{"name": "TEST"}, {"name": "my-train"}, {"name": "b", "labels": ["(none)"]}, {"name": "c"}], "m",
         f"model.pretrained=m data=files data.train=my-train.csv data.dev=c.csv data.test=TEST.csv {FIELDS} "
         "data.max_len=128"),
        ([{"files": SEVERAL, "fields": {}, "file_format": "csv"}], "m",
         "model.pretrained=m data=files 'data.train=[a.csv,b.csv]' data.max_len=128"),
        ([{"files": LABELLED, "fields": {}, "file_format": "lines"}], "m",
         "model.pretrained=m data=files 'data.train={neg: n.txt, pos: p.txt}' data.format=lines data.max_len=128"),
        ([{"header": False, "fields": {"text": 0}}], "m",
         "model.pretrained=m data=files data.train=train.csv 'data.fields={text: 0}' data.max_len=128"),
        ([{"header": True, "fields": {"text": 0}}], "m",
         "model.pretrained=m data=files data.train=train.csv 'data.fields={text: 0}' data.header=true "
         "data.max_len=128"),
    ],
)  # fmt: skip
def test_the_command_to_begin_with_says_what_these_rows_need(
    surveys: list[dict[str, Any]], model: str | None, words: str
) -> None:
    made = [survey(**{"name": "train", "labels": [*"xyxy"], **one}) for one in surveys]
    assert command(report_of(*made), model) == f"python -m nlu.train {words}"
