"""An estimate of the memory that a training step takes at its peak, from the configuration, before anything is loaded.

The class of an encoder names its formula in the constant `activations_of_config`. The rest holds for any encoder of
known size: weights, gradients and the two moments of AdamW (Loshchilov & Hutter 2019,
https://arxiv.org/abs/1711.05101) take four times the weights, a moving average once more; with
precision.master_weights=false weights and gradients take half. What the layers keep for the
backward pass grows with the tokens; the formula follows Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198),
section 4.1, for our layers: packed rows, fp32 residuals, attention by products on a CPU.

Python, torch and the rows are not part of it, and on CUDA neither are its context and its allocator's rest. This module
imports nothing heavy.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.members import is_composite, is_mixture
from nlu.config.signature import read_constants
from nlu.config.targets import TARGET, import_target
from nlu.models.encoders.bert_sizes import BERT_BASE, CONFIG_KEYS
from nlu.models.formats.weights_config import bert_config, config_here
from nlu.models.kept_layers import number_kept

FLOAT = 4
"""bytes of a number in fp32"""
WORDS = "nlu.models.heads.words."
"""the module of the heads that score all words"""


@dataclass(frozen=True)
class Rows:
    """What a process computes at once."""

    sequences: int
    length: int
    """tokens of each sequence, at most"""
    low: int
    """bytes of a number in matrix products: 4, or 2 in half precision"""
    on_cuda: bool = False
    reads_tokens: bool = False
    """whether the head reads a vector of each token, not only one of each sequence"""
    scored: float = 0.0
    """the share of tokens for which all words are scored"""

    @property
    def tokens(self) -> int:
        return self.sequences * self.length


@dataclass(frozen=True)
class Parts:
    """The bytes of an encoder, as its formula gives them."""

    parameters: int
    """numbers that are trained"""
    linear_parameters: int
    """those of them that are copied into half precision"""
    kept: int
    """bytes that the forward pass keeps for the backward pass"""
    working: int
    """bytes that the backward pass takes at once in addition"""
    notes: tuple[str, ...] = ()
    """what was not known, and is not counted"""


@dataclass(frozen=True)
class StepMemory:
    """Bytes at the peak of a step, by their purpose."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    rows: Rows
    rows_of_batch: int
    notes: list[str] = field(default_factory=list)

    @property
    def parts(self) -> dict[str, int]:
        named = {"activations": self.activations, "weights": self.weights, "gradients": self.gradients}
        return {**named, "moments of AdamW": self.optimizer, "moving average": self.average}

    @property
    def total(self) -> int:
        return sum(self.parts.values())


Formula = Callable[[Mapping[str, Any], Rows], "Parts | str"]
"""`activations_of_config`: from the whole configuration; returns a reason if a size is not known"""


def sentence(config: Mapping[str, Any]) -> str:
    """Return the estimate in one line with what dominates it, or why there is none."""
    found = step_memory(config)
    if isinstance(found, str):
        return f"no estimate, since {found}"
    named = sorted(((size, name) for name, size in found.parts.items() if size), reverse=True)
    shares = ", ".join(f"{name} {size / 1e6:,.0f}" for size, name in named)
    where = "a GPU" if found.rows.on_cuda else "a CPU"
    of = f"{found.rows_of_batch:,} rows of {found.rows.length:,} tokens on {where}"
    notes = f"; {'; '.join(found.notes)}" if found.notes else ""
    return f"about {found.total / 1e6:,.0f} MB with {of}: {shares}{notes}"


def step_memory(config: Mapping[str, Any]) -> StepMemory | str:
    """Return the estimate for one process and the longest rows, or why none can be made, as the end of a sentence."""
    model = config["model"]
    if is_mixture(config) or is_composite(config):
        return "the run has several sets or tasks"
    name = model[TARGET].rpartition(".")[2]
    with suppress(UserError):
        formula: Any = read_constants(model[TARGET]).get("activations_of_config")
        if isinstance(formula, str):
            return _with_formula(config, import_target(formula, config.get("trusted_packages") or ()))
    return f"no formula is known for the encoder {name}; nlu.profile measures it"


