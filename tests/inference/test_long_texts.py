"""Rows that are longer than a sequence: read in windows, cut with a sign, or refused."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu
from nlu.config.errors import DataError
from tests.inference.runs import predict, trained
from tests.training.in_process import train
from tests.training.kinds import Kind, classes, labels, number, pair_of_classes, read, tags, write

MAX_LEN, STRIDE, ROOM = 8, 2, 6
IN_WINDOWS = ("data.long=windows", f"data.max_len={MAX_LEN}", f"data.stride={STRIDE}")
KINDS = {
    "classify": Kind(IN_WINDOWS, classes),
    "regress": Kind(("task=regress", *IN_WINDOWS), number),
    "multilabel": Kind(("task=multilabel", *IN_WINDOWS), labels),
    "tag": Kind(("task=tag", *IN_WINDOWS), tags),
}


def windows(letters: list[str]) -> list[list[str]]:
    """Cut a row in as few windows as its letters need, even to a letter, neighbours sharing STRIDE."""
    count = 1
    while count * ROOM - (count - 1) * STRIDE < len(letters):
        count += 1
    total = len(letters) + (count - 1) * STRIDE
    found, start = [], 0
    for place in range(count):
        size = total // count + (place < total % count)
        found.append(letters[start : start + size])
        start += size - STRIDE
    return found


def texts(count: int, longest: int) -> list[str]:
    rng = random.Random(7)
    return [" ".join(rng.choice("abcdefgh") for _ in range(rng.randint(1, longest))) for _ in range(count)]


@pytest.mark.parametrize("name", list(KINDS))
def test_a_long_text_is_answered_by_its_windows_each_by_itself(name: str, tmp_path: Path) -> None:
    run = trained(KINDS[name], tmp_path)
    one, many = nlu.load(run, device="cpu", batch_size=1), nlu.load(run, device="cpu", batch_size=32)
    long = texts(20, 40)
    rows: list[Any] = [text.split() if name == "tag" else text for text in long]
    found = many.predict(rows, logits=True)
    assert found == one.predict(rows, logits=True)
    for text, answer in zip(long, found, strict=True):
        parts = windows(text.split())
        assert answer["windows"] == len(parts)
        alone = [one.predict([part if name == "tag" else " ".join(part)], logits=True)[0]["logits"] for part in parts]
        if name == "tag":
            wanted = farthest_from_an_edge(alone)
        else:
            wanted = np.max(alone, axis=0) if name == "multilabel" else np.mean(alone, axis=0)
        assert np.allclose(answer["logits"], wanted, atol=1e-6, rtol=0)
    vectors = many.encode(long[:3])
    for text, vector in zip(long[:3], vectors, strict=True):
        own = [one.encode([" ".join(part)])[0] for part in windows(text.split())]
        assert np.allclose(vector, np.mean(own, axis=0), atol=1e-6)


def farthest_from_an_edge(alone: list[list[list[float]]]) -> list[list[float]]:
    """Return the logits of each unit from the window where its nearest edge is farthest; the first of equal ones."""
    begins, best = [0], dict[int, tuple[float, list[float]]]()
    for part in alone[:-1]:
        begins.append(begins[-1] + len(part) - STRIDE)
    for window, (begin, part) in enumerate(zip(begins, alone, strict=True)):
        for place, logits in enumerate(part):
            left = place if window else np.inf
            right = len(part) - 1 - place if window < len(alone) - 1 else np.inf
            if begin + place not in best or min(left, right) > best[begin + place][0]:
                best[begin + place] = min(left, right), logits
    return [best[place][1] for place in range(len(best))]


def test_an_answer_says_that_its_text_was_cut(tmp_path: Path) -> None:
    run = trained(Kind((f"data.max_len={MAX_LEN}",), classes), tmp_path)
    short, long = "a b c", " ".join("abcdefgh")
    loaded = nlu.load(run, device="cpu")
    whole, cut = loaded.predict([short, long])
    assert cut == loaded.predict(["a b c d e f"])[0] | {"cut": True} and "cut" not in whole
    write(tmp_path / "new.jsonl", [{"text": short}, {"text": long}])
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl")
    assert [row.get("cut") for row in read(tmp_path / "out.jsonl")] == [None, True]


def test_a_long_text_is_a_bad_row_where_it_is_to_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = Kind(("data.long=error", f"data.max_len={MAX_LEN}"), classes)
    train(*refused.overrides(tmp_path), f"hydra.run.dir={tmp_path}/run", status=2)
    says = capsys.readouterr().err
    rows = read(tmp_path / "train.jsonl")
    long = [number for number, row in enumerate(rows, 1) if len(row["text"].split()) > ROOM]
    count = len(rows[long[0] - 1]["text"].split()) + 2
    rule = f"has {count} tokens, more than data.max_len, {MAX_LEN}, and data.long is error"
    first = ", ".join(map(str, long[:3]))
    assert f"train.jsonl:{first} and {len(long) - 3} more: field text: " in says and rule in says
    run = trained(Kind(("data.long=error", f"data.max_len={MAX_LEN}", "data.on_bad_row=skip"), classes), tmp_path)
    facts = json.loads((run / "data.json").read_text())["sets"]["train"]
    assert facts["bad_rows"] == len(long) and facts["examples"] == len(rows) - len(long)
    with pytest.raises(DataError, match="row 2: field text: .* has 11 tokens"):
        nlu.load(run, device="cpu").predict(["a b", "a b c d e f g h a"])
    # The same run reads it whole, or cuts it, if asked.
    assert nlu.load(run, device="cpu", long="windows").predict(["a b c d e f g h a"])[0]["windows"] == 2
    assert nlu.load(run, device="cpu", long="cut").predict(["a b c d e f g h a"])[0]["cut"] is True


def test_predict_reads_documents_by_a_run_of_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(Kind((f"data.max_len={MAX_LEN}",), classes), tmp_path)
    long = " ".join("abcdefghab")
    (tmp_path / "new.csv").write_text(f"text\na b\n{long}\n")
    files = f"run={run}", f"input={tmp_path}/new.csv"
    predict(*files, f"output={tmp_path}/cut.csv")
    assert f"cut to data.max_len, 8 tokens: 1 row ({tmp_path}/new.csv:3); long=windows" in capsys.readouterr().err
    predict(*files, f"output={tmp_path}/windows.csv", "long=windows")
    header, *rows = (line.split(",") for line in (tmp_path / "windows.csv").read_text().splitlines())
    assert header == ["text", "prediction", "probability", "windows"] and [row[3] for row in rows] == ["1", "2"]
    pairs = trained(Kind(("task=match",), pair_of_classes), tmp_path / "pairs")
    predict(f"run={pairs}", f"input={tmp_path}/new.csv", f"output={tmp_path}/no.csv", "long=windows", status=2)
    assert "long is windows, which reads one long text" in capsys.readouterr().err
