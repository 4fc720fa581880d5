"""The first rows of each set, shown as the model gets them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.commands import preprocess
from nlu.data.dataset import Files
from nlu.data.prepare import first_rows
from nlu.data.store_plan import plan_of
from nlu.data.tokenizing import SPECIALS, WordPiece
from tests.training.in_process import program

VOCAB = [*SPECIALS, "a", "b", "c", "##c", "."]
TRAIN = [{"text": "a b.", "label": "z"}, {"text": "bcc unknown", "label": "y"}, {"text": "c", "label": "x"}]
Shaping = dict[str, Any]


@pytest.fixture
def shaping(empty_cache: Path, write: Callable[[str, str], Path]) -> Callable[..., Shaping]:
    """Return the arguments of `prepare` for some rows as train and dev."""

    def of(rows: list[dict[str, Any]], target: str = "Classes", layout: str = "single", **settings: Any) -> Shaping:
        path = write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        settings = {"fields": {key: key for key in rows[0]}, "dev": str(path), **settings}
        return {
            "files": Files(train=str(path), **settings), "tokenizing": WordPiece(), "layouts": (layout,),
            "target": f"nlu.data.targets.{target}", "pretrained": None, "vocab": write("vocab.txt", "\n".join(VOCAB)),
        }  # fmt: skip

    return of


def shown(count: int, shaping: Shaping) -> dict[str, list[dict[str, Any]]]:
    return {sample.name: list(sample.examples()) for sample in first_rows(plan_of(**shaping), count)}


def test_a_row_is_shown_with_its_pieces_ids_segments_and_target(shaping: Callable[..., Shaping]) -> None:
    found = shown(2, shaping(TRAIN))
    assert list(found) == ["train", "dev"] and found["train"] == found["dev"]
    first, second = found["train"]
    assert first["place"].endswith("rows.jsonl:1") and first["texts"] == {"text": "a b."}
    # The labels are in the order of their names, x, y, z, although the first row has z.
    assert (first["target"], first["name"]) == ("2", "z") and (second["target"], second["name"]) == ("1", "y")
    assert first["sequences"] == [
        {"pieces": ["[CLS]", "a", "b", ".", "[SEP]"], "ids": [2, 5, 6, 9, 3], "segments": [0] * 5}
    ]
    assert second["sequences"][0]["pieces"] == ["[CLS]", "b", "##c", "##c", "[UNK]", "[SEP]"]


def test_segments_sides_and_targets_of_units_stand_at_their_tokens(shaping: Callable[..., Shaping]) -> None:
    pair = shown(1, shaping([{"text_a": "a b", "text_b": "c", "label": n} for n in "01"], layout="pair"))["train"][0]
    assert pair["sequences"][0]["segments"] == [0, 0, 0, 0, 1, 1]
    sides = shown(1, shaping([{"text_a": "a b", "text_b": "c", "label": n} for n in "01"], layout="sides"))["train"][0]
    assert [one["ids"] for one in sides["sequences"]] == [[2, 5, 6, 3], [2, 7, 3]]
    rows = [{"tokens": ["a", "cc", "b"], "tags": ["B-p", "I-p", "O"]}] * 2
    (units,) = shown(1, shaping(rows, "Tags", "units"))["train"][0]["sequences"]
    assert units["pieces"] == ["[CLS]", "a", "c", "##c", "b", "[SEP]"]
    assert units["names"] == ["", "B-p", "I-p", "", "O", ""] and units["targets"] == ["", "1", "2", "", "0", ""]


@pytest.mark.parametrize("target", [("LabelSet", ["x", "y"], "[0, 1] = x, y"), ("Number", 0.5, "0.5")])
def test_the_command_prints_the_first_rows_with_their_targets(
    shaping: Callable[..., Shaping], capsys: pytest.CaptureFixture[str], target: tuple[str, Any, str]
) -> None:
    kind, label, said = target
    given = shaping([{"text": "a b.", "label": label}, {"text": "c", "label": 2 if kind == "Number" else []}])
    rows, vocab, task = given["files"].train, given["vocab"], "regress" if kind == "Number" else "multilabel"
    fields = "data.fields={text: text, label: label}"
    common = (f"data.train={rows}", f"data.dev={rows}", fields, f"tokenizer.vocab={vocab}", "model=textcnn")
    program(preprocess.main, "preprocess", "data=files", f"task={task}", *common, "show=1")
    assert f"  target   {said}\n  piece    [CLS]  a  b  .  [SEP]\n" in capsys.readouterr().out
