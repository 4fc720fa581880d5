"""A layer as one node of autograd has the bytes of its modules, and the gradient of its formula."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.models.adapters.lora import Lora
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.layers.attention import attention_over
from nlu.models.layers.noise import Noise, drawing_from
from tests.models.conftest import VOCAB_SIZE
from tests.models.parts import task_model

SIZES: dict[str, Any] = {
    "hidden_size": 48, "layers": 3, "heads": 4, "intermediate_size": 80, "max_positions": 64, "dropout": 0.2,
    "attention_dropout": 0.3,
}  # fmt: skip
LENGTHS = [1, 2, 3, 5, 8, 8, 9, 13, 16, 17, 20, 20, 21, 24, 24, 25, 30, 33]
"""at least as many as linear layers need without padding, also in the last layer, where each sequence is one row"""
NODE = "_OneNodeBackward"


def bert(**more: Any) -> Bert:
    torch.manual_seed(0)
    found = Bert(VOCAB_SIZE, None, pretrained=None, **{**SIZES, **more})
    for parameter in found.parameters():
        # Neither biases of 0 nor norms of 1 would show a mistake.
        nn.init.normal_(parameter, mean=0.5 if parameter.dim() == 1 else 0.0, std=0.2)
    return found.train()


def as_modules(model: nn.Module) -> nn.Module:
    """Make the modules compute each layer, by a hook that does nothing."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(lambda *_: None)
    return model


def nodes(output: Tensor) -> list[str]:
    """Return the names of all nodes of autograd behind a tensor."""
    seen, left = {output.grad_fn}, [output.grad_fn]
    while left:
        assert (node := left.pop()) is not None
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                left.append(before)
    return [type(node).__name__ for node in seen]


def pooled(model: Any, batch: Any, context: AbstractContextManager[object] | None = None, step: int = 1) -> Tensor:
    with drawing_from(Noise(7, step, batch)), context or nullcontext():
        found = model.encode(model.embed(batch), batch, pooled=True).pooled_SD
    assert isinstance(found, Tensor)
    return found


def everything(model: Bert, batch: Any, precision: torch.dtype) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of the vectors of two micro-batches, and of the gradient of their sum."""
    for micro in range(2):
        context = torch.autocast("cpu", precision, enabled=precision != torch.float32)
        vectors_SD = pooled(model, batch, context, micro)
        yield f"vectors {micro}", vectors_SD.detach().numpy().tobytes()
        weights_SD = torch.randn(vectors_SD.shape, generator=torch.Generator().manual_seed(micro))
        (vectors_SD * weights_SD).sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        yield name, parameter.grad.numpy().tobytes()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"pooling": "mean", "activation": "gelu_new", "layer_groups": 1},
        {"dropout": 0.0, "attention_dropout": 0.0, "activation": "relu"},
    ],
)
def test_vectors_and_gradients_have_the_bytes_of_the_modules(corpus: Any, more: Any, precision: torch.dtype) -> None:
    batch = corpus("pair", LENGTHS).batch()
    one, modules = bert(**more), bert(**more)
    as_modules(modules)
    assert nodes(pooled(one, batch)).count(NODE) == SIZES["layers"]
    assert NODE not in nodes(pooled(modules, batch))
    assert dict(everything(one, batch, precision)) == dict(everything(modules, batch, precision))


def by_definition(hidden_TD: Tensor, lengths: list[int], heads: int, weights: dict[str, Tensor]) -> Tensor:
    """Return the output of a post-norm layer, sequence by sequence, in the precision of its arguments."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scaled = centered / (centered.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    found = []
    for rows_LD in hidden_TD.split(lengths):
        query, key, value = (
            part.unflatten(1, (heads, -1)).transpose(0, 1) for part in linear(rows_LD, "attention.self.qkv").chunk(3, 1)
        )
        mixed = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value
        attended = linear(mixed.transpose(0, 1).flatten(1), "attention.output.dense")
        attended = norm(attended + rows_LD, "attention.output.LayerNorm")
        inner = linear(attended, "intermediate.dense")
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        found.append(norm(linear(inner, "output.dense") + attended, "output.LayerNorm"))
    return torch.cat(found)


def test_the_gradient_is_that_of_finite_differences_of_the_formula_in_float64(corpus: Any) -> None:
    batch = corpus("single", LENGTHS).batch()
    model = bert(layers=1, dropout=0.0, attention_dropout=0.0, pooling="mean")
    layer: Any = model.encoder["layer"][0]  # type: ignore[index]
    hidden_TD = torch.randn(sum(LENGTHS), SIZES["hidden_size"], requires_grad=True)
    output_TD = layer.in_one_node(hidden_TD, attention_over(LENGTHS, SIZES["heads"], torch.device("cpu")), None)
    assert nodes(output_TD).count(NODE) == 1 and len(batch) == len(LENGTHS)
    loss_TD = torch.randn(output_TD.shape)
    output_TD.backward(loss_TD)
    exact = {name: parameter.detach().double() for name, parameter in layer.named_parameters()}
    exact["hidden"] = hidden_TD.detach().double()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()} | {"hidden": hidden_TD.grad}

    def loss(weights: dict[str, Tensor]) -> float:
        output = by_definition(weights["hidden"], LENGTHS, SIZES["heads"], weights)
        return float((output * loss_TD.double()).sum())

    size = 1e-5
    for name, value in exact.items():
        # In the direction of the gradient, in which a wrong one cannot seem right by chance.
        gradient = gradients[name].double()
        direction = gradient / gradient.norm()
        up, down = (loss({**exact, name: value + sign * size * direction}) for sign in (1, -1))
        slope = (up - down) / (2 * size)
        assert abs(slope - float(gradient.norm())) < 1e-5 * float(gradient.norm()), name
        # And in another one, in which the derivative is small: the gradient has no further part.
        other = torch.randn(value.shape, dtype=torch.float64)
        other -= (other * direction).sum() * direction
        other /= other.norm()
        up, down = (loss({**exact, name: value + sign * size * other}) for sign in (1, -1))
        assert abs((up - down) / (2 * size)) < 1e-5 * float(gradient.norm()), name


