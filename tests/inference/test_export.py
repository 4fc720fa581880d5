"""python -m nlu.export: what others load computes what the run computes."""

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from nlu.config.inference import Export
from nlu.inference.exporting import digits
from nlu.inference.exports.formats import FORMATS
from tests.inference.runs import export, kept, predict, trained
from tests.training.in_process import train
from tests.training.kinds import TASKS, TEXTCNN, Kind, classes, few_first, read, write

transformers = pytest.importorskip("transformers")

LINEAR = ("classify", "match", "regress", "regress of pairs", "multilabel", "multilabel of cells", "tag")


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
def test_transformers_alone_computes_the_logits_of_the_run(name: str, tmp_path: Path) -> None:
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


@pytest.mark.thorough
def test_a_text_read_by_berts_pooler_becomes_a_bert(tmp_path: Path) -> None:
    run = trained(Kind(("model.pooling=pooler",), classes), tmp_path)
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/hub")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hub").eval()
    assert type(model).__name__ == "BertForSequenceClassification"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    rows = rows_of(run)
    inputs = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.inference_mode():
        assert model(**inputs).logits.numpy() == pytest.approx(np.array(own_logits(run, tmp_path, rows)), abs=2e-5)


@pytest.mark.parametrize("name", few_first(["siamese", "siamese with contrastive loss", "retrieve"], "siamese"))
def test_the_encoder_of_a_siamese_run_gives_its_similarities(name: str, tmp_path: Path) -> None:
    run = trained(TASKS[name], tmp_path)
    export(f"run={run}", "format=sentence_transformers", f"out={tmp_path}/st")
    about = json.loads((tmp_path / "st/export.json").read_text())["checked"]
    assert about[1]["largest_difference"] < 2e-6 and about[1]["same"] > 0.9 and about[1]["rows"] == len(kept(run))
    assert [one["type"].rpartition(".")[2] for one in json.loads((tmp_path / "st/modules.json").read_text())] == [
        "Transformer", "Pooling",
    ]  # fmt: skip
    model = transformers.AutoModel.from_pretrained(tmp_path / "st").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "st")
    if "similarity" not in kept(run)[0]:
        return
    for row in kept(run):
        vectors = []
        for text in (row["text_a"], row["text_b"]):
            with torch.inference_mode():
                vectors.append(model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0))
        assert float(torch.cosine_similarity(*vectors, dim=0)) == pytest.approx(row["similarity"], abs=2e-6)


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


def test_latencies_have_the_digits_that_are_worth_reading() -> None:
    assert [digits(time_ms) for time_ms in (7.7812, 65.807, 99.96, 473.6186, 2432.1)] == [
        "7.78", "65.8", "100", "474", "2,432"
    ]  # fmt: skip


def test_the_formats_that_may_be_asked_for_are_those_that_are_written() -> None:
    one, several = get_args(get_type_hints(Export)["format"])
    assert get_args(one) == get_args(get_args(several)[0]) == tuple(FORMATS)


@pytest.mark.thorough
def test_several_formats_get_a_folder_each_and_the_table_has_all(tmp_path: Path, capsys: Any) -> None:
    run = trained(TASKS["classify"], tmp_path)
    export(f"run={run}", "format=[huggingface,torchscript]", f"out={tmp_path}/out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["export.json", "huggingface", "torchscript"]
    table = capsys.readouterr().out
    assert all(name in table for name in ("the run itself", "huggingface", "torchscript", "largest difference"))


@pytest.mark.parametrize(
    ("kind", "written", "words"),
    [
        (TASKS["tag with a CRF"], "huggingface", "a CRF"),
        (TASKS["siamese"], "huggingface", "format=sentence_transformers"),
        (TASKS["classify"], "sentence_transformers", "does not encode each text"),
        (Kind(("model.pooling=mean",), classes), "huggingface", "a mean over tokens"),
        (Kind((), classes, model=TEXTCNN), "huggingface", "TextCnn"),
    ],
)  # fmt: skip
def test_what_a_format_cannot_hold_is_said_and_nothing_is_left(kind, written, words, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = trained(kind, tmp_path)
    before = sorted(tmp_path.iterdir())
    export(f"run={run}", f"format={written}", f"out={tmp_path}/out", status=2)
    assert words in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before


def test_a_mistyped_format_and_a_folder_that_exists_are_refused(tmp_path: Path, capsys: Any) -> None:
    train(*TASKS["classify"].overrides(tmp_path), "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run")
    export(f"run={tmp_path}/run", "format=huggingfaces", f"out={tmp_path}/out", status=2)
    assert "huggingface" in capsys.readouterr().err
    export(f"run={tmp_path}/run", "format=huggingface", f"out={tmp_path}/out", "rows=3", status=2)
    assert "rows: there is no such key; nearest: max_rows" in capsys.readouterr().err
    export(f"run={tmp_path}/run", "format=huggingface", f"out={tmp_path}/run", status=2)
    assert "exists; nothing was written" in capsys.readouterr().err


@pytest.mark.thorough
def test_no_format_and_a_refusal_leave_no_folder(tmp_path: Path, capsys: Any) -> None:
    run = trained(TASKS["tag with a CRF"], tmp_path)
    export(f"run={run}", "format=[]", f"out={tmp_path}/deep/er/out", status=2)
    assert "nothing to export" in capsys.readouterr().err
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/deep/er/out", status=2)
    assert not (tmp_path / "deep").exists()
