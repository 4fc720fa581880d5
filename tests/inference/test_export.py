"""python -m nlu.export: what others load computes what the run computes."""

import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import nlu
from nlu.inference.exports.export_decisions import by_rule
from nlu.inference.exports.formats import FORMATS
from tests.inference.runs import evaluate, export, kept, predict, trained
from tests.training.in_process import train
from tests.training.kinds import SPANS, TASKS, TEXTCNN, Kind, classes, few_first, read, write

transformers = pytest.importorskip("transformers")

LINEAR = ("classify", "match", "regress", "regress of pairs", "multilabel", "multilabel of cells", "tag")

BCE = Kind(("loss=bce", "trainer.major_metric=loss"), classes)


def texts_of(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in ("text", "text_a", "text_b") if name in row]


def own_logits(run: Path, folder: Path, rows: list[dict[str, Any]]) -> list[Any]:
    """What nlu.predict says of rows."""
    write(folder / "rows.jsonl", [{key: value for key, value in row.items() if key != "label"} for row in rows])
    predict(f"run={run}", f"input={folder}/rows.jsonl", f"output={folder}/logits.jsonl", "logits=true")
    return [one["logits"] for one in read(folder / "logits.jsonl")]


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The texts of the dev set, as the run kept them."""
    names = ("text", "text_a", "text_b", "tokens")
    return [{key: one[key] for key in names if key in one} for one in kept(run)]


@pytest.mark.parametrize("name", few_first(LINEAR, "match"))
def test_transformers_computes_the_logits_of_the_run_without_nlu(name: str, tmp_path: Path) -> None:
    run = trained(TASKS[name], tmp_path)
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/hub")
    rows = rows_of(run)
    own = own_logits(run, tmp_path, rows)
    kind = "Token" if name == "tag" else "Sequence"
    model = getattr(transformers, f"AutoModelFor{kind}Classification").from_pretrained(tmp_path / "hub")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    labels = json.loads((run / "checkpoints/best-1/labels.json").read_text())
    if labels["labels"]:
        assert list(model.config.id2label.values()) == labels["labels"]
    scale = labels["target"]["meta"] if name.startswith("regress") else {"sd": 1.0, "mean": 0.0}
    for row, logits in zip(rows, own, strict=True):
        words = {"is_split_into_words": True} if "tokens" in row else {}
        inputs = tokenizer(*(texts_of(row) or [row["tokens"]]), return_tensors="pt", **words)
        with torch.inference_mode():
            found = model.eval()(**inputs).logits[0].numpy()
        if "tokens" in row:
            # Each letter is one token, between [CLS] and [SEP].
            found = found[1:-1]
        assert found == pytest.approx(np.array(logits) * scale["sd"] + scale["mean"], abs=2e-5)


POOLINGS = {
    "max": ("model.pooling=max",),
    "attention": ("model.pooling=attention",),
    "layers": ("model.pooling=layers", "model.layers=2", "model.pooled_layers=[-1,0]"),
}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_traced_export_pools_a_text_as_the_run_does(pooling: str, tmp_path: Path, capsys: Any) -> None:
    run = trained(TASKS["classify"], tmp_path, *POOLINGS[pooling])
    export(f"run={run}", "format=torchscript", f"out={tmp_path}/out")
    found = json.loads((tmp_path / "out/export.json").read_text())["checked"][1]
    assert found["rows"] == len(kept(run)) and found["largest_difference"] < 2e-5 and found["same"] == 1.0
    refused = {"huggingface": f"{pooling}|maximum|several"} | ({"tf_checkpoint": pooling} if pooling != "max" else {})
    for written, words in refused.items():
        export(f"run={run}", f"format={written}", f"out={tmp_path}/{written}", status=2)
        error = " ".join(capsys.readouterr().err.split())
        assert re.search(f"format is {written}.*({words}).*onnx or torchscript", error)
        assert not (tmp_path / written).exists()


@pytest.mark.parametrize("name", few_first(["siamese", "siamese with contrastive loss", "retrieve"], "siamese"))
def test_the_encoder_of_a_siamese_run_gives_its_similarities(name: str, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    run = trained(TASKS[name], tmp_path)
    export(f"run={run}", "format=sentence_transformers", f"out={tmp_path}/st")
    (checked,) = json.loads((tmp_path / "st/export.json").read_text())["checked"]
    assert checked["largest_difference"] < 2e-6
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert model.max_seq_length == 32
    compares = ["Normalize"] if name != "siamese" else []
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", *compares]
    rows = kept(run)
    first_ND, second_ND = (model.encode([row[side] for row in rows]) for side in ("text_a", "text_b"))
    np.testing.assert_allclose(first_ND, nlu.load(run, device="cpu").encode([row["text_a"] for row in rows]), atol=2e-6)
    if "similarity" in rows[0]:
        expected = [row["similarity"] for row in rows]
        assert model.similarity_pairwise(first_ND, second_ND).numpy() == pytest.approx(np.array(expected), abs=2e-6)


@pytest.mark.parametrize("name", few_first(["classify", "tag", "regress"], "regress"))
@pytest.mark.parametrize("written", few_first(["torchscript", "onnx", "onnx-int8"], "torchscript"))
def test_files_for_other_runtimes_are_held_against_the_run(name: str, written: str, tmp_path: Path) -> None:
    if written != "torchscript":
        pytest.importorskip("onnxruntime")
    run = trained(TASKS[name], tmp_path, "model.pooling=mean")
    export(f"run={run}", f"format={written}", f"out={tmp_path}/out")
    found = json.loads((tmp_path / "out/export.json").read_text())["checked"][1]
    assert found["rows"] == len(kept(run)) and found["largest_difference"] < (1 if "int8" in written else 1e-4)
    assert not list(tmp_path.glob(".out*"))


def test_with_loss_bce_the_largest_output_is_what_the_run_decides(tmp_path: Path) -> None:
    # The threshold plays no part in training, so that the second run has the weights of the first.
    first = kept(trained(BCE, tmp_path / "first"))
    ranked = sorted(one["probabilities"]["good"] for one in first)
    (_, middle) = max((after - before, (before + after) / 2) for before, after in pairwise(ranked))
    run = trained(BCE, tmp_path, f"loss.threshold={middle}")
    own = kept(run)
    assert len({one["prediction"] for one in own}) == 2, "the test wants rows on both sides of the threshold"
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/out")
    assert json.loads((tmp_path / "out/export.json").read_text())["checked"][1]["same"] == 1.0
    classifier = transformers.pipeline("text-classification", model=str(tmp_path / "out"), device="cpu")
    found = classifier([one["text"] for one in own])
    assert [one["label"] for one in found] == [one["prediction"] for one in own]
    for theirs, mine in zip(found, own, strict=True):
        if mine["prediction"] == "good":
            assert theirs["score"] == pytest.approx(mine["probability"], abs=1e-5)


def test_the_table_of_a_tagger_compares_what_its_user_gets_with_what_the_run_decodes(tmp_path: Path) -> None:
    run = trained(TASKS["tag"], tmp_path, "model.initializer_range=2", "model.dropout=0")
    # Weights of which the best tags are often no legal sequence.
    weights = load_file(run / "checkpoints/best-1/model.safetensors")
    head = weights["head.linear.weight"]
    head[:] = np.random.default_rng(0).normal(size=head.shape)
    save_file(weights, run / "checkpoints/best-1/model.safetensors", {"format": "pt"})
    rows = [row["tokens"] for row in rows_of(run)]
    own = [one["prediction"] for one in nlu.load(run, device="cpu").predict(rows)]
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/huggingface")
    ner = transformers.pipeline("token-classification", model=str(tmp_path / "huggingface"), device="cpu")
    # Each token is one letter with a space behind it, and the first tag of a group begins a span.
    same = [
        [(span["first"], span["last"], span["type"]) for span in spans]
        == [
            (found["start"] // 2, (found["end"] - 1) // 2, found["entity_group"])
            for found in ner(" ".join(tokens), aggregation_strategy="simple")
        ]
        for tokens, spans in zip(rows, own, strict=True)
    ]
    assert 0 < sum(same) < len(same), "the test needs rows whose best tags are an illegal sequence, and others"
    _, found = json.loads((tmp_path / "huggingface/export.json").read_text())["checked"]
    assert found["format"] == "huggingface" and found["same"] == sum(same) / len(same)


def test_where_transformers_finds_other_spans_an_export_says_why_and_what_to_do(tmp_path: Path, capsys: Any) -> None:
    def row(rng: random.Random) -> dict[str, Any]:
        tokens = rng.choices(["U.S.", "a", "b", "3.5", "c", "x-y"], k=6)
        return {"tokens": tokens, "tags": ["B-LOC" if token in ("U.S.", "x-y") else "O" for token in tokens]}

    run = trained(Kind(("task=tag",), row), tmp_path, "trainer.max_duration=60st", "trainer.eval_interval=60st")
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/out")
    said = " ".join(capsys.readouterr().err.split())
    assert "pipeline(...) of transformers splits or joins units" in said and "then 100.00 % are the same" in said
    folder, same = tmp_path / "out", []
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for record in kept(run):
        # As docs/exporting.md has it.
        encoded = tokenizer(record["tokens"], is_split_into_words=True, truncation=True, return_tensors="pt")
        tags = [model.config.id2label[number] for number in model(**encoded).logits[0].argmax(-1).tolist()]
        found = [tags[encoded.word_ids().index(unit)] for unit in range(len(record["tokens"]))]
        spans = [[place, place, "LOC"] for place, tag in enumerate(found) if tag == "B-LOC"]
        same.append(spans == record["spans"])
    assert all(same) and any(record["spans"] for record in kept(run))


def test_the_rule_for_logits_finds_spans_of_a_text_by_its_characters_as_the_run_does(tmp_path: Path) -> None:
    run = nlu.load(trained(SPANS, tmp_path), device="cpu").trained
    decide = by_rule(run, tmp_path)
    logits = np.eye(len(run.labels))[[run.labels.index(tag) for tag in ("O", "B-X", "I-X", "B-Y")]]
    assert decide([{"text": "in New York today"}], [logits]) == [[(3, 10, "X"), (12, 16, "Y")]]
    assert decide([{"tokens": ["in", "New", "York", "today"]}], [logits]) == [[(1, 2, "X"), (3, 3, "Y")]]


@pytest.mark.parametrize("damage", [float("nan"), 7.0])
def test_an_export_whose_logits_are_wrong_is_refused_and_leaves_no_folder(
    damage: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, run_of: Any
) -> None:
    run = run_of("classify")

    def write_wrong(trained: Any, folder: Path) -> None:
        chosen.write(trained, folder)
        weights = load_file(folder / "model.safetensors")
        weights["classifier.out_proj.bias"][:] = damage
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    chosen = FORMATS["huggingface"]
    monkeypatch.setitem(FORMATS, "huggingface", replace(chosen, write=write_wrong))
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/out", status=2)
    assert "format is huggingface, but its logits for " in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("written", ["huggingface", "tf_checkpoint"])
def test_special_tokens_in_a_text_are_letters_to_the_run_and_to_its_export(
    written: str, tmp_path: Path, run_of: Any
) -> None:
    run = run_of("match")
    export(f"run={run}", f"format={written}", f"out={tmp_path}/out")
    tokenizer = FORMATS[written].tokenizer(tmp_path / "out")
    loaded = nlu.load(run, device="cpu")
    row = {"text_a": "a [MASK] b [SEP]", "text_b": "[CLS] c [PAD]"}
    encoded = loaded.predictor.encode([row])
    assert tokenizer(row["text_a"], row["text_b"])["input_ids"] == encoded.tokens.tolist()
    # [CLS] a [MASK] ... are six words in brackets beside three letters, and three tokens around the texts.
    assert len(encoded.tokens) == 4 * 3 + 3 + 3
    if written == "huggingface":
        classifier = transformers.pipeline("text-classification", model=str(tmp_path / "out"), device="cpu")
        (mine,) = loaded.predict([row], scores=True)
        for one in classifier({"text": row["text_a"], "text_pair": row["text_b"]}, top_k=None):
            assert one["score"] == pytest.approx(mine[f"probability_{one['label']}"], abs=1e-5)


@pytest.mark.parametrize("activation", few_first(["gelu", "tanh"], "tanh"))
def test_a_head_of_two_layers_is_scored_again_from_its_export(activation: str, tmp_path: Path) -> None:
    kind = Kind(("head=mlp", f"head.activation={activation}"), classes)
    run = trained(kind, tmp_path)
    # The export compares its logits with the run's by itself.
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/hub")
    theirs = (f"model.pretrained={tmp_path}/hub", "head=mlp", f"head.activation={activation}")
    names = ("data.max_len", "data.train", "data.dev", "data.fields", "data=")
    of_data = [one for one in kind.overrides(tmp_path) if one.startswith(names)]
    evaluate("model=bert", "data.max_len=32", *theirs, *of_data, f"out={tmp_path}/scores", "resamples=0")
    own = {one["text"]: one["probabilities"] for one in kept(run)}
    found = {one["text"]: one["probabilities"] for one in read(tmp_path / "scores/predictions/dev.jsonl")[1:]}
    assert found and found == {text: pytest.approx(own[text], abs=1e-5) for text in found}


@pytest.mark.parametrize(
    ("kind", "written", "words"),
    [
        (TASKS["tag with a CRF"], "huggingface", "a CRF"),
        (TASKS["siamese"], "huggingface", "format=sentence_transformers"),
        (TASKS["classify"], "sentence_transformers", "does not encode each text"),
        (Kind(("model.pooling=mean",), classes), "huggingface", "train it with model.pooling=first"),
        (Kind((), classes, model=TEXTCNN), "huggingface", "TextCnn"),
    ],
)  # fmt: skip
def test_an_export_that_a_format_cannot_hold_is_refused_and_leaves_no_files(
    kind, written, words, tmp_path, capsys
) -> None:  # type: ignore[no-untyped-def]
    run = trained(kind, tmp_path)
    before = sorted(tmp_path.iterdir())
    export(f"run={run}", f"format={written}", f"out={tmp_path}/out", status=2)
    assert words in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before


def test_a_mistyped_format_and_a_folder_that_exists_are_refused(tmp_path: Path, capsys: Any) -> None:
    train(*TASKS["classify"].overrides(tmp_path), "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run")
    export(f"run={tmp_path}/run", "format=huggingfaces", f"out={tmp_path}/out", status=2)
    assert "huggingface" in capsys.readouterr().err
    export(f"run={tmp_path}/run", "format=huggingface", f"out={tmp_path}/out", "rows=3", status=2)
    assert "rows: unknown key; nearest: max_rows" in capsys.readouterr().err
    export(f"run={tmp_path}/run", "format=huggingface", f"out={tmp_path}/run", status=2)
    assert "exists; nothing was written" in capsys.readouterr().err


def test_an_export_of_a_run_that_computes_in_bf16_has_the_weights_of_the_run(tmp_path: Path) -> None:
    run = trained(TASKS["classify"], tmp_path, "precision=bf16")
    export(f"run={run}", f"out={tmp_path}/out", "format=huggingface")
    own = load_file(run / "checkpoints/best-1/model.safetensors")
    exported = load_file(tmp_path / "out/model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    (there,) = (value for key, value in exported.items() if key.endswith(name))
    assert there.dtype == np.float32
    np.testing.assert_array_equal(there, own[f"backbone.{name}"])