def frozen(model: Any) -> None:
    model.encoder["layer"][1].output.dense.weight.requires_grad_(False)


def adapted(model: Any) -> None:
    Lora(targets=["*.layer.1.*"]).apply(task_model(model, "single", 3))
    model.requires_grad_(True)


def replaced(model: Any) -> None:
    inner = model.encoder["layer"][1].output.forward
    model.encoder["layer"][1].output.forward = lambda *given: inner(*given)


def hooked(model: Any) -> None:
    model.encoder["layer"][1].attention.self["qkv"].register_full_backward_hook(lambda *_: None)


@pytest.mark.parametrize("change", [frozen, adapted, replaced, hooked])
def test_only_a_layer_that_something_changes_is_computed_by_modules(corpus: Any, change: Callable[[Any], None]) -> None:
    batch = corpus("single", LENGTHS).batch()
    model, same = bert(), bert()
    change(model)
    output = pooled(model, batch)
    assert nodes(output).count(NODE) == SIZES["layers"] - 1
    assert torch.equal(output, pooled(same, batch))


def test_what_looks_into_a_layer_sees_its_modules(corpus: Any) -> None:
    batch = corpus("single", LENGTHS).batch()
    model = bert()
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=False):
        assert NODE not in nodes(pooled(model, batch))
    found = model.encode(model.embed(batch), batch, tokens=True, inside=Inside(projections=(0, 1, 2)))
    assert found.tokens_TD is not None and NODE not in nodes(found.tokens_TD)
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    assert NODE not in nodes(pooled(model, batch)) and seen.count(nn.LayerNorm) == 2 * SIZES["layers"] + 1
    handle.remove()
    assert nodes(pooled(model, batch)).count(NODE) == SIZES["layers"]


def test_layers_that_are_computed_again_have_the_bytes_of_one_node(corpus: Any) -> None:
    batch = corpus("single", LENGTHS).batch()
    one, again = bert(), bert(gradient_checkpointing=True)
    assert dict(everything(one, batch, torch.bfloat16)) == dict(everything(again, batch, torch.bfloat16))


def test_few_rows_and_scores_are_computed_by_modules(corpus: Any) -> None:
    model = bert()
    few = corpus("single", [20, 20]).batch()
    # The last layer has one row for each sequence.
    assert nodes(pooled(model, few)).count(NODE) == SIZES["layers"] - 1
    calls: list[int] = []
    model.encoder["layer"][0].output.dense.register_forward_pre_hook(lambda *_: calls.append(1))  # type: ignore[index,union-attr,operator]
    with torch.no_grad():
        pooled(model, few)
    assert calls == [1]


def test_first_tokens_have_the_gradient_of_the_formula(corpus: Any) -> None:
    batch = corpus("single", LENGTHS).batch()
    model = bert(dropout=0.0, attention_dropout=0.0)
    first_SD = pooled(model, batch)
    assert nodes(first_SD).count(NODE) == SIZES["layers"]
    weights_SD = torch.randn(first_SD.shape)
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad((first_SD * weights_SD).sum(), list(parameters.values()))
    exact = {name: value.detach().double().requires_grad_() for name, value in parameters.items()}
    hidden_TD = (
        exact["embeddings.word_embeddings.weight"][batch.tokens_T]
        + exact["embeddings.position_embeddings.weight"][batch.positions_T]
        + exact["embeddings.token_type_embeddings.weight"][batch.segments_T]
    )
    norm = "embeddings.LayerNorm"
    hidden_TD = F.layer_norm(hidden_TD, hidden_TD.shape[1:], exact[f"{norm}.weight"], exact[f"{norm}.bias"], eps=1e-12)
    for number in range(SIZES["layers"]):
        prefix = f"encoder.layer.{number}."
        own = {name.removeprefix(prefix): value for name, value in exact.items() if name.startswith(prefix)}
        hidden_TD = by_definition(hidden_TD, batch.lengths, SIZES["heads"], own)
    loss = (hidden_TD[batch.starts_S] * weights_SD.double()).sum()
    expected = torch.autograd.grad(loss, list(exact.values()))
    for name, one, other in zip(parameters, found, expected, strict=True):
        assert (one.double() - other).norm() < 1e-5 * other.norm(), name
