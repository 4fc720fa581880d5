"""Compiled int8 layers against whole numbers and double precision in numpy.

Axes: T tokens of all sequences, S sequences, D width, L tokens of a sequence, H heads, E width of a head.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erf

from nlu.config.errors import UserError
from nlu.inference.int8 import compiled as in_c
from nlu.inference.int8.compiled import LOWEST, CompiledBert, compile_layers
from nlu.models.encoders.bert import Bert
from nlu.models.layers.exact_linear import Linear
from tests.inference.int8.machine import compiles_int8

pytestmark = pytest.mark.needs(compiles_int8, "no compiler, or no AVX-512 VNNI")
SIZES: list[dict[str, Any]] = [
    {"hidden_size": 24, "heads": 4, "intermediate_size": 40},
    {"hidden_size": 312, "heads": 12, "intermediate_size": 1200},
    {"hidden_size": 192, "heads": 1, "intermediate_size": 70},
    {"hidden_size": 32, "heads": 2, "intermediate_size": 13, "activation": "relu"},
    {"hidden_size": 32, "heads": 2, "intermediate_size": 64, "activation": "gelu_new"},
]
LENGTHS = [1, 2, 5, 16, 17, 33, 140]


def encoder(layers: int = 1, **sizes: Any) -> Bert:
    torch.manual_seed(3)
    found = Bert(20, None, pretrained=None, layers=layers, max_positions=200, **{**SIZES[0], **sizes}).eval()
    for name, parameter in found.named_parameters():
        # Norms and biases too, which start as ones and zeros.
        parameter.data.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.2)
    return found


def hidden(lengths: list[int], width: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(sum(lengths), width)


def rounded(x_TI: np.ndarray, linear: Linear, lowest: float | None = None) -> np.ndarray:
    """A linear layer in int8 from its definition: sums of 64-bit integers, scales in double precision."""
    weight_OI, bias_O = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()
    scale_O = np.abs(weight_OI).max(1) / 127
    whole_OI = np.rint(weight_OI / scale_O[:, None])
    if lowest is None:
        step_T1 = np.abs(x_TI).max(1, keepdims=True) / 127
        return np.rint(x_TI / step_T1) @ whole_OI.T * step_T1 * scale_O + bias_O
    step_T1 = (x_TI.max(1, keepdims=True) - lowest) / 255
    found_TO = np.rint((x_TI - lowest) / step_T1) @ whole_OI.T * step_T1
    result: np.ndarray = (found_TO + lowest * whole_OI.sum(1)) * scale_O + bias_O
    return result


def normed(x_TD: np.ndarray, norm: Any) -> np.ndarray:
    centered_TD = x_TD - x_TD.mean(1, keepdims=True)
    deviation_T1 = np.sqrt((centered_TD**2).mean(1, keepdims=True) + norm.eps)
    result: np.ndarray = centered_TD / deviation_T1 * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    return result


def activated(x: np.ndarray, name: str) -> np.ndarray:
    return {
        "gelu": lambda: x * (1 + erf(x / np.sqrt(2))) / 2,
        "gelu_new": lambda: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
        "relu": lambda: np.maximum(x, 0),
    }[name]()


def by_hand(layer: Any, hidden_TD: torch.Tensor, lengths: list[int], heads: int, activation: str) -> np.ndarray:
    x_TD = hidden_TD.double().numpy()
    qkv_T3HE = rounded(x_TD, layer.attention.self["qkv"]).reshape(len(x_TD), 3, heads, -1)
    mixed = []
    for query_LHE, key_LHE, value_LHE in (
        (part[:, 0], part[:, 1], part[:, 2]) for part in np.split(qkv_T3HE, np.cumsum(lengths)[:-1])
    ):
        scores_HLL = np.einsum("qhe,khe->hqk", query_LHE, key_LHE) / np.sqrt(query_LHE.shape[2])
        powers_HLL = np.exp(scores_HLL - scores_HLL.max(2, keepdims=True))
        weights_HLL = powers_HLL / powers_HLL.sum(2, keepdims=True)
        mixed.append(np.einsum("hqk,khe->qhe", weights_HLL, value_LHE).reshape(len(query_LHE), -1))
    own = layer.attention.output
    attended_TD = normed(rounded(np.concatenate(mixed), own.dense) + x_TD, own.LayerNorm)
    inner_TI = activated(rounded(attended_TD, layer.intermediate["dense"]), activation)
    outer_TD = rounded(inner_TI, layer.output.dense, LOWEST[activation])
    return normed(outer_TD + attended_TD, layer.output.LayerNorm)


def compiled(bert: Bert) -> in_c.Layers:
    compile_layers(bert)
    assert isinstance(bert, CompiledBert)
    return bert.in_c


@pytest.mark.parametrize("sizes", SIZES)
def test_a_layer_is_that_of_whole_numbers_and_double_precision(sizes):
    bert, activation = encoder(**sizes), sizes.get("activation", "gelu")
    hidden_TD = hidden(LENGTHS, sizes["hidden_size"])
    expected_TD = by_hand(bert.encoder["layer"][0], hidden_TD, LENGTHS, sizes["heads"], activation)
    errors_TD = np.abs(compiled(bert)(hidden_TD, LENGTHS, first_only=False).numpy() - expected_TD)
    # A number between two whole ones may be rounded to the other one in single precision.
    assert np.median(errors_TD) < 2e-5 and errors_TD.max() < 0.05 * np.abs(expected_TD).max()


def test_the_norm_of_embeddings_is_that_of_double_precision():
    bert, sum_TD = encoder(**SIZES[1]), hidden(LENGTHS, 312)
    expected_TD = normed(sum_TD.double().numpy(), bert.embeddings.LayerNorm)
    compiled(bert).normalize(sum_TD)
    assert np.abs(sum_TD.numpy() - expected_TD).max() < 1e-5


@pytest.mark.parametrize("sizes", SIZES)
def test_the_first_tokens_of_the_last_layer_have_the_bits_of_all_tokens(sizes):
    layers = compiled(encoder(3, **sizes))
    hidden_TD = hidden(LENGTHS, sizes["hidden_size"])
    whole_TD = layers(hidden_TD, LENGTHS, first_only=False)
    starts = np.cumsum([0, *LENGTHS[:-1]])
    assert torch.equal(layers(hidden_TD, LENGTHS, first_only=True), whole_TD[starts])


@pytest.mark.parametrize("sizes", SIZES)
def test_a_sequence_has_the_same_bits_among_any_neighbours(sizes):
    layers = compiled(encoder(2, **sizes))
    parts = [hidden([length], sizes["hidden_size"], length) for length in LENGTHS * 2]
    alone = [layers(part, [len(part)], first_only=False) for part in parts]
    for order in (range(14), range(13, -1, -1), [5, 5, 5, 13, 0], range(0, 14, 3)):
        lengths = [len(parts[number]) for number in order]
        found_TD = layers(torch.cat([parts[number] for number in order]), lengths, first_only=False)
        for number, found in zip(order, found_TD.split(lengths), strict=True):
            assert torch.equal(found, alone[number])


def test_no_sequences_give_no_rows():
    layers = compiled(encoder())
    assert layers(hidden([], 24), [], first_only=False).shape == (0, 24)
    assert layers(hidden([], 24), [], first_only=True).shape == (0, 24)


def test_a_number_that_is_not_finite_stays_visible_in_its_sequence_only():
    layers, hidden_TD = compiled(encoder(2)), hidden([3, 4, 5], 24)
    clean_TD = layers(hidden_TD, [3, 4, 5], first_only=False)
    for strange in (np.nan, np.inf, -np.inf):
        hidden_TD[4, 7] = strange
        found_TD = layers(hidden_TD, [3, 4, 5], first_only=False)
        assert found_TD[3:7].isnan().all()
        assert torch.equal(found_TD[:3], clean_TD[:3]) and torch.equal(found_TD[7:], clean_TD[7:])


def test_layers_with_shared_weights_and_fewer_heads_compute_as_torch_does():
    shared = encoder(4, layer_groups=2)
    hidden_TD = hidden(LENGTHS, 24)
    found_TD = compiled(shared)(hidden_TD, LENGTHS, first_only=False).numpy()
    expected_TD = hidden_TD
    for number in (0, 0, 1, 1):
        layer = encoder(4, layer_groups=2).encoder["layer"][number]
        expected_TD = torch.from_numpy(by_hand(layer, expected_TD, LENGTHS, 4, "gelu"))
    assert np.median(np.abs(found_TD - expected_TD.numpy())) < 0.01


def test_a_processor_without_the_instructions_is_refused(monkeypatch):
    monkeypatch.setattr(in_c, "instruction_sets", lambda: {"avx512f", "avx512bw", "avx512dq", "avx512vl"})
    with pytest.raises(UserError, match="^precision is int8_compiled, but this processor lacks avx512_vnni; set"):
        compile_layers(encoder())


def test_a_pooling_over_layers_is_refused():
    bert = encoder(2, pooling="layers", pooled_layers=[0, 1])
    with pytest.raises(UserError, match="but model.pooling is layers; set precision=int8"):
        compile_layers(bert)


@pytest.mark.parametrize("first_only", [True, False])
def test_a_batch_has_the_same_bits_on_any_number_of_threads(first_only):
    layers, before = compiled(encoder(2)), torch.get_num_threads()
    lengths = sorted([int(length) for length in np.random.default_rng(1).integers(1, 60, 40)] + [900])
    hidden_TD = hidden(lengths, 24)
    found = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            found.append(layers(hidden_TD, lengths, first_only=first_only))
    finally:
        torch.set_num_threads(before)
    assert sum(lengths) > 8 * in_c.TOKENS_PER_THREAD
    assert all(torch.equal(other, found[0]) for other in found[1:])


def test_a_fork_computes_with_threads_of_its_own():
    layers, lengths = compiled(encoder(1)), [50] * 20
    hidden_TD = hidden(lengths, 24)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected_TD = layers(hidden_TD, lengths, first_only=False)
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(layers(hidden_TD, lengths, first_only=False), expected_TD) else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)
