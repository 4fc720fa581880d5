"""What is trained never sees held-out rows: where only they change, everything that is trained stays the same.

Held out are the rows of data.dev and data.test, those that data.dev_fraction splits off, and those of the fold that is
scored. A run is started twice; the second time each held-out row has other words and another length. Its label stays,
because the rows that are held out are spread over the labels.
"""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from safetensors.numpy import load_file

from nlu.models.task_model import TaskModel
from nlu.runs.predictions import Predictions, predictions_of
from nlu.training import build
from tests.training.in_process import PLAIN, column, composed, start
from tests.training.kinds import TEXTCNN, few_first, write

Row = dict[str, Any]
Rows = list[Row]
ROWS = 60
SPLIT = ("data.dev_fraction=0.3",)
FOLD = ("folds.count=3", "fold=1")
COMMON = (
    *TEXTCNN, *PLAIN, "data=files", "trainer.max_duration=6st", "trainer.eval_interval=3st", "trainer.batch_size=16",
)  # fmt: skip


def hash_of(text: str) -> int:
    """63 bits of BLAKE2b, as docs/guarantees.md says of the split."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def words(rng: random.Random, lexicon: str) -> str:
    """Some of 30 words of a lexicon, most of which occur several times in a set, and some only once."""
    return " ".join(f"{lexicon}{rng.randrange(30)}" for _ in range(rng.randint(2, 9)))


def other_text(rng: random.Random, row: Row, rows: Rows, first: str) -> str:
    """A text of other words that stays on its side: its hash has the same rank."""
    hashes = sorted({hash_of(one[first]) for one in rows})
    own = hash_of(row[first])
    place = hashes.index(own)
    below, above = hashes[place - 1] if place else -1, hashes[place + 1] if place + 1 < len(hashes) else 1 << 63
    while True:
        text = words(rng, "held")
        if below < hash_of(text) < above:
            return text


@dataclass(frozen=True)
class Case:
    """Rows of a kind, how they are split, and what else a held-out row is changed in."""

    options: tuple[str, ...]
    row: Callable[[random.Random], Row]
    change: Callable[[random.Random, Row], Row] = lambda rng, row: row
    text: str = "text"
    """the field whose text decides the side"""


def classes(rng: random.Random) -> Row:
    return {"text": words(rng, "w"), "label": rng.choice("aab")}


def pair(rng: random.Random) -> Row:
    return {"text_a": words(rng, "w"), "text_b": words(rng, "w"), "label": rng.choice("01")}


def number(rng: random.Random) -> Row:
    return {"text": words(rng, "w"), "label": rng.gauss(3, 2)}


def grouped(rng: random.Random) -> Row:
    return {**classes(rng), "shop": f"shop {rng.randrange(20)}"}


def other_second(rng: random.Random, row: Row) -> Row:
    return {**row, "text_b": words(rng, "held")}


WEIGHTS = "loss.class_weights=inverse_frequency"
CASES = {
    "the words of a split": Case((*SPLIT, WEIGHTS), classes),
    "duplicates of a split": Case((*SPLIT, "data.drop_duplicates=true"), classes),
    "pairs of a split": Case((*SPLIT, "task=match"), pair, other_second, text="text_a"),
    "groups of a split": Case((*SPLIT, "folds.group_by=shop"), grouped),
    "the words of a fold": Case(FOLD, classes),
}  # fmt: skip


def trained(folder: Path, options: Sequence[str]) -> tuple[dict[str, Any], set[int]]:
    """Run, and return everything that is trained or trains, and the rows that were held out."""
    first: dict[str, bytes] = {}

    def remembered(*arguments: Any) -> TaskModel:
        model = build_model(*arguments)
        first.update({name: value.numpy().tobytes() for name, value in model.state_dict().items()})
        return model

    build_model = build.build_model
    with mock.patch.object(build, "build_model", remembered):
        start(composed(*COMMON, *options), folder)
    checkpoint = folder / "checkpoints" / "last"
    (tokenizer,) = checkpoint.rglob("tokenizer.json")
    (labels,) = checkpoint.rglob("labels.json")
    (weights,) = checkpoint.rglob("model.safetensors")
    facts = json.loads((folder / "data.json").read_text())
    meaning = json.loads(labels.read_text())
    # The order in which the file names its labels for the first time is kept, and trains nothing.
    meaning["target"]["meta"].pop("remap", None)
    found = {
        "vocabulary": tokenizer.read_text(), "labels": meaning, "initial weights": first,
        "losses in order": column(folder, "loss"), "facts": (facts["target"], facts["sets"]["train"]),
        "final weights": {name: value.tobytes() for name, value in load_file(weights).items()},
    }  # fmt: skip
    return found, {record["id"] for record in Predictions(predictions_of(folder, "dev").path)}


FEW = ("the words of a split", "pairs of a split", "groups of a split", "the words of a fold")


@pytest.mark.parametrize("case", few_first(CASES, *FEW))
def test_nothing_that_is_trained_depends_on_the_rows_that_are_split_off(case: Case, tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [case.row(rng) for _ in range(ROWS)]
    if "data.drop_duplicates=true" in case.options:
        rows += [dict(row) for row in rows[::3]]
    path = tmp_path / "train.jsonl"
    fields = "{" + ", ".join(f"{key}: {key}" for key in rows[0] if key != "shop") + "}"
    options = (f"data.train={path}", f"data.fields={fields}", *case.options)
    write(path, rows)
    before, held_out = trained(tmp_path / "before", options)
    assert 5 < len(held_out) < ROWS / 2
    texts = {rows[number][case.text]: other_text(rng, rows[number], rows, case.text) for number in held_out}
    for number, row in enumerate(rows):
        if (text := texts.get(row[case.text])) is None:
            continue
        row = case.change(rng, row)
        rows[number] = {**row, case.text: text}
    write(path, rows)
    after, held_out_after = trained(tmp_path / "after", options)
    assert held_out_after == held_out
    for key, value in before.items():
        assert after[key] == value, key
    assert '"held' not in after["vocabulary"] and '"w1"' in after["vocabulary"]


@pytest.mark.parametrize("key", ["dev", "test"])
def test_nothing_that_is_trained_depends_on_the_files_that_are_scored(key: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    files = {name: [classes(rng) for _ in range(ROWS)] for name in ("train", "dev", "test")}
    options = tuple(f"data.{name}={tmp_path}/{name}.jsonl" for name in files)
    found = []
    for number in range(2):
        for name, rows in files.items():
            write(tmp_path / f"{name}.jsonl", rows)
        found.append(trained(tmp_path / str(number), (*options, WEIGHTS, "data.fields={text: text, label: label}"))[0])
        files[key] = [{"text": words(rng, "held"), "label": "a"} for _ in range(2 * ROWS)]
    assert found[0] == found[1]
