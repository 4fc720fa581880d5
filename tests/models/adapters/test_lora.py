"""LoRA against its formula in numpy, and runs that train, continue, are loaded, exported and started from with it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import nlu
from nlu.config.errors import UserError
from nlu.models.adapters.lora import Lora, LoraLinear
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.formats.pretrained import open_pretrained
from nlu.models.layers.exact_linear import Linear
from nlu.models.task_model import TaskModel
from tests.inference.runs import export, kept, trained
from tests.models.parts import task_model
from tests.training.in_process import train
from tests.training.kinds import TASKS

SIZES: dict[str, Any] = {"hidden_size": 24, "layers": 2, "heads": 4, "intermediate_size": 40, "max_positions": 64}
LORA = ("adapter=lora", "adapter.rank=2", "adapter.alpha=3")
QKV = "backbone.encoder.layer.{}.attention.self.qkv"


def bert() -> TaskModel:
    return task_model(Bert(50, None, pretrained=None, **SIZES), "single", 3)


def hugging_face(folder: Path, kind: str = "Bert") -> TaskModel:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config = getattr(transformers, f"{kind}Config")(vocab_size=50, pad_token_id=0, **sizes)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return task_model(HuggingFace(50, open_pretrained(str(folder)), pretrained=str(folder)), "single", 3)


def names_trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("native", [False, True])
def test_a_layer_adds_alpha_over_rank_times_both_matrices(native):
    torch.manual_seed(0)
    base = Linear(12, 9) if native else nn.Linear(12, 9)
    layer = LoraLinear(base, 4, 6 / 4, dropout=0.0)
    nn.init.normal_(layer.up.weight)
    input = torch.randn(7, 12) if native else torch.randn(2, 5, 12)
    w, b, a, up = (
        parameter.detach().double().numpy()
        for parameter in (base.weight, base.bias, layer.down.weight, layer.up.weight)
    )
    x = input.double().numpy()
    expected = x @ w.T + b + 6 / 4 * (x @ a.T) @ up.T
    np.testing.assert_allclose(layer(input).detach().numpy(), expected, atol=1e-5)
    if native:
        np.testing.assert_allclose(layer(input, slice(2, 5)).detach().numpy(), expected[:, 2:5], atol=1e-5)
    # The gradient of the sum of outputs, by the chain rule.
    layer(input).sum().backward()
    rows = x.reshape(-1, 12)
    np.testing.assert_allclose(layer.up.weight.grad, np.tile(6 / 4 * (rows @ a.T).sum(0), (9, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        layer.down.weight.grad, 6 / 4 * np.outer(up.sum(0), rows.sum(0)), rtol=1e-4, atol=1e-5
    )  # fmt: skip


def test_training_begins_at_the_pretrained_model_with_a_first_matrix_as_in_peft(corpus):
    model, batch = bert().eval(), corpus("single", [3, 9, 9]).batch()
    before = model(batch)
    Lora(rank=3).apply(model)
    assert torch.equal(model(batch), before)
    for layer in range(2):
        adapted = model.get_submodule(QKV.format(layer))
        assert not adapted.up.weight.any()
        # peft draws uniform numbers up to sqrt(1 / inputs).
        assert 0.5 / 24**0.5 < adapted.down.weight.abs().max() <= 1 / 24**0.5


@pytest.mark.parametrize("encoder", ["bert", "hf"])
def test_only_adapters_and_head_are_trained_and_the_merged_model_computes_the_same(corpus, spread, tmp_path, encoder):
    def build() -> TaskModel:
        return bert() if encoder == "bert" else hugging_face(tmp_path / "weights")

    model, plain, adapter = build(), build().eval(), Lora(rank=3, alpha=5.0)
    names = set(model.state_dict())
    adapter.apply(model)
    layers = ("qkv",) if encoder == "bert" else ("query", "value")
    of_encoder = {name for name in names_trained(model) if name.startswith("backbone.")}
    assert of_encoder == {name for name in model.state_dict() if name.endswith((".down.weight", ".up.weight"))}
    assert len(of_encoder) == 2 * 2 * len(layers)
    assert names_trained(model) - of_encoder == {"head.linear.weight", "head.linear.bias"}
    spread(model)
    merged = adapter.merged(model.state_dict())
    assert set(merged) == names
    plain.load_state_dict(merged)
    batch = corpus("single", [3, 9, 9, 20]).batch()
    with torch.inference_mode():
        np.testing.assert_allclose(model(batch), plain(batch), atol=2e-5)


def test_targets_choose_the_layers():
    model = bert()
    Lora(targets=["*.layer.1.*.dense", "*intermediate*"]).apply(model)
    adapted = {name for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    assert adapted == {
        f"backbone.encoder.layer.{place}"
        for place in ("0.intermediate.dense", "1.intermediate.dense", "1.attention.output.dense", "1.output.dense")
    }
    with pytest.raises(UserError, match=r"adapter.targets has the pattern '\*.gate', which matches no linear layer"):
        Lora(targets=["*.gate"]).apply(bert())
    with pytest.raises(UserError, match="the encoder lacks linear layers; leave out adapter="):
        Lora().apply(task_model(TextCnn(50, None, pretrained=None), "single", 3))


def weights(run: Path, name: str = "last") -> dict[str, np.ndarray]:
    return load_file(run / "checkpoints" / name / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("MPNet", {"attention.attn.q", "attention.attn.v"}),
        # Neither is called like queries or values, but they are part of attention.
        ("Deberta", {"attention.self.in_proj", "attention.output.dense"}),
    ],
)
def test_every_encoder_with_attention_has_layers_to_adapt(tmp_path, kind, expected):
    model = hugging_face(tmp_path, kind)
    Lora().apply(model)
    found = {name for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    assert {name.split("layer.0.")[-1] for name in found if ".0." in name} == expected


def test_a_run_trains_its_adapter_and_its_head_and_leaves_the_encoder_as_it_was(tmp_path: Path) -> None:
    begin = trained(TASKS["classify"], tmp_path / "a", *LORA, "optimizer.lr=1e-30", "optimizer.weight_decay=0")
    run = trained(TASKS["classify"], tmp_path / "b", *LORA)
    before, after = weights(begin), weights(run)
    changed = {name for name in after if not np.allclose(before[name], after[name], atol=1e-12, rtol=0)}
    moved = {name for name in after if name.startswith("head.") or ".down." in name or ".up." in name}
    assert changed == moved
    state = load_file(run / "checkpoints" / "last" / "optimizer.safetensors")
    assert {name.partition(":")[2] for name in state} == moved
    # What predicts is what was scored, to the bit.
    rows = [{"text": one["text"]} for one in kept(run)]
    found = nlu.load(run, device="cpu").predict(rows)
    assert [one["probability"] for one in found] == [one["probability"] for one in kept(run)]


def test_an_export_holds_the_merged_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = trained(TASKS["classify"], tmp_path, *LORA, "optimizer.lr=3e-2", "trainer.max_duration=20st")
    export(f"run={run}", "format=huggingface", f"out={tmp_path}/hub")
    (_, theirs) = json.loads((tmp_path / "hub" / "export.json").read_text())["checked"]
    assert theirs["largest_difference"] < 1e-4 and theirs["same"] == 1.0
    tensors, exported = weights(run, "best-1"), load_file(tmp_path / "hub" / "model.safetensors")
    layer = QKV.format(0)
    down, up = (tensors[f"{layer}.{name}.weight"].astype(np.float64) for name in ("down", "up"))
    assert np.abs(up @ down).max() > 1e-3
    expected = tensors[f"{layer}.base.weight"] + 3 / 2 * up @ down
    parts = [exported[f"electra.encoder.layer.0.attention.self.{name}.weight"] for name in ("query", "key", "value")]
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-6)


def test_a_run_that_starts_from_one_with_an_adapter_starts_from_its_merged_weights(tmp_path: Path) -> None:
    first = trained(TASKS["classify"], tmp_path, *LORA, "optimizer.lr=3e-2")
    overrides = TASKS["classify"].overrides(tmp_path, dev_rows=23)
    stands = ("optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.max_duration=1st", "trainer.eval_interval=1st")
    for adapter in ("none", "lora"):
        second = tmp_path / adapter
        train(*overrides, *stands, f"adapter={adapter}", f"model.pretrained={first}", f"hydra.run.dir={second}")
        assert [one["probability"] for one in kept(second)] == pytest.approx(
            [one["probability"] for one in kept(first)], abs=1e-5
        )
