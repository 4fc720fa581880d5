"""The logits of an example depend only on that example: not on the batch, its size, its order or the threads.

A new encoder is added to ENCODERS, a new head to HEADS.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nlu.models.adapters.lora import Lora
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.lstm import Lstm
from nlu.models.encoders.static import Static
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.formats.pretrained import Pretrained, open_pretrained
from nlu.models.heads.crf import CrfHead
from nlu.models.heads.linear import LinearHead
from nlu.models.heads.mlp import MlpHead
from nlu.models.heads.pairs import SidesHead
from nlu.models.heads.words import WordsHead
from nlu.models.layers.linear import Tied
from nlu.models.layers.torch_private import multiplies_integers
from nlu.models.task_model import TaskModel
from tests.few import first
from tests.models.layers.compiled.machine import compiles_int8
from tests.models.parts import Target, labels, task_model

VOCAB_SIZE = 50
LAYOUTS = ["single", "pair", "units"]
COUNT = 23


def bert(**sizes: Any) -> Bert:
    return Bert(VOCAB_SIZE, None, pretrained=None, **{"layers": 2, "max_positions": 64, **sizes})


def textcnn(*kernel_sizes: int) -> TextCnn:
    sizes: dict[str, Any] = {"embedding_size": 16, "hidden_size": 24, "layers": 3, "kernel_sizes": list(kernel_sizes)}
    return TextCnn(VOCAB_SIZE, None, pretrained=None, **sizes)


def hugging_face(folder: Path, kind: str, pooling: Any, pooled_layers: list[int] | None = None) -> HuggingFace:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCAB_SIZE, max_position_embeddings=64, **sizes)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    own: dict[str, Any] = {"pooling": pooling, "pooled_layers": pooled_layers}
    return HuggingFace(VOCAB_SIZE, open_pretrained(str(folder)), pretrained=str(folder), **own)


ENCODERS: dict[str, Callable[[Path], nn.Module]] = {
    "bert with narrow heads": lambda folder: bert(hidden_size=24, heads=4, intermediate_size=40),
    "lstm": lambda folder: Lstm(VOCAB_SIZE, None, pretrained=None, embedding_size=16, hidden_size=24, layers=2),
    "static": lambda folder: Static(VOCAB_SIZE, None, pretrained=None, embedding_size=24),
    "textcnn 1": lambda folder: textcnn(1),
    "textcnn 3,5": lambda folder: textcnn(3, 5),
    "textcnn 7": lambda folder: textcnn(7),
    "hf bert": lambda folder: hugging_face(folder, "Bert", "first"),
    "hf bert mean": lambda folder: hugging_face(folder, "Bert", "mean"),
    "hf bert max": lambda folder: hugging_face(folder, "Bert", "max"),
    "hf bert attention": lambda folder: hugging_face(folder, "Bert", "attention"),
    "hf bert layers": lambda folder: hugging_face(folder, "Bert", "layers", [-1, 0]),
    "hf roberta": lambda folder: hugging_face(folder, "Roberta", "mean"),
    "hf deberta": lambda folder: hugging_face(folder, "DebertaV2", "first"),
}
"""Encoders by name, each built with a folder of the test's own."""
ALIKE = ("textcnn 1", "textcnn 7", "hf bert mean", "hf bert max", "hf bert layers", "hf roberta")
NAMES = [pytest.param(name, marks=pytest.mark.thorough) if name in ALIKE else name for name in ENCODERS]
SMALL: dict[str, Any] = {"hidden_size": 312, "heads": 12, "intermediate_size": 1248, "embedding_size": 128}
EXACT: list[dict[str, Any]] = [
    {"hidden_size": 48, "heads": 3, "intermediate_size": 40},
    {"hidden_size": 64, "heads": 2, "intermediate_size": 256, "embedding_size": 32},
    {"hidden_size": 100, "heads": 5, "intermediate_size": 300, "activation": "relu"},
    SMALL,
]
"""Sizes of Bert that give the same bits; heads narrower than 12 do not with several threads."""
SEEDS = first(1, range(len(EXACT)))
"""a size for each seed"""


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


HEADS: dict[str, tuple[str, Callable[[int], nn.Module]]] = {
    "crf": ("units", lambda width: CrfHead(width, Target(["O", "B-x", "I-x"], "tags"))),
    "mlp": ("single", lambda width: MlpHead(width, labels(3), activation="gelu")),
    "words": ("units", lambda width: WordsHead(width, labels(3), bert(hidden_size=16, heads=2, layers=1))),
    "sides concat": ("sides", lambda width: SidesHead(width, labels(3), features="concat")),
    "sides cosine": ("sides", lambda width: SidesHead(width, labels(3), features="cosine")),
}
"""Heads by name, each with the layout that it reads; the linear one has separate tests."""


