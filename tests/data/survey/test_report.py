"""What is counted of files, against counts made otherwise."""

import csv
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.commands.data import main
from tests.data.conftest import Survey

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_rows(name: str, rows: list[tuple[str, str]]) -> None:
    with open(name, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def random_rows(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    return [
        (" ".join(rng.choice("abcdefghxy") for _ in range(rng.randint(1, 4))), rng.choice(["good", "bad", "odd"]))
        for _ in range(count)
    ]


@pytest.fixture
def counted(survey: Survey) -> tuple[dict[str, list[tuple[str, str]]], dict[str, Any]]:
    """The rows of two sets, and the record of a survey of them by a tokenizer that knows a to h."""
    rows = {"train": random_rows(5000, 1), "dev": random_rows(700, 2)}
    for name, own in rows.items():
        write_rows(f"{name}.csv", own)
    Path("vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    return rows, survey("train.csv", "dev.csv", "--tokenizer", "vocab.txt", "--max-len", "5")


def test_labels_lengths_and_unknown_tokens_are_those_of_the_rows(counted: Any) -> None:
    rows, record = counted
    for name, own in rows.items():
        found = record["sets"][name]
        assert found["rows"] == len(own) and found["labels"] == dict(Counter(label for _, label in own).most_common())
        lengths_N = np.array([len(text.split()) + 2 for text, _ in own])
        assert found["lengths"] == [np.percentile(lengths_N, 50), np.percentile(lengths_N, 95) // 1, lengths_N.max()]
        assert sum(found["length_histogram"]["counts"]) == len(own)
        cut = next(cut for cut in found["cut"] if cut["max_len"] == 5)
        assert cut["rows"] == pytest.approx((lengths_N > 5).mean())
        assert cut["tokens"] == pytest.approx(np.maximum(lengths_N - 5, 0).sum() / lengths_N.sum())
        words = [word for text, _ in own for word in text.split()]
        assert found["unknown"]["tokens"] == sum(word in "xy" for word in words)
        assert found["unknown"]["rows"] == sum("x" in text or "y" in text for text, _ in own)
    assert record["suggested_max_len"] == 16


def test_duplicates_conflicts_and_overlap_are_those_of_the_rows(counted: Any) -> None:
    rows, record = counted
    labels_of: dict[str, dict[str, set[str]]] = {}
    for name, own in rows.items():
        labels = labels_of.setdefault(name, {})
        for text, label in own:
            labels.setdefault(text, set()).add(label)
        found = record["sets"][name]
        assert found["duplicates"] == len(own) - len(labels)
        assert found["duplicates_with_same_label"] == len(own) - len(set(own))
        assert found["conflicts"] == sum(len(some) > 1 for some in labels.values())
        counts = Counter(text for text, _ in own)
        most = [shown["text"] for shown in found["shown_duplicates"]]
        assert sorted(counts[text] for text in most) == sorted(count for _, count in counts.most_common(10))
        for shown in found["shown_conflicts"]:
            assert {place["label"] for place in shown["places"] if place["set"] == name} == labels[shown["text"]]
    (pair,) = record["overlap"]
    train, dev = labels_of["train"], labels_of["dev"]
    assert pair["rows_of_first"] == sum(text in dev for text, _ in rows["train"])
    assert pair["rows_of_second"] == sum(text in train for text, _ in rows["dev"])
    assert pair["texts_with_other_labels"] == sum(dev[text] != train[text] for text in dev if text in train)
    for shown in pair["examples"]:
        for place in shown["places"]:
            line = int(place["row"].partition(":")[2])
            assert rows[place["set"]][line - 2] == (shown["text"], place["label"])


def test_without_a_tokenizer_words_are_counted_with_a_remark(
    capsys: pytest.CaptureFixture[str], survey: Survey
) -> None:
    write_rows("few.csv", [("我 love it", "a"), ("不好！", "b")] * 4)
    assert main(["few.csv", "--out", "page.html"]) == 0
    said = capsys.readouterr().out
    assert "words: median" in said
    assert "no tokenizer was given, so words are counted" in Path("page.html").read_text()
    assert survey("few.csv")["sets"]["few"]["lengths"] == [5, 5, 5]


def test_spans_and_several_labels_are_counted_one_by_one(survey: Survey) -> None:
    Path("tags.jsonl").write_text(
        '{"tokens": ["a", "b", "c", "d"], "tags": ["B-x", "I-x", "B-x", "O"]}\n'
        '{"tokens": ["a", "b", "c", "d"], "tags": ["I-y", "I-y", "O", "I-y"]}\n'
    )
    assert survey("tags.jsonl")["sets"]["tags"]["labels"] == {"x": 2, "y": 2}
    Path("spans.jsonl").write_text('{"text": "aba", "spans": {"x": {"a": [[0, 0], [2, 2]]}, "y": {"b": [[1, 1]]}}}\n')
    assert survey("spans.jsonl")["sets"]["spans"]["labels"] == {"x": 2, "y": 1}
    Path("topics.jsonl").write_text('{"text": "a", "topics": ["x", "y"]}\n{"text": "b", "topics": ["x"]}\n')
    found = survey("topics.jsonl")
    assert found["sets"]["topics"]["labels"] == {"x": 2, "y": 1} and "task=multilabel" in found["command"]


def test_rows_that_cannot_be_used_are_counted_and_listed(survey: Survey) -> None:
    write_rows("rows.csv", [("fine", "a"), ("", "b"), ("good", "b"), ("good", "")] * 5)
    found = survey("rows.csv")
    own = found["sets"]["rows"]
    assert (own["rows"], own["bad_rows"]) == (15, 5)
    assert own["listed_bad_rows"][0] == "rows.csv:3, 7, 11 and 2 more: field text: '' is empty"
    assert own["labels"]["(none)"] == 5
    assert any("5 rows without a label" in remark for remark in found["remarks"])
    assert "data.on_bad_row=skip" in found["command"]
