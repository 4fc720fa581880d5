"""The logits of an example depend only on that example: not on the batch, its size, its order or the threads.

A new encoder is added to ENCODERS in parts.py, a new head to CASES.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nlu.inference.int8.compiled import compile_layers, quantize
from nlu.inference.int8.int8_linear import multiplies_integers
from nlu.models.adapters.lora import Lora
from nlu.models.encoders.bert import Bert
from nlu.models.formats.pretrained import Pretrained
from nlu.models.heads.crf import CrfHead
from nlu.models.heads.linear import LinearHead
from nlu.models.heads.mlp import MlpHead
from nlu.models.heads.pairs import SidesHead
from nlu.models.heads.transformers import head_of_transformers
from nlu.models.heads.words import WordsHead
from nlu.models.layers.exact_linear import Linear, Tied
from nlu.models.task_model import TaskModel
from tests.few import first, sampled
from tests.inference.int8.machine import compiles_int8
from tests.models.parts import ENCODERS, VOCAB_SIZE, Target, labels, modern, task_model

LAYOUTS = ["single", "pair", "units"]
COUNT = 23
SMALL: dict[str, Any] = {"hidden_size": 312, "heads": 12, "intermediate_size": 1248, "embedding_size": 128}
EXACT: list[dict[str, Any]] = [
    {"hidden_size": 48, "heads": 3, "intermediate_size": 40},
    {"hidden_size": 64, "heads": 2, "intermediate_size": 256, "embedding_size": 32},
    {"hidden_size": 100, "heads": 5, "intermediate_size": 300, "activation": "relu"},
    SMALL,
]
"""Sizes of Bert that give the same bits; heads narrower than 12 do not with several threads."""


def bert(**sizes: Any) -> Bert:
    return Bert(VOCAB_SIZE, None, pretrained=None, **{"layers": 2, "max_positions": 64, **sizes})


class Words(LinearHead):
    """A score of every word for each unit, from the weights of the word vectors."""

    def __init__(self, encoder: Bert):
        nn.Module.__init__(self)
        self.wants = "units"
        tied, width = Tied(encoder.words), encoder.width_of("units")
        # Word vectors may be narrower than the encoder.
        self.linear = tied if tied.in_features == width else nn.Sequential(Linear(width, tied.in_features), tied)


def linear(layout: str) -> Callable[[Any], TaskModel]:
    return lambda encoder: task_model(encoder, layout, 3)


def headed(layout: str, make: Callable[[int], nn.Module]) -> Callable[[Any], TaskModel]:
    return lambda encoder: TaskModel(encoder, make(encoder.width_of(layout)), layout)


def adapted(layout: str) -> Callable[[Any], TaskModel]:
    def build(encoder: Any) -> TaskModel:
        model = task_model(encoder, layout, 3)
        Lora(rank=3).apply(model)
        return model

    return build


HEADS: dict[str, Callable[[Any], TaskModel]] = {
    "single": linear("single"),
    "pair": linear("pair"),
    "units": linear("units"),
    "crf": headed("units", lambda width: CrfHead(width, Target(["O", "B-x", "I-x"], "tags"), None)),
    "mlp": headed("single", lambda width: MlpHead(width, labels(3), None, activation="gelu")),
    "words": headed("units", lambda width: WordsHead(width, labels(3), bert(hidden_size=16, heads=2, layers=1))),
    "sides concat": headed("sides", lambda width: SidesHead(width, labels(3), None, features="concat")),
    "sides cosine": headed("sides", lambda width: SidesHead(width, labels(3), None, features="cosine")),
}
"""Every head and layout, each built on an encoder."""
OF_BERT = {
    **{name: ({}, build) for name, build in HEADS.items()},
    **{pooling: ({"pooling": pooling}, linear("single")) for pooling in ("last", "mean", "max", "attention")},
    "layers": ({"pooling": "layers", "pooled_layers": [-1, 0]}, linear("single")),
    "mean of pairs": ({"pooling": "mean"}, linear("pair")),
    "pooler of pairs": ({"pooling": "pooler"}, linear("pair")),
    "LoRA": ({}, adapted("single")),
    "LoRA of units": ({}, adapted("units")),
    "tied words": ({}, lambda encoder: TaskModel(encoder, Words(encoder), "units")),
}


def of_transformers(encoder: Any) -> TaskModel:
    head: Any = head_of_transformers(24, labels(3), encoder) or LinearHead(encoder.width_of("single"), labels(3))
    return TaskModel(encoder, head, "single")


def layout_of(model: TaskModel) -> str:
    return model.backbone.layout


def lengths_of(seed: int) -> list[int]:
    """Ragged, with repetitions, and a single longest one."""
    return [*np.random.default_rng(seed).integers(2, 40, COUNT - 1).tolist(), 55]


def spread_of_logits(model: nn.Module, corpus: Any) -> float:
    """The largest difference of any logit between batch sizes and between neighbours, the largest logit being 1."""
    single = corpus.logits(model, 1)
    largest = 0.0
    shuffled = np.random.default_rng(5).permutation(len(corpus))
    for batch_size, order in [(7, None), (64, None), (1, shuffled), (7, shuffled), (64, shuffled), (2, shuffled)]:
        found = corpus.logits(model, batch_size, order)
        largest = max([largest, *((a - b).abs().max().item() for a, b in zip(single, found, strict=True) if len(a))])
    return largest / torch.cat(single).abs().max().item()


@sampled("name, head", ENCODERS, [*HEADS, "of transformers"])
def test_logits_of_every_head_on_every_encoder_do_not_depend_on_neighbours(corpus, spread, tmp_path, name, head):
    build = {**HEADS, "of transformers": of_transformers}[head]
    model = spread(build(ENCODERS[name](tmp_path / "weights")))
    assert spread_of_logits(model, corpus(layout_of(model), lengths_of(6))) <= 1e-5


@sampled("case, in_bf16, seed", OF_BERT, [False, True], range(len(EXACT)))
def test_logits_of_bert_have_the_same_bits_among_any_neighbours(corpus, spread, case, in_bf16, seed):
    options, build = OF_BERT[case]
    model = spread(build(bert(**options, **EXACT[seed])), seed)
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        assert spread_of_logits(model, corpus(layout_of(model), lengths_of(seed), seed)) == 0.0


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize("case", ["single", "units", "mean of pairs"])
def test_logits_of_modernbert_have_the_same_bits_among_any_neighbours(corpus, spread, case, in_bf16):
    options, build = OF_BERT[case]
    model = spread(build(modern(**options, hidden_size=48, heads=3, intermediate_size=40)))
    # Some texts are cut into blocks, the longest by itself.
    lengths = [*lengths_of(2), 97, 130, 130, 200]
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        assert spread_of_logits(model, corpus(layout_of(model), lengths)) == 0.0


@pytest.mark.parametrize("in_bf16", [False, True])
def test_logits_of_layers_that_lack_heads_have_the_same_bits_among_any_neighbours(corpus, spread, in_bf16):
    config = {
        "hidden_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 40,
        "hidden_act": "gelu", "pruned_heads": {"0": [0, 2, 3, 4, 5], "2": [1, 4]},
    }  # fmt: skip
    source = Pretrained("weights", Path("weights"), config)
    model = spread(task_model(Bert(VOCAB_SIZE, source, pretrained="weights"), "single", 3))
    assert [model.backbone.heads_of(layer) for layer in range(3)] == [1, 6, 4]
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        assert spread_of_logits(model, corpus("single", lengths_of(1))) == 0.0


@pytest.mark.needs(multiplies_integers, "no products of integers")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("seed", "dtype"), [(0, torch.bfloat16), (3, torch.bfloat16), *first(1, [(1, torch.float32), (2, torch.float32)])]
)
def test_in_int8_logits_of_bert_have_the_same_bits_among_any_neighbours(corpus, spread, seed, dtype, layout):
    model = spread(task_model(bert(**EXACT[seed]), layout, 3), seed)
    quantize(model.backbone, dtype)
    assert spread_of_logits(model, corpus(layout, lengths_of(seed), seed)) == 0.0


@pytest.mark.needs(compiles_int8, "no compiler, or no AVX-512 VNNI")
@pytest.mark.parametrize(
    ("layout", "pooling"), [*((layout, "first") for layout in LAYOUTS), ("pair", "pooler"), ("single", "mean")]
)
@pytest.mark.parametrize("seed", first(2, range(len(EXACT))))
def test_in_compiled_int8_logits_have_the_same_bits_among_any_neighbours(corpus, spread, seed, layout, pooling):
    model = spread(task_model(bert(pooling=pooling, **EXACT[seed]), layout, 3), seed)
    compile_layers(model.backbone)
    assert spread_of_logits(model, corpus(layout, lengths_of(seed), seed)) == 0.0


@pytest.mark.parametrize(("layout", "in_int8"), [("pair", False), ("units", True)])
def test_logits_of_bert_have_the_same_bits_with_one_thread_and_two(corpus, spread, threads, layout, in_int8):
    model = spread(task_model(bert(**SMALL), layout, 3))
    if in_int8:
        if not multiplies_integers():
            pytest.skip("no products of integers")
        quantize(model.backbone, torch.bfloat16)
    examples = corpus(layout, lengths_of(4)[-9:])
    found = []
    for count, batch_size in [(1, 1), (1, 9), (2, 1), (2, 9)]:
        threads(count)
        found.append(examples.logits(model, batch_size))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
