"""Whole runs of task=tag on rows as files have them: learned, scored, predicted and written again."""

import json
from pathlib import Path

import pytest
import torch

import nlu
from tests.few import first
from tests.inference.runs import export, kept, predict
from tests.training.in_process import train
from tests.training.kinds import read

SMALL = ("model=textcnn", "model.hidden_size=32", "model.embedding_size=32", "tokenizer.min_count=1")
LEARNED = (*SMALL, "trainer.max_duration=150st", "trainer.eval_interval=150st", "optimizer.lr=0.01")


def learned(tmp_path: Path, name: str, content: str, *overrides: str) -> Path:
    (tmp_path / name).write_text(content)
    files = (f"data.train={tmp_path / name}", f"data.dev={tmp_path / name}")
    train("task=tag", "data=files", *files, *LEARNED, *overrides, f"hydra.run.dir={tmp_path / 'run'}")
    return tmp_path / "run"


@pytest.mark.parametrize("texts", first(2, [
    [("서울에서 만나요", [[0, 2, "LOC"]]), ("김민수는 서울로 갔다", [[0, 3, "PER"], [5, 7, "LOC"]])],
    [("田中さくらはタイへいく", [[0, 5, "PER"], [6, 8, "LOC"]]), ("東京タワー", [[0, 2, "LOC"]]), ("すしをたべる", [])],
    [("สมชายไปกรุงเทพวันนี้", [[0, 5, "PER"], [7, 14, "LOC"]]), ("อยู่ที่กรุงเทพ", [[7, 14, "LOC"]])],
    [("Donaudampfschiff in Donauwörth 🙂 Donauland", [[0, 5, "x"], [20, 25, "x"], [33, 38, "x"]])],
]))  # fmt: skip
def test_spans_within_words_are_learned_and_written_at_their_places(tmp_path: Path, texts: list) -> None:
    rows = [json.dumps({"text": text, "label": spans}) for text, spans in texts]
    run = learned(tmp_path, "t.jsonl", "\n".join(rows))
    assert nlu.load(run).evaluate([{"text": text, "spans": spans} for text, spans in texts])["span_f1"] == 1.0
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"text": text}) for text, _ in texts))
    of = {}
    for form in ("lists", "start_end", "first_last"):
        predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/{form}.jsonl", f"spans={form}")
        of[form] = [row["prediction"] for row in read(tmp_path / f"{form}.jsonl")]
    assert of["lists"] == [spans for _, spans in texts]
    for (text, spans), objects, places in zip(texts, of["start_end"], of["first_last"], strict=True):
        wanted = [{"start": start, "end": end, "label": kind, "text": text[start:end]} for start, end, kind in spans]
        assert objects == wanted
        assert [(one["first"], one["last"] + 1, one["type"]) for one in places] == [tuple(span) for span in spans]


def test_classes_of_tokens_are_scored_predicted_and_exported_by_token(tmp_path: Path) -> None:
    rows = [
        ("the dog barks loud", "DET NOUN VERB ADV"),
        ("a dog and the cat", "DET NOUN CCONJ DET NOUN"),
        ("dog", "NOUN"),
    ]
    content = "".join(
        "".join(f"{n}\t{w}\t{t}\n" for n, (w, t) in enumerate(zip(a.split(), b.split(), strict=True), 1)) + "\n"
        for a, b in rows
    )
    model = ("model=bert", "model.pretrained=null", "model.layers=1", "model.hidden_size=32", "model.heads=2")
    run = learned(
        tmp_path, "t.conll", content, "data.fields={tokens: 1, tags: 2}", *model, "model.intermediate_size=32"
    )
    result = json.loads((run / "result.json").read_text())
    assert result["best"]["metric"] == "accuracy"
    assert result["metrics"]["dev"].keys() == {"accuracy", "f1_macro", "loss"}
    records = kept(run)
    right = [one == two for row in records for one, two in zip(row["label"], row["prediction"], strict=True)]
    assert result["best"]["value"] == sum(right) / len(right) == 1.0
    predict(f"run={run}", f"input={tmp_path}/t.conll", f"output={tmp_path}/o.jsonl", "input.fields={tokens: 1}")
    assert [row["prediction"] for row in read(tmp_path / "o.jsonl")] == [tags.split() for _, tags in rows]
    export(f"run={run}", f"out={tmp_path}/hf", "format=huggingface")
    # The decisions of a pipeline of transformers.
    assert json.loads((tmp_path / "hf" / "export.json").read_text())["checked"][1]["same"] == 1.0


def test_spans_without_types_keep_the_letters_of_their_tags(tmp_path: Path) -> None:
    content = "我 O\n在 O\n北 B\n京 I\n\n北 B\n京 I\n上 B\n海 I\n"
    run = learned(tmp_path, "t.conll", content, "data.fields={tokens: 0, tags: 1}")
    predict(f"run={run}", f"input={tmp_path}/t.conll", f"output={tmp_path}/o.jsonl", "input.fields={tokens: 0}")
    of_rows = [[(span["first"], span["last"]) for span in row["prediction"]] for row in read(tmp_path / "o.jsonl")]
    assert of_rows == [[(2, 3)], [(0, 1), (2, 3)]]
    # Chinese tokens stand without blanks.
    (found,) = nlu.load(run).predict([["我", "在", "北", "京"]])
    assert found["prediction"] == [{"type": "_", "first": 2, "last": 3, "text": "北京"}]
    # A text is no token, whatever wrote it.
    for name, content in (("n.jsonl", '{"text": "我在北京"}\n' * 2), ("n.csv", "text\n我在北京\n上海\n")):
        (tmp_path / name).write_text(content)
        predict(f"run={run}", f"input={tmp_path / name}", f"output={tmp_path}/of-{name}.jsonl")
        assert read(tmp_path / f"of-{name}.jsonl")[0]["prediction"] == found["prediction"]


def test_a_table_with_a_token_a_row_is_predicted_by_sentence(tmp_path: Path) -> None:
    content = "Sentence #,Word,Tag\nSentence: 1,EU,B-ORG\n,x,O\nSentence: 2,y,O\n"
    run = learned(tmp_path, "t.csv", content, "data.fields={tokens: Word, tags: Tag}")
    for name in ("o.jsonl", "o.csv"):
        predict(f"run={run}", f"input={tmp_path}/t.csv", f"output={tmp_path}/{name}")
    first, second = read(tmp_path / "o.jsonl")
    assert first == {"tokens": ["EU", "x"], "prediction": [{"type": "ORG", "first": 0, "last": 0, "text": "EU"}]}
    assert second == {"tokens": ["y"], "prediction": []}
    assert (tmp_path / "o.csv").read_text().splitlines()[2] == '"[""y""]",[]'


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