@pytest.mark.parametrize(
    ("name", "head"),
    [
        pytest.param(name, head, marks=[] if name not in ALIKE and (row - column) % 3 == 0 else [pytest.mark.thorough])
        for row, name in enumerate(ENCODERS)
        for column, head in enumerate(HEADS)
    ],
)
def test_logits_of_every_head_on_every_encoder_do_not_depend_on_neighbours(corpus, spread, tmp_path, name, head):
    layout, make = HEADS[head]
    backbone: Any = ENCODERS[name](tmp_path / "weights")
    model = spread(TaskModel(backbone, make(backbone.width_of(layout)), layout))
    assert spread_of_logits(model, corpus(layout, lengths_of(6))) <= 1e-5


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, len(EXACT)))]
)
def test_logits_of_every_head_on_bert_have_the_same_bits_among_any_neighbours(corpus, spread, seed, head, in_bf16):
    layout, make = HEADS[head]
    backbone = bert(**EXACT[seed])
    model = spread(TaskModel(backbone, make(backbone.width_of(layout)), layout), seed)
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        assert spread_of_logits(model, corpus(layout, lengths_of(seed), seed)) == 0.0


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_every_encoder_do_not_depend_on_neighbours(corpus, spread, tmp_path, name, layout):
    model = spread(task_model(ENCODERS[name](tmp_path / "weights"), layout, 3))
    assert spread_of_logits(model, corpus(layout, lengths_of(6))) <= 1e-5


@pytest.mark.parametrize(
    ("layout", "pooling"),
    [(layout, "first") for layout in LAYOUTS] + [("single", "mean"), ("pair", "mean"), ("pair", "pooler")],
)
@pytest.mark.parametrize("seed", first(2, range(len(EXACT))))
def test_logits_of_bert_have_the_same_bits_among_any_neighbours(corpus, spread, seed, layout, pooling):
    model = spread(task_model(bert(pooling=pooling, **EXACT[seed]), layout, 3), seed)
    assert spread_of_logits(model, corpus(layout, lengths_of(seed), seed)) == 0.0


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize("pooling", ["max", "attention", "layers"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_pooling_makes_of_a_text_has_the_same_bits_among_any_neighbours(corpus, spread, seed, pooling, in_bf16):
    own = {"pooling": pooling, "pooled_layers": [-1, 0] if pooling == "layers" else None}
    model = spread(task_model(bert(**own, **EXACT[seed]), "single", 3), seed)
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        assert spread_of_logits(model, corpus("single", lengths_of(seed), seed)) == 0.0


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize("layout", ["single", "units"])
@pytest.mark.parametrize("rank", first(1, [3, 1]))
def test_logits_of_bert_with_lora_have_the_same_bits_among_any_neighbours(corpus, spread, rank, layout, in_bf16):
    model = task_model(bert(**EXACT[1]), layout, 3)
    Lora(rank=rank).apply(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        assert spread_of_logits(spread(model), corpus(layout, lengths_of(1))) == 0.0


@pytest.mark.needs(multiplies_integers, "no products of integers")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("seed", "dtype"), [(0, torch.bfloat16), (3, torch.bfloat16), *first(1, [(1, torch.float32), (2, torch.float32)])]
)
def test_in_int8_logits_of_bert_have_the_same_bits_among_any_neighbours(corpus, spread, seed, dtype, layout):
    model = spread(task_model(bert(**EXACT[seed]), layout, 3), seed)
    model.backbone.quantize(dtype)
    assert spread_of_logits(model, corpus(layout, lengths_of(seed), seed)) == 0.0


@pytest.mark.needs(compiles_int8, "no compiler, or no AVX-512 VNNI")
@pytest.mark.parametrize(
    ("layout", "pooling"), [*((layout, "first") for layout in LAYOUTS), ("pair", "pooler"), ("single", "mean")]
)
@pytest.mark.parametrize("seed", first(2, range(len(EXACT))))
def test_in_compiled_int8_logits_have_the_same_bits_among_any_neighbours(corpus, spread, seed, layout, pooling):
    model = spread(task_model(bert(pooling=pooling, **EXACT[seed]), layout, 3), seed)
    model.backbone.quantize(torch.float32, compiled=True)
    assert spread_of_logits(model, corpus(layout, lengths_of(seed), seed)) == 0.0


class Words(LinearHead):
    """A score of every word for each unit."""

    def __init__(self, encoder: Bert):
        nn.Module.__init__(self)
        self.wants = "units"
        self.linear = Tied(encoder.words)


@pytest.mark.parametrize("in_bf16", [False, True])
def test_scores_of_words_from_tied_weights_have_the_same_bits_in_any_batch(corpus, spread, in_bf16):
    backbone = bert(**EXACT[0])
    model = spread(TaskModel(backbone, Words(backbone), "units"))
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        assert spread_of_logits(model, corpus("units", lengths_of(2))) == 0.0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_in_bf16_logits_of_bert_have_the_same_bits_among_any_neighbours(corpus, spread, seed, layout):
    model = spread(task_model(bert(**EXACT[seed]), layout, 3), seed)
    with torch.autocast("cpu", torch.bfloat16):
        assert spread_of_logits(model, corpus(layout, lengths_of(seed), seed)) == 0.0


@pytest.mark.parametrize("in_int8", [False, True])
@pytest.mark.parametrize("layout", ["pair", "units"])
def test_logits_of_bert_have_the_same_bits_with_one_thread_and_two(corpus, spread, threads, layout, in_int8):
    model = spread(task_model(bert(**SMALL), layout, 3))
    if in_int8:
        if not multiplies_integers():
            pytest.skip("no products of integers")
        model.backbone.quantize(torch.bfloat16)
    examples = corpus(layout, lengths_of(4)[-9:])
    found = []
    for count, batch_size in [(1, 1), (1, 9), (2, 1), (2, 9)]:
        threads(count)
        found.append(examples.logits(model, batch_size))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
