"""Which columns of new files a run reads that was trained on columns by number, and what is said of rows that fail."""

import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.inference.runs import STEPS, predict
from tests.training.in_process import MODEL, PLAIN, train
from tests.training.kinds import TASKS, Row, read, write

ROWS = "".join(f"{text}\t{label}\n" for text, label in [("a b", "good"), ("b c", "bad"), ("c a", "good")] * 4)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on the columns 0 and 1 of a table without a header."""
    folder = tmp_path_factory.mktemp("numbered")
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text(ROWS)
    data = f"data.train={folder}/train.tsv", f"data.dev={folder}/dev.tsv", "data.fields={text: 0, label: 1}"
    train(*MODEL, *PLAIN, "data=files", *data, *STEPS, f"hydra.run.dir={folder}/run")
    return folder / "run"


def predicted(run: Path, path: Path, *more: str) -> list[Row]:
    predict(f"run={run}", f"input={path}", f"output={path}.out.jsonl", *more)
    return read(Path(f"{path}.out.jsonl"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("new.tsv", "id\ttext\n7\ta b\n8\tb c\n"),
        ("new.csv", "text\na b\nb c\n"),
        ("new.csv", "编号,内容\n7,a b\n8,b c\n"),
        ("new.csv", "label,sentence\n1,a b\n0,b c\n"),
        ("new.jsonl", '{"id": 7, "text": "a b"}\n{"id": 8, "text": "b c"}\n'),
        ("new.jsonl", '{"review": "a b"}\n{"review": "b c"}\n'),
        ("new.json", '[{"id": 7, "sentence": "a b"}, {"id": 8, "sentence": "b c"}]'),
        # Without names of columns, the numbers are those of training.
        ("new.tsv", "a b\t7\nb c\t8\n"),
        ("new.tsv", "a b\nb c\n"),
    ],
)
def test_columns_with_usual_names_are_found_where_those_of_the_run_are_numbers(
    numbered: Path, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / "plain.tsv").write_text("a b\nb c\n")
    wanted = [row["prediction"] for row in predicted(numbered, tmp_path / "plain.tsv")]
    (tmp_path / name).write_text(content)
    found = predicted(numbered, tmp_path / name, "scores=true")
    assert [row["prediction"] for row in found] == wanted


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("new.tsv", "qid\ttext_a\n7\ta b\n8\tb c\n", "new.tsv:1: the first row seems to name the columns"),
        ("new.csv", "nr,opinion\n7,a b\n8,b c\n", "new.csv:1: the first row seems to name the columns"),
        (
            "new.jsonl",
            '{"id": 7, "opinion": "a b"}\n{"id": 8, "opinion": "b c"}\n',
            "the fields of this file have names",
        ),
    ],
)
def test_other_names_of_columns_are_answered_with_the_argument_to_add(
    numbered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, says: str
) -> None:
    (tmp_path / name).write_text(content)
    files = f"run={numbered}", f"input={tmp_path}/{name}", f"output={tmp_path}/out.jsonl"
    predict(*files, status=2)
    message = capsys.readouterr().err
    assert says in message and "{'text': 0}" in message
    (argument,) = re.findall(r"set '(input\.fields=\S+ \S+?})'", message)
    predict(*files, argument)
    assert [row["prediction"] for row in read(tmp_path / "out.jsonl")] and not (tmp_path / "out.jsonl.pieces").exists()
    if "input.header=false" in message:
        predict(*files[:2], f"output={tmp_path}/rows.jsonl", "input.header=false")
        assert len(read(tmp_path / "rows.jsonl")) == 3, "the first row is a row"


def test_one_cause_of_bad_rows_is_said_once(numbered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Any] = [{"text": "a b"}, *({"text": ""} for _ in range(40)), {"text": 5}, {"text": None}]
    write(tmp_path / "new.jsonl", rows)
    predict(f"run={numbered}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl", status=2)
    message = capsys.readouterr().err
    assert "42 of the 43 rows cannot be used" in message
    assert f"{tmp_path}/new.jsonl:2, 3, 4 and 37 more: field text: '' is empty" in message
    assert f"{tmp_path}/new.jsonl:42: field text: 5 is not a text" in message
    assert message.count("new.jsonl:") == 3


def test_texts_for_a_run_of_tokens_are_answered_with_the_argument_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "dev"):
        rows = [TASKS["tag"].row(random.Random(seed)) for seed in range(12)]
        write(tmp_path / f"{name}.jsonl", [{"text": row["tokens"], "tags": row["tags"]} for row in rows])
    data = f"data.train={tmp_path}/train.jsonl", f"data.dev={tmp_path}/dev.jsonl"
    own = "task=tag", "data.fields={tokens: text, tags: tags}"
    train(*MODEL, *PLAIN, "data=files", *data, *own, *STEPS, f"hydra.run.dir={tmp_path}/run")
    write(tmp_path / "new.jsonl", [{"text": "ab" * 20 + "中"} for _ in range(30)])
    files = f"run={tmp_path}/run", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl"
    predict(*files, status=2)
    message = capsys.readouterr().err
    assert "each row is read as one token" in message and "'input.fields={text: text}'" in message
    predict(*files, "input.fields={text: text}")
    assert len(read(tmp_path / "out.jsonl")) == 30
