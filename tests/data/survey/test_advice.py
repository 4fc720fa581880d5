"""What nlu.data and its errors advise works: each command of a report, and each flag of an error, is run."""

import json
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.commands.data import main
from nlu.commands.preprocess import facts_of
from nlu.config.errors import UserError
from tests.data.conftest import Survey
from tests.training.in_process import composed

ROWS = range(40)


def text(number: int) -> str:
    rng = random.Random(number)
    return " ".join(rng.choice("the good food and a bad place in town with very nice people".split()) for _ in range(6))


def table(names: str, row: Callable[[int], str]) -> str:
    return "\n".join([names, *(row(n) for n in ROWS), ""])


def records(row: Callable[[int], dict[str, Any]]) -> str:
    return "".join(json.dumps(row(n)) + "\n" for n in ROWS)


def labelled(names: str, *labels: str) -> str:
    """A csv file of texts with these labels in turn."""
    return table(names, lambda n: f"{text(n)} {n},{labels[n % len(labels)]}")


def word_rows(number: int) -> str:
    tags = ["B-X", "O", "O", "O", "O", "O"]
    begin = [f"Sentence: {number}", *[""] * 5]
    return "\n".join(map(",".join, zip(begin, text(number).split(), tags, strict=True)))


PLAIN = labelled("text,label", "p", "n")
FILES = {
    "plain.csv": (PLAIN, ["data.fields={text: text, label: label}"]),
    "genres.csv": (
        labelled("plot,genres", '"A, B"', "A", '"B, C"', "C"),
        ["task=multilabel", 'data.label_separator=", "'],
    ),
    "aspects.csv": (
        labelled("text,label", '"speed,taste"', "speed", '"price,taste"'),
        ["task=multilabel", 'data.label_separator=","'],
    ),
    "lists.csv": (labelled("summaries,terms", "\"['a', 'b']\"", "['b']"), ["task=multilabel"]),
    "toxic.csv": (
        table("id,comment_text,toxic,rude", lambda n: f"{n},{text(n)} {n},{n % 2},{int(n % 5 == 0)}"),
        ["task=multilabel", "data.fields={text: comment_text, label: [toxic, rude]}"],
    ),
    "flags.jsonl": (
        records(lambda n: {"text": f"{text(n)} {n}", "labels": [n % 2, n % 3 // 2, 1]}),
        ["task=multilabel"],
    ),
    "pairs.csv": (
        table("question1,question2,is_duplicate", lambda n: f"{text(n)} {n},{text(-n)} {n},{n % 2}"),
        ["task=match"],
    ),
    "partly.csv": (labelled("text,label", "p", "n", ""), ["data.on_bad_row=skip"]),
    "unlabelled.csv": (table("id,comment", lambda n: f"{n},{text(n)} {n}"), ["task=mlm"]),
    "scores.csv": (table("text,score", lambda n: f"{text(n)} {n},{n / 7:.3f}"), ["task=regress"]),
    "pandas.tsv": (table("text\tlabel", lambda n: f'"he ""said"" {text(n)} {n}"\t{"pn"[n % 2]}'), ["data.quote='\"'"]),
    "unclosed.csv": (PLAIN + '"never closed,p\nlast,n\n', ["data.on_bad_row=skip"]),
    "latin.csv": (PLAIN.encode() + b"sch\xf6n,p\n", ["data.on_bad_row=skip"]),
    "broken.jsonl": (
        "no json\n" + records(lambda n: {"text": f"{text(n)} {n}", "label": "pn"[n % 2]}),
        ["data.on_bad_row=skip"],
    ),
    "nested.jsonl": (
        records(lambda n: {"data": {"text": f"{text(n)} {n}"}, "meta": {"label": "pn"[n % 2]}}),
        ["data.fields={text: 'data.text', label: 'meta.label'}"],
    ),
    "words.csv": (table("Sentence #,Word,Tag", word_rows), ["task=tag", "data.fields={tokens: Word, tags: Tag}"]),
    "joined.tsv": (
        "".join("\x02".join(text(n).split()) + "\t" + "\x02".join("O O O O O B-X".split()) + "\n" for n in ROWS),
        ["task=tag", "data.fields={tokens: 0, tags: 1}"],
    ),
    "doccano.jsonl": (
        records(lambda n: {"id": n, "text": f"Ann and {text(n)} {n}", "label": [[0, 3, "PER"]]}),
        ["task=tag", "data.fields={text: text, spans: label}"],
    ),
    "prodigy.jsonl": (
        records(lambda n: {"text": f"Ann and {text(n)} {n}", "spans": [{"start": 0, "end": 3, "label": "PER"}]}),
        ["task=tag", "data.fields={text: text, spans: spans}"],
    ),
    "numbers.jsonl": (
        records(lambda n: {"tokens": text(n).split(), "ner_tags": [n % 2, 0, 2, 0, 0, 0]}),
        ["task=tag", "data.labels=[TAG0,TAG1,TAG2]"],
    ),
    "tags.conll": ("".join(text(n).replace(" ", " O\n") + " B-X\n\n" for n in ROWS), ["task=tag"]),
    "documents.csv": (
        table("text,label", lambda n: f"{' '.join(map(text, range(n, n + 120)))},{'pn'[n % 2]}"),
        ["data.max_len=512", "data.long=windows"],
    ),
    "chinese.tsv": (
        "".join(f"\u8fd9\u5bb6\u5e97\u7684\u83dc\u5f88\u597d\u5403{n}\t{n % 2}\n" for n in ROWS),
        ["data.fields={text: 0, label: 1}"],
    ),
}


def advised(survey: Survey, *arguments: str) -> tuple[list[str], str, list[str]]:
    """The overrides of the command in a report, the command itself and the remarks."""
    told = survey(*arguments)
    return shlex.split(told["command"])[3:], told["command"], told["remarks"]


def runs(overrides: list[str]) -> dict[str, Any]:
    """Compose the run, and read its rows with a vocabulary of their words in place of weights."""
    composed(*overrides)
    return facts_of(composed(*(one for one in overrides if not one.startswith("model=")), "model=textcnn"))


@pytest.mark.parametrize("name", FILES)
def test_the_command_of_a_report_reads_the_rows_as_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survey: Survey
) -> None:
    monkeypatch.chdir(tmp_path)
    content, words = FILES[name]
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    overrides, command, _ = advised(survey, name)
    assert set(words) <= set(overrides)
    assert ("model=e5_small" in command) == (name != "chinese.tsv"), "pretrained for each language"
    facts = runs(overrides)
    assert sum(part["examples"] for part in facts["sets"].values()) >= 26


def test_a_set_without_a_label_of_train_is_left_out_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survey: Survey
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.csv").write_text(PLAIN)
    Path("test.csv").write_text(table("text,label", lambda n: f"{text(n)} of {n},-1"))
    Path("dev.csv").write_text(table("text,label", lambda n: f"{text(n)} for {n},{'pnx'[n % 3]}"))
    overrides, command, remarks = advised(survey, "train.csv", "dev.csv", "test.csv")
    assert "data.test" not in command and "data.dev=dev.csv" in command and "data.on_bad_row=skip" in command
    assert any("test: none of its labels (-1) is one of train" in remark for remark in remarks)
    assert runs(overrides)["sets"]["dev"]["bad_rows"] == 13


@pytest.mark.parametrize(
    ("name", "content", "flag"),
    [
        ("semicolons.csv", table("text;label", lambda n: f"{text(n)} {n};{'pn'[n % 2]}"), "--separator ';'"),
        ("tabs.csv", table("text\tlabel", lambda n: f"{text(n)} {n}\t{'pn'[n % 2]}"), "--format tsv"),
    ],
)  # fmt: skip
def test_the_flag_of_an_error_reads_the_file(
    name: str, content: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survey: Survey
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    with pytest.raises(UserError) as refused:
        main([name])
    assert f"set {flag.split()[0]}" in str(refused.value)
    assert runs(advised(survey, name, *shlex.split(flag))[0])["sets"]["train"]["examples"] == 36
