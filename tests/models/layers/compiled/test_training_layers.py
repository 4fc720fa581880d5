"""Layers with kernels in C: their formulas in float64, the masks of torch's path, and independence of the batch.

Axes: T tokens of all sequences, S sequences, D width.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.errors import UserError
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.layers import noise
from nlu.models.layers.activations import ACTIVATIONS
from nlu.models.layers.compiled import library
from nlu.models.layers.compiled.training_kernels import CompiledAttention, activated
from nlu.models.layers.dropout import dropout_mask
from nlu.models.layers.noise import Noise, drawing_from
from tests.models.conftest import VOCAB_SIZE
from tests.models.layers.compiled.machine import compiles_training
from tests.models.layers.test_layer_in_one_node import LENGTHS, SIZES, bert, nodes

pytestmark = pytest.mark.needs(compiles_training, "no compiler, or no AVX-512 with bf16")
NODE = "_CompiledBackward"


def compiled(**more: Any) -> Bert:
    found = bert(**more)
    found.train_in_c()
    return found


def vectors(model: Any, batch: Any, precision: torch.dtype = torch.float32, step: int = 1) -> Tensor:
    """Return the pooled vectors in a training step, with its random numbers."""
    context = torch.autocast("cpu", precision) if precision != torch.float32 else nullcontext()
    with drawing_from(Noise(7, step, batch)), context:
        found: Tensor = model.encode(model.embed(batch), batch, pooled=True).pooled_SD
    return found


def factors(rows: Tensor) -> Tensor:
    """Return weights of a loss; those of a sequence do not depend on the others."""
    return torch.linspace(-1, 2, rows.shape[1]).sin().expand(rows.shape)


def gradients(model: Any, batch: Any, precision: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the vectors and the gradients of all parameters."""
    found = vectors(model, batch, precision)
    model.zero_grad()
    (found * factors(found)).sum().backward()  # type: ignore[no-untyped-call]
    return {"vectors": found.detach()} | {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


class InFloat64:
    """The encoder from its definition, in float64, one sequence after another, with the masks of torch's path.

    A mask is drawn for all sequences at once, as the modules do; weights of attention are padded to lengths of 8.
    """

    def __init__(self, model: Bert, batch: Any):
        self.values = {name: each.detach().double().requires_grad_() for name, each in model.named_parameters()}
        self.sizes, self.batch, self.mean = model.sizes, batch, model.pooling == "mean"

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.values[f"{name}.weight"].T + self.values[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.values[f"{name}.weight"], self.values[f"{name}.bias"], eps=1e-12)

    def masks(self, shape: tuple[int, ...]) -> Tensor:
        """Return the mask of hidden states."""
        probability = self.sizes["dropout"]
        return dropout_mask(torch.empty(shape), probability).double() if probability else torch.ones(shape).double()

    def masks_of_weights(self, queries: list[int]) -> list[Tensor]:
        """Return the mask (H, Q, L) of each sequence."""
        found = []
        probability, heads = self.sizes["attention_dropout"], self.sizes["heads"]
        streams = noise.active()
        assert streams is not None
        for number, (length, count) in enumerate(zip(self.batch.lengths, queries, strict=True)):
            padded = -(-length // 8) * 8
            rows = padded if count > 1 or length == 1 and self.whole else 1
            bits = streams.bits([heads * rows * padded], number) if probability else None
            if bits is None:
                found.append(torch.ones(heads, count, length).double())
                continue
            stays = torch.from_numpy(bits.astype("int64")).view(heads, rows, padded) >= round(probability * 2**16)
            found.append(stays[:, :count, :length].double() / (1 - probability))
        return found

    def layer(self, hidden_TD: Tensor, prefix: str, whole: bool) -> Tensor:
        self.whole = whole
        parts = hidden_TD.split(self.batch.lengths)
        masks = self.masks_of_weights(self.batch.lengths if whole else [1] * len(parts))
        mixed, residual = [], []
        for rows_LD, mask_HQL in zip(parts, masks, strict=True):
            query, key, value = (
                part.unflatten(1, (self.sizes["heads"], -1)).transpose(0, 1)
                for part in self.linear(rows_LD, f"{prefix}.attention.self.qkv").chunk(3, 1)
            )
            query = query if whole else query[:, :1]
            weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) * mask_HQL
            mixed.append((weights @ value).transpose(0, 1).flatten(1))
            residual.append(rows_LD if whole else rows_LD[:1])
        before = torch.cat(residual)
        attended = self.linear(torch.cat(mixed), f"{prefix}.attention.output.dense") * self.masks(before.shape)
        attended = self.norm(attended + before, f"{prefix}.attention.output.LayerNorm")
        inner = ACTIVATIONS[self.sizes["activation"]](self.linear(attended, f"{prefix}.intermediate.dense"))
        outer = self.linear(inner, f"{prefix}.output.dense") * self.masks(before.shape)
        return self.norm(outer + attended, f"{prefix}.output.LayerNorm")

    def gradients(self) -> dict[str, Tensor]:
        batch, names = self.batch, "embeddings.{}_embeddings.weight".format
        with drawing_from(Noise(7, 1, batch)):
            hidden_TD = sum(
                self.values[names(name)][entries_T]
                for name, entries_T in (
                    ("word", batch.tokens_T), ("position", batch.positions_T), ("token_type", batch.segments_T),
                )
            )  # fmt: skip
            assert isinstance(hidden_TD, Tensor)
            hidden_TD = self.norm(hidden_TD, "embeddings.LayerNorm")
            hidden_TD = hidden_TD * self.masks(hidden_TD.shape)
            for number in range(self.sizes["layers"]):
                last = number + 1 == self.sizes["layers"] and not self.mean
                hidden_TD = self.layer(hidden_TD, f"encoder.layer.{number}", not last)
        if self.mean:
            hidden_TD = torch.stack([rows_LD.mean(0) for rows_LD in hidden_TD.split(batch.lengths)])
        (hidden_TD * factors(hidden_TD)).sum().backward()  # type: ignore[no-untyped-call]
        return {"vectors": hidden_TD.detach()} | {
            name: each.grad for name, each in self.values.items() if each.grad is not None
        }


def errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    assert found.keys() == exact.keys()
    return {name: float((found[name].double() - exact[name]).norm() / exact[name].norm()) for name in exact}


OF_LAYERS: list[dict[str, Any]] = [
    {},
    {"pooling": "mean", "activation": "gelu_new", "hidden_size": 312, "heads": 12, "intermediate_size": 100},
    {"dropout": 0.0, "attention_dropout": 0.0, "activation": "relu", "hidden_size": 128, "heads": 2},
    {"pooling": "mean", "hidden_size": 70, "heads": 1, "dropout": 0.5, "attention_dropout": 0.5},
]


@pytest.mark.parametrize("more", OF_LAYERS)
def test_vectors_and_gradients_are_those_of_the_formula_with_the_same_masks(corpus: Any, more: Any) -> None:
    batch = corpus("pair", LENGTHS).batch()
    model = compiled(**more)
    assert nodes(vectors(model, batch)).count(NODE) == SIZES["layers"]
    assert max(errors(gradients(model, batch), InFloat64(model, batch).gradients()).values()) < 1e-5


# Without relu, where rounding decides whether a number near 0 has a gradient.
@pytest.mark.parametrize("more", [more for more in OF_LAYERS if more.get("activation") != "relu"])
def test_in_bf16_they_are_as_exact_as_those_of_torch(corpus: Any, more: Any) -> None:
    batch = corpus("pair", LENGTHS).batch()
    model, modules = compiled(**more), bert(**more)
    exact = InFloat64(model, batch).gradients()
    ours, theirs = (errors(gradients(each, batch, torch.bfloat16), exact) for each in (model, modules))
    assert sum(ours.values()) < 1.1 * sum(theirs.values())
    for name, error in ours.items():
        assert error < 1.5 * theirs[name] + 1e-3, name


def test_long_sequences_have_the_gradient_of_the_formula(corpus: Any) -> None:
    batch = corpus("single", [1, 47, 48, 49, 127, 128, 129, 300]).batch()
    model = compiled(max_positions=300, layers=2, pooling="mean")
    assert max(errors(gradients(model, batch), InFloat64(model, batch).gradients()).values()) < 1e-5


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_sequence_has_the_same_bytes_in_any_batch(corpus: Any, precision: torch.dtype, pooling: str) -> None:
    """Also in a batch of one sequence, whose rows are so few that products pad them."""
    lengths = [*LENGTHS, 60]
    of = corpus("single", lengths)
    model = compiled(pooling=pooling)

    def words(rows: Any) -> tuple[Tensor, Tensor]:
        """Return the vectors of these examples and the gradients of their words' vectors."""
        batch = of.batch(rows)
        embedded_TD = model.embed(batch).detach().requires_grad_()
        context = torch.autocast("cpu", precision) if precision != torch.float32 else nullcontext()
        with drawing_from(Noise(7, 1, batch)), context:
            found = model.encode(embedded_TD, batch, pooled=True).pooled_SD
        assert isinstance(found, Tensor) and nodes(found).count(NODE) == SIZES["layers"]
        (found * factors(found)).sum().backward()  # type: ignore[no-untyped-call]
        assert embedded_TD.grad is not None
        return found.detach(), embedded_TD.grad

    together_SD, of_all_TD = words(None)
    for row, (vector_D, of_one_LD) in enumerate(zip(together_SD, of_all_TD.split(lengths), strict=True)):
        alone_1D, alone_LD = words([row])
        assert torch.equal(alone_1D[0], vector_D) and torch.equal(alone_LD, of_one_LD), lengths[row]


def test_attention_has_the_same_bytes_for_any_number_of_threads(corpus: Any, threads: Any) -> None:
    lengths = [*LENGTHS * 2, 200, 300]
    batch = corpus("single", sorted(lengths)).batch()
    projected_TC = torch.randn(sum(lengths), 3 * SIZES["hidden_size"])
    seen = []
    for count in (1, 1, 2, 3):
        threads(count)
        attention = CompiledAttention(batch.lengths, SIZES["heads"])
        with drawing_from(Noise(7, 1, batch)):
            mixed_TD, saved = attention.forward(None, projected_TC, 0.1)
        _, to_projected_TC = attention.backward(saved, mixed_TD.sin(), 0.1)
        seen.append((mixed_TD, to_projected_TC))
    for found in seen[1:]:
        assert all(map(torch.equal, found, seen[0]))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_numbers_far_from_zero_are_those_of_torch(name: str) -> None:
    far = torch.tensor([-1e6, -7e4, -200.0, -15.0, 15.0, 200.0, 7e4, 1e6]).repeat(3, 1)
    input = far.clone().requires_grad_()
    expected = ACTIVATIONS[name](input)
    (slopes,) = torch.autograd.grad(expected.sum(), input)
    # The derivatives replace the input.
    found = far.clone()
    active, found_slopes = activated(ACTIVATIONS[name], found)
    torch.testing.assert_close(active, expected.detach(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found_slopes, slopes, atol=1e-6, rtol=1e-6)


def test_attention_follows_the_largest_score_however_far_the_others_are() -> None:
    query, key, value = torch.tensor([[1e8], [1e8]]), torch.tensor([[1e8], [-1e8]]), torch.tensor([[3.0], [5.0]])
    projected = torch.cat([each.expand(2, 16) for each in (query, key, value)], dim=1).contiguous()
    mixed, _ = CompiledAttention([2], 1).forward(None, projected, 0.0)
    assert torch.equal(mixed, torch.full((2, 16), 3.0))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_steps_repeat_to_the_same_bytes(corpus: Any, precision: torch.dtype) -> None:
    batch = corpus("pair", LENGTHS).batch()
    first, second = (gradients(compiled(), batch, precision) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_layers_that_share_weights_add_up_their_gradients(corpus: Any) -> None:
    batch = corpus("pair", LENGTHS).batch()
    more: dict[str, Any] = {"layer_groups": 1, "dropout": 0.0, "attention_dropout": 0.0}
    ours, theirs = gradients(compiled(**more), batch), gradients(bert(**more), batch)
    assert max(errors(ours, {name: each.double() for name, each in theirs.items()}).values()) < 1e-5


def test_torch_computes_what_is_looked_into_frozen_or_only_scored(corpus: Any) -> None:
    batch = corpus("single", LENGTHS).batch()
    model, same = compiled(), bert()
    found = model.encode(model.embed(batch), batch, tokens=True, inside=Inside(hidden=True))
    assert found.tokens_TD is not None and NODE not in nodes(found.tokens_TD)
    model.encoder["layer"][1].output.dense.weight.requires_grad_(False)  # type: ignore[index,union-attr]
    assert nodes(vectors(model, batch)).count(NODE) == SIZES["layers"] - 1
    with torch.no_grad():
        assert torch.equal(vectors(model.eval(), batch), vectors(same.eval(), batch))
    assert torch.equal(vectors(model, batch), vectors(same, batch))


def test_a_model_that_the_kernels_cannot_compute_is_refused() -> None:
    for sizes, said in (
        ({"hidden_size": 15, "heads": 3}, "model.hidden_size is 15 with 3 heads of 5"),
        ({"hidden_size": 33, "heads": 3}, "model.hidden_size is 33 with 3 heads of 11"),
    ):
        model = Bert(VOCAB_SIZE, None, pretrained=None, **{**SIZES, **sizes})
        with pytest.raises(UserError, match=f"trainer.kernels is compiled, which needs .*{said}; set trainer.kernels"):
            model.train_in_c()


def test_a_machine_that_lacks_compiler_or_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert()
    named = "nlu.models.layers.compiled.training_kernels.TRAINING_INSTRUCTIONS"
    monkeypatch.setattr(named, ("__AVX512F__", "__OF_TOMORROW__"))
    with pytest.raises(UserError, match="compiled, but this processor, or its compiler, lacks __OF_TOMORROW__; set"):
        model.train_in_c()
    monkeypatch.setenv("CC", "no-such-compiler")
    library._defined.cache_clear()
    with pytest.raises(UserError, match="CC=no-such-compiler is not on the PATH; .*trainer.kernels=torch trains"):
        model.train_in_c()
