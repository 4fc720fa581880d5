"""The estimate of a step's memory agrees with the weights and tensors that the encoder really has."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nlu.models.encoders.bert import Bert
from nlu.models.formats.weights_config import config_here
from nlu.models.layers.noise import Noise, drawing_from
from nlu.models.memory import Rows, bert_memory, sentence
from tests.composing import prepared

LAYERS, LENGTH, SEQUENCES, WORDS = 6, 48, 8, 50
SIZES: dict[str, Any] = {"hidden_size": 48, "heads": 4, "intermediate_size": 192, "max_positions": 64}


def estimated(rows: Rows, **model: Any) -> Any:
    config = {"model": {"pretrained": None, "layers": LAYERS, **SIZES, **model}, "tokenizer": {"vocab": None}}
    return bert_memory(config, rows)


def kept_bytes(model: Any, batch: Any, tokens: bool, dtype: torch.dtype) -> int:
    """The bytes that a forward pass holds for the backward pass, without weights and their copies in bf16."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    # With checkpointing the input of a layer is kept by its closure, and not by autograd.
    layers = [module for module in model.modules() if type(module).__name__ == "Layer"]
    inputs: list[Tensor] = []
    for layer in layers if model.gradient_checkpointing else ():
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), drawing_from(Noise(1, 1, batch)):
        with autocast:
            found = model.encode(model.embed(batch), batch, tokens=tokens, pooled=not tokens)
        for tensor in inputs:
            keep(tensor)
    assert (found.tokens_TD if tokens else found.pooled_SD).requires_grad
    weights = list(model.parameters())
    weights += [copy for module in model.modules() for copy in (getattr(module, "_kept", None) or ())[1:]]
    return sum(kept.values()) - sum(kept.get(one.untyped_storage().data_ptr(), 0) for one in weights)


@pytest.mark.parametrize(
    ("dropout", "tokens", "dtype"),
    [
        (0.0, True, torch.float32), (0.1, True, torch.float32), (0.1, False, torch.float32),
        (0.1, True, torch.bfloat16), pytest.param(0.0, False, torch.bfloat16, marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_what_a_forward_pass_keeps_is_estimated_to_a_tenth(
    corpus: Any, dropout: float, tokens: bool, dtype: torch.dtype
) -> None:
    own = {"dropout": dropout, "attention_dropout": dropout}
    model = Bert(WORDS, None, pretrained=None, layers=LAYERS, **SIZES, **own).train()
    batch = corpus("single", [LENGTH] * SEQUENCES).batch()
    rows = Rows(SEQUENCES, LENGTH, dtype.itemsize, reads_tokens=tokens)
    assert sum(batch.lengths) == rows.tokens
    found = estimated(rows, **own)
    assert found.kept == pytest.approx(kept_bytes(model, batch, tokens, dtype), rel=0.1)
    words = WORDS * SIZES["hidden_size"]
    assert found.parameters + words == sum(parameter.numel() for parameter in model.parameters())


def test_the_estimate_knows_what_checkpointing_does_not_keep(corpus: Any) -> None:
    batch = corpus("single", [LENGTH] * SEQUENCES).batch()
    plain, again = (
        kept_bytes(
            Bert(WORDS, None, pretrained=None, layers=LAYERS, gradient_checkpointing=on, **SIZES).train(), batch, True,
            torch.float32,
        )
        for on in (False, True)
    )  # fmt: skip
    # One layer at a time is computed again.
    found = estimated(Rows(SEQUENCES, LENGTH, 4, reads_tokens=True), gradient_checkpointing=True)
    assert found.kept == pytest.approx(again + plain / LAYERS, rel=0.1)
    assert found.kept < plain / 2


def test_sizes_are_those_of_weights_that_are_on_this_machine(tmp_path: Path) -> None:
    config = {"hidden_size": 40, "num_hidden_layers": 3, "intermediate_size": 80, "vocab_size": 99}
    best = tmp_path / "run/checkpoints/best-1"
    best.mkdir(parents=True)
    (best / "config.json").write_text(json.dumps(config))
    for reference in ("run", "run/best", "run/checkpoints/best-1"):
        assert config_here(f"{tmp_path}/{reference}") == config
    for unknown in (f"{tmp_path}/none", "hf://org/name", "", "pypi://wrong", "s3://bucket/key"):
        assert config_here(unknown) == {}


def test_the_line_of_a_dry_run_names_what_dominates(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": "b"}\n')
    data = ("data=files", f"data.train={tmp_path}/rows.jsonl", "data.max_len=100")
    random = ("model=bert_tiny", "model.pretrained=null", "model.hidden_size=24", "model.layers=2", "model.heads=2")

    def line(*overrides: str) -> str:
        return sentence(prepared((*data, *overrides)))

    assert "32 rows of 100 tokens on a CPU: activations" in line(*random, "trainer.device=cpu")
    assert "as if all weights were trained" in line(*random, "adapter=lora")
    assert "trainer.batch_size is auto" in line(*random, "trainer.batch_size=auto")
    assert "no formula is known for the encoder TextCnn; nlu.profile measures it" in line("model=textcnn")
    assert "not known before it is fetched" in line("model=bert")
    # The tensors of two passes are in memory together.
    (once, twice) = (
        int(line(*random, "trainer.device=cpu", method).partition("activations ")[2].partition(",")[0])
        for method in ("method=plain", "method=rdrop")
    )
    assert 1.4 * once < twice < 2 * once
