"""Layers that are computed again in the backward pass have the same gradient, and their tensors are not kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import open_pretrained
from nlu.models.layers.dropout import Noise, drawing_from

LAYERS = 6
SIZES: dict[str, Any] = {"hidden_size": 32, "heads": 4, "intermediate_size": 128, "max_positions": 64, "dropout": 0.1}


def encoders(folder: Path, **more: Any) -> Iterator[tuple[str, Any]]:
    torch.manual_seed(0)
    yield "bert", Bert(50, None, pretrained=None, layers=LAYERS, **SIZES, **more)
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=128
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    yield "hf", HuggingFace(50, open_pretrained(str(folder)), pretrained=str(folder), **more)


def kept_bytes(model: Any, batch: Any, **asked: Any) -> tuple[int, Tensor]:
    """Return the bytes that autograd keeps after the forward pass, without weights, and the word vectors' gradient."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    inputs: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    # With checkpointing the input of a layer is kept by its closure, and not by autograd.
    layers = [module for module in model.modules() if type(module).__name__ in ("Layer", "BertLayer")]
    handles = [layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for layer in layers]
    model.zero_grad()
    # The generator from which transformers draws.
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), drawing_from(Noise(1, 1, batch)):
        found = model.encode(model.embed(batch), batch, tokens=True, **asked)
        for tensor in inputs:
            keep(tensor)
        for handle in handles:
            handle.remove()
        # The plain sum of what a norm returns is always 0.
        weights_D = torch.linspace(-1, 2, found.tokens_TD.shape[1])
        vectors = (found.tokens_TD * weights_D).sum()
        total = vectors + sum(one.sum() for parts in found.attention.values() for one in parts)
        held = sum(kept.values())
        total.square().backward()
    assert len(inputs) == LAYERS
    return held, model.words.weight.grad.clone()


def test_less_than_half_of_the_memory_of_activations_is_kept(tmp_path: Path, corpus: Any) -> None:
    batch = corpus("single", [30] * 8).batch()
    plain = dict(encoders(tmp_path / "plain"))
    for name, model in encoders(tmp_path / "again", gradient_checkpointing=True):
        model.load_state_dict(plain[name].state_dict())
        (more, wanted), (less, found) = (kept_bytes(one.train(), batch) for one in (plain[name], model))
        assert torch.equal(found, wanted) and found.abs().max() > 0
        # One of six layers at a time has its tensors in the backward pass.
        assert less + more / LAYERS < more / 2, (name, less, more)


def test_what_a_method_reads_inside_of_layers_has_the_same_gradient(tmp_path: Path, corpus: Any) -> None:
    batch = corpus("single", [5, 9, 9]).batch()
    inside = Inside(hidden=True, attention=(0, -1), projections=(1,))
    plain = dict(encoders(tmp_path / "plain"))["bert"]
    again = dict(encoders(tmp_path / "again", gradient_checkpointing=True))["bert"]
    again.load_state_dict(plain.state_dict())
    (_, wanted), (_, found) = (kept_bytes(one.train(), batch, inside=inside) for one in (plain, again))
    assert torch.equal(found, wanted) and found.abs().max() > 0
