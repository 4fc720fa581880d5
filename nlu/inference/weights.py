"""Pretrained weights that encode texts, without a run."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nlu.config.choices import choice_of, node_of, targets_of
from nlu.config.errors import CheckpointError, UserError
from nlu.config.targets import TARGET, build
from nlu.config.types import ConfigLike
from nlu.data.tokenizing import load_tokenizer
from nlu.data.windows import Lengths, Long
from nlu.inference.in_batches import InBatches
from nlu.inference.int8.precision import Int8
from nlu.inference.self_check import warn_of_batches
from nlu.inference.text_vectors import NAMES, Prompts, TextVectors
from nlu.models import keys
from nlu.models.encoders.bert import MODEL_TYPE, require_bert
from nlu.models.formats.bert_family import FAMILY
from nlu.models.formats.pretrained import Pretrained, load_into, open_pretrained
from nlu.models.formats.sentence_folder import after_encoder, is_sentence_folder, longest_of, prompts_of
from nlu.models.formats.smaller_weights import with_layers
from nlu.models.heads.pairs import SidesHead
from nlu.models.task_model import TaskModel

log = logging.getLogger(__name__)

LONGEST = 512
"""tokens of a text if neither weights nor the encoder say how many"""


@dataclass(frozen=True)
class _Cosine:
    """The target of a head that only compares vectors."""

    names: tuple[str, ...] = ()
    kind: str = "none"
    num_outputs: int = 1


def vectors_by(
    model: ConfigLike, device: torch.device, *, batch_size: int, precision: str | ConfigLike | None = None,
    long: Long | None = None,
) -> TextVectors:  # fmt: skip
    """Return what encodes texts by the weights that a choice of the group `model` names.

    Pooling, dense layers, normalization, prompts and the longest text are those that the weights say, as a folder of
    sentence-transformers does. Where they do not say, a vector is the mean of the tokens, and has length 1. Raises
    UserError for a model without pretrained weights, CheckpointError for weights that cannot be used.
    """
    if not (reference := model.get("pretrained")):
        name = choice_of("model", model[TARGET])
        raise UserError(
            f"model is {name}, which has no pretrained weights; name some with model.pretrained, or set run=RUN"
        )
    source = open_pretrained(reference)
    if (kept := model.get("keep_layers")) is not None:
        source = with_layers(source, kept)
    node = dict(model)
    says_pooling = source.is_run or is_sentence_folder(source) or "classifier_pooling" in source.config
    if node.get("pooling") is None and not says_pooling:
        node["pooling"] = "mean"
        log.info("%s does not say how a text is read: the mean of its tokens; model.pooling sets it", reference)
    tokenizer = load_tokenizer(source.folder, None)
    if tokenizer is None:
        raise CheckpointError(f"{source.key} is {reference!r}, which has no tokenizer.json or vocab.txt; put it there")
    encoder = build(node, tokenizer.vocab_size, source)
    encoder.has_segments = tokenizer.has_segments
    head: Any = SidesHead(encoder.width_of("single"), _Cosine(), None, keys.SidesHead(features="cosine"))
    whole = TaskModel(encoder, head, "single")
    load_into(whole, source, rows_V=np.arange(tokenizer.vocab_size))
    form = build(node_of("precision", precision or "fp32") if not isinstance(precision, Mapping) else precision)
    if isinstance(form, Int8):
        form.require(device)
        form.quantize(whole)
    whole.eval().requires_grad_(False).to(device)
    warn_of_batches(whole, form, device)
    texts, default = prompts_of(source)
    prompts = Prompts({NAMES.get(name, name): text for name, text in texts.items()}, texts.get(default or "", ""))
    limit, known = encoder.max_positions, longest_of(source)
    max_len = min(known or limit or LONGEST, limit or known or LONGEST)
    # A folder of sentence-transformers says whether its vectors have length 1.
    by_folder = is_sentence_folder(source) and model.get("pooling") is None
    normalizes = after_encoder(source, None, None).normalizes if by_folder else True
    own = Lengths(max_len, long or "cut")
    # A TF1 checkpoint is the prefix of several files.
    beside = [*source.weights.parent.glob(f"{source.weights.name}*"), source.folder / "tokenizer.json"]
    return TextVectors(
        whole, tokenizer, own, form, InBatches(device, batch_size), prompts, normalizes=normalizes,
        files=sorted(path for path in beside if path.is_file()),
    )  # fmt: skip


def model_for(reference: str) -> dict[str, Any]:
    """Return the choice of the group `model` that computes weights: a native encoder or, of other kinds, model=hf."""
    source = open_pretrained(reference, "run")
    return {**node_of("model", _choice_of(source)), "pretrained": reference}


def _choice_of(source: Pretrained) -> str:
    kind, after = source.config.get("model_type", "bert"), after_encoder(source, None, None)
    if after.dense or after.strange:
        return "hf"
    if kind not in (*FAMILY, MODEL_TYPE):
        return kind if kind in targets_of("model") else "hf"
    try:
        require_bert(source)
    except CheckpointError:
        return "hf"
    return "bert"
