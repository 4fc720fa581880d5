"""python -m nlu.export of encoders over packed texts: TextCNN, LSTM, static vectors and encoders of users."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nlu.data.collate import Batch
from nlu.models.encoder import Encoded
from nlu.models.encoders.textcnn import TextCnn
from tests.inference.runs import export, kept, predict, trained
from tests.training.kinds import (
    TEXTCNN,
    Kind,
    classes,
    few_first,
    labels,
    number,
    pair_of_classes,
    read,
    tags,
    write,
)

transformers = pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")


class Gated(TextCnn):
    """An encoder of a user: each token, weighed by the mean of its text, and their sum."""

    def width_of(self, layout: str) -> int:
        return self.hidden_size

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        gated = [piece * torch.sigmoid(piece.mean(0, keepdim=True)) for piece in x_TD.split(batch.lengths)]
        # What is not asked for stays None.
        return Encoded(torch.cat(gated) if tokens else None, torch.stack([p.sum(0) for p in gated]) if pooled else None)


class Counting(Gated):
    """One that makes a number of its own of a length, so that its graph holds for texts of one length only."""

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        return Encoded(None, torch.stack([piece.sum(0) / len(piece) for piece in x_TD.split(batch.lengths)]))


class Untraceable(Gated):
    """One that fails while it is traced."""

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        if torch.jit.is_tracing():
            raise ValueError(f"a text of {len(x_TD)} tokens")
        return super().encode(x_TD, batch, tokens=tokens, pooled=pooled)


SMALL = ("model.hidden_size=8", "model.embedding_size=8", "data.max_len=32")
STATIC = ("model=static", "model.embedding_size=8", "data.max_len=32")
OWN = (*TEXTCNN, "trusted_packages=[tests]")
ENCODERS = {
    "textcnn": Kind((), classes, TEXTCNN),
    "textcnn of layers": Kind(("task=regress", "model.layers=2"), number, TEXTCNN),
    "textcnn of pairs": Kind(("task=match",), pair_of_classes, TEXTCNN),
    "textcnn of tags": Kind(("task=tag",), tags, TEXTCNN),
    "lstm": Kind(("task=multilabel", "model.layers=2"), labels, ("model=lstm", *SMALL)),
    "lstm of pairs": Kind(("task=match", "head=mlp"), pair_of_classes, ("model=lstm", *SMALL)),
    "lstm of tags": Kind(("task=tag",), tags, ("model=lstm", *SMALL)),
    "static": Kind((), classes, STATIC),
    "static of pairs": Kind(("task=match",), pair_of_classes, STATIC),
    "own": Kind((), classes, OWN),
    "own of tags": Kind(("task=tag",), tags, OWN),
}  # fmt: skip


def own(kind: Kind, name: str) -> Kind:
    """Return a kind with an encoder of this file."""
    return Kind(kind.options, kind.row, (*OWN, f"model._target_=tests.inference.test_export_graphs.{name}"))


@pytest.mark.parametrize("name", few_first(list(ENCODERS), "textcnn of pairs", "lstm", "static", "own"))
def test_onnxruntime_computes_the_logits_of_the_run_for_any_batch(name: str, tmp_path: Path) -> None:
    kind = ENCODERS[name]
    run = trained(own(kind, "Gated") if name.startswith("own") else kind, tmp_path)
    for written in ("onnx", "torchscript"):
        export(f"run={run}", f"format={written}", f"out={tmp_path}/{written}")
    rows = [{key: one[key] for key in ("text", "text_a", "text_b", "tokens") if key in one} for one in kept(run)]
    write(tmp_path / "rows.jsonl", rows)
    predict(f"run={run}", f"input={tmp_path}/rows.jsonl", f"output={tmp_path}/logits.jsonl", "logits=true")
    expected = [np.array(one["logits"]) for one in read(tmp_path / "logits.jsonl")]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    scripted = torch.jit.load(str(tmp_path / "torchscript/model.pt"))  # type: ignore[no-untyped-call]
    meta = json.loads((run / "checkpoints/best-1/labels.json").read_text())["target"]["meta"]
    scale = meta if "sd" in meta else {"sd": 1.0, "mean": 0.0}
    for size in (1, 4, len(rows)):
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            texts = [[row[key] for row in some] for key in some[0]]
            inputs = dict(tokenizer(*texts, padding=True, is_split_into_words="tokens" in rows[0], return_tensors="np"))
            (logits,) = session.run(None, inputs)
            tensors = [torch.from_numpy(inputs[key]) for key in ("input_ids", "attention_mask", "token_type_ids")]
            assert scripted(*tensors).numpy() == pytest.approx(logits, abs=1e-5)
            for row, found, right in zip(some, logits, expected[start:], strict=False):
                # Of a tagger, each letter is one token, between [CLS] and [SEP].
                found = found[1 : len(row["tokens"]) + 1] if "tokens" in row else found
                assert found == pytest.approx(right * scale["sd"] + scale["mean"], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Counting", "an encoder of your own must compute with lengths as tensors"),
        ("Untraceable", "Untraceable cannot be traced: a text of 9 tokens; write it with operators of torch"),
    ],
)
def test_an_encoder_whose_graph_would_be_wrong_is_refused(name: str, words: str, tmp_path: Path, capsys: Any) -> None:
    run = trained(own(ENCODERS["own"], name), tmp_path)
    export(f"run={run}", "format=torchscript", f"out={tmp_path}/out", status=2)
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