def _with_formula(config: Mapping[str, Any], formula: Formula) -> StepMemory | str:
    rows, count = _rows(config)
    found = formula(config, rows)
    if isinstance(found, str):
        return found
    passes = read_constants(config["method"][TARGET]).get("passes_kept", 1)
    weights = found.parameters * FLOAT
    # Without master weights, products use the weights themselves.
    held, copies = weights, found.linear_parameters * rows.low * (rows.low < FLOAT)
    if not config["precision"].get("master_weights", True):
        held, copies = found.parameters * rows.low, 0
    notes = [*found.notes, *_notes(config)]
    return StepMemory(
        held + copies,
        held,
        2 * weights,
        weights if config["trainer"]["ema_decay"] else 0,
        passes * found.kept + found.working,
        rows,
        count,
        notes,
    )


def _rows(config: Mapping[str, Any]) -> tuple[Rows, int]:
    """Return what a process computes at once, and the number of rows that it is of."""
    trainer, length = config["trainer"], config["data"].get("max_len") or 128
    devices = trainer["devices"] if isinstance(trainer["devices"], int) else 1
    task = read_constants(config["task"][TARGET])
    layouts, heads = task.get("layouts", ()), task.get("heads", ())
    sides = 2 if "sides" in layouts else 1
    scored = config["task"].get("mask_fraction", 0.0) if any(head.startswith(WORDS) for head in heads) else 0.0
    reads_tokens = "units" in layouts or scored > 0 or not heads
    if trainer["batch_tokens"]:
        count = trainer["batch_tokens"] // (length * sides)
    else:
        count = trainer["batch_size"] if isinstance(trainer["batch_size"], int) else 1
    count = max(1, -(-count // devices))
    low = FLOAT if _precision(config) == "float32" else 2
    return Rows(count * sides, length, low, _on_cuda(trainer["device"]), reads_tokens, scored), count


def _precision(config: Mapping[str, Any]) -> str:
    name = _class(config, "precision")
    if name == "Fp16":
        return "float16"
    return str(config["precision"].get("dtype", "float32"))


def _on_cuda(device: str) -> bool:
    return device == "cuda" or (device == "auto" and Path("/dev/nvidia0").exists())


def _notes(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the estimate leaves out, or takes to be more than it is."""
    if config["trainer"]["batch_size"] == "auto" and not config["trainer"]["batch_tokens"]:
        yield "trainer.batch_size is auto, which takes as many rows as fit"
    if _class(config, "adapter") != "NoAdapter" and config["adapter"].get("rank"):
        yield "as if all weights were trained; an adapter takes less"
    elif config["optimizer"].get("freeze"):
        yield "as if all weights were trained; optimizer.freeze takes less"
    if config["method"].get("teacher") is not None:
        yield "without the teacher"
    if _class(config, "precision") == "Auto":
        yield "in fp32; precision=auto may choose half precision"


def _class(config: Mapping[str, Any], group: str) -> str:
    return str(config[group][TARGET]).rpartition(".")[2]


def bert_memory(config: Mapping[str, Any], rows: Rows) -> Parts | str:
    """Return the bytes of `nlu.models.encoders.bert.Bert` with a head on one vector of a text or on its words.

    Axes: T tokens, S sequences, L their length, D width, I inner width, H heads, V words.
    """
    model = config["model"]
    pretrained = model.get("pretrained")
    stored = bert_config(config_here(str(pretrained))) if pretrained is not None else {}
    if pretrained is not None and not stored and None in (model.get("hidden_size"), model.get("layers")):
        return "the sizes of model.pretrained are not known before it is fetched"
    notes: list[str] = []
    sizes: dict[str, Any] = {name: _size(model, stored, name) for name in CONFIG_KEYS}
    if (kept := model.get("keep_layers")) is not None:
        sizes["layers"] = number_kept(kept)
    words = stored.get("vocab_size") or _words_of(config)
    if words is None:
        notes.append("without word vectors, whose number the training rows decide")
    elif model.get("trim_vocab"):
        notes.append("with the whole vocabulary, of which model.trim_vocab keeps less")
    parameters, linear = _bert_parameters(sizes, words or 0)
    layer, working = _bert_layer(sizes, rows)
    width, layers, dropout = sizes["hidden_size"], sizes["layers"], sizes["dropout"] > 0
    narrow = sizes["embedding_size"] or width
    last = layer
    if not rows.reads_tokens and model.get("pooling", "first") in ("first", "pooler"):
        # Keys and values of all tokens, and one row of weights for each sequence.
        scores = rows.sequences * sizes["heads"] * rows.length
        last = 3 * rows.low * width * rows.tokens + _weights_bytes(sizes, rows) * scores
    # Sum and mask of the embeddings, and the tokens, positions and segments themselves.
    embedded = rows.tokens * (FLOAT * narrow * (2 if dropout else 1) + 8 * 4)
    embedded += rows.tokens * rows.low * narrow * (narrow != width)
    if model.get("gradient_checkpointing"):
        held = FLOAT * width * rows.tokens * layers + max(layer, last)
    else:
        held = layer * (layers - 1) + last
    # Scores of all words, their logarithms, and the gradient.
    working += 3 * FLOAT * math.ceil(rows.tokens * rows.scored) * (words or 0)
    return Parts(parameters, linear, embedded + held, working, tuple(notes))


def _size(model: Mapping[str, Any], stored: Mapping[str, Any], name: str) -> Any:
    """Return a size as `resolve_sizes` does, without its checks."""
    base: Mapping[str, Any] = BERT_BASE
    if model.get(name) is not None:
        return model[name]
    found = stored.get(CONFIG_KEYS[name])
    return base[name] if found is None else found


def _words_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of lines of a vocabulary that is here."""
    vocab = config["tokenizer"].get("vocab")
    with suppress(OSError):
        if vocab is not None and str(vocab).endswith(".txt"):
            return Path(str(vocab)).expanduser().read_bytes().count(b"\n")
    return None


def _bert_parameters(sizes: Mapping[str, Any], words: int) -> tuple[int, int]:
    """Return the number of weights, and of those of linear layers."""
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    narrow = sizes["embedding_size"] or width
    of_layer = 3 * width * (width + 1) + width * (width + 1) + inner * (width + 1) + width * (inner + 1)
    linear = of_layer * (sizes["layer_groups"] or sizes["layers"]) + (width * (narrow + 1) if narrow != width else 0)
    norms = 4 * width * (sizes["layer_groups"] or sizes["layers"]) + 2 * narrow
    tables = (words + sizes["max_positions"] + sizes["segment_types"]) * narrow
    return linear + norms + tables, linear


def _weights_bytes(sizes: Mapping[str, Any], rows: Rows) -> int:
    """Return the bytes that each attention weight keeps."""
    if rows.on_cuda:
        # One kernel keeps only sums of rows.
        return 0
    if sizes["attention_dropout"] > 0:
        return 2 * FLOAT + rows.low
    return FLOAT + (rows.low if rows.low < FLOAT else 0)


def _bert_layer(sizes: Mapping[str, Any], rows: Rows) -> tuple[int, int]:
    """Return the bytes that a layer keeps, and those that its backward pass takes at once besides."""
    width, inner, low = sizes["hidden_size"], sizes["intermediate_size"], rows.low
    mask = (1 if rows.on_cuda else FLOAT) if sizes["dropout"] > 0 else 0
    # Inputs of four products and what attention reads (3 D); the sums before two norms, their masks; around gelu, 2 I.
    of_token = low * (6 + rows.on_cuda) * width + 2 * (FLOAT + mask) * width + 2 * low * inner + 4 * FLOAT
    # Sequences of similar length are padded to a multiple of 8 for products.
    length = rows.length if rows.on_cuda else -(-rows.length // 8) * 8
    scores = 0 if rows.on_cuda else rows.sequences * sizes["heads"] * length * length
    kept = of_token * rows.tokens + _weights_bytes(sizes, rows) * scores
    feed_forward = (2 * low * inner + 3 * FLOAT * width) * rows.tokens
    attention = (2 * FLOAT + low) * scores + 5 * FLOAT * width * rows.tokens
    # What is kept for the feed-forward part is free again when attention begins.
    freed = (2 * low * inner + (2 * FLOAT + mask) * width) * rows.tokens
    return kept, max(feed_forward, attention - freed, FLOAT * width * rows.tokens)
