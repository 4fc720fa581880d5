"""A run of task=mlm as a model of transformers that predicts masked words, checked before it is published.

A native encoder is written as BertForMaskedLM, with the head under `cls.predictions`, or as ElectraForMaskedLM where
word vectors are narrower than the layers; one of transformers keeps its architecture.

Axes: N texts, T tokens of the longest, V words.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.data.collate import Batch, collate
from nlu.data.examples import in_memory
from nlu.data.layouts import Layout
from nlu.inference.exports.deciding import Row
from nlu.inference.exports.huggingface import FORMAT, SIZES, of_architecture, tokenizer_of
from nlu.inference.exports.padded import (
    load_exactly,
    padded_inputs,
    require_native,
    transformers_config,
    transformers_weights,
)
from nlu.inference.trained import Trained
from nlu.models.encoder import Encoded
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.heads.words import WordsHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHECKED_TEXTS = 32


def write_masked(trained: Trained, folder: Path, rows: Sequence[Row]) -> float:
    """Write model and tokenizer; returns the largest difference of a score of a word in some of the rows.

    Raises UserError for an encoder that transformers cannot compute.
    """
    model = masked_model_of(trained)
    model.save_pretrained(folder)
    tokenizer_of(trained).save_pretrained(folder)
    read = type(model).from_pretrained(folder).eval()
    return _difference_of_words(trained, read, rows[:CHECKED_TEXTS])


def masked_model_of(trained: Trained) -> "PreTrainedModel":
    """Return the run as a model of transformers. Raises UserError for an encoder that it cannot compute."""
    from transformers import BertConfig, BertForMaskedLM, ElectraForMaskedLM

    head, theirs = trained.model.head, trained.model.backbone
    assert isinstance(head, WordsHead), "a run of task=mlm"
    if isinstance(theirs, HuggingFace):
        if head.theirs is None:
            raise UserError(
                f"format is {FORMAT}, but transformers has no model of {theirs.inner.config.model_type} that predicts "
                "masked words; fine-tune the run here, by model.pretrained=RUN"
            )
        return of_architecture(theirs, head.theirs, "MaskedLM")
    backbone = require_native(trained, FORMAT)
    config = transformers_config(trained)
    encoder = transformers_weights(backbone)
    own = {name: value.detach().float().cpu() for name, value in head.predictions.named_parameters()}
    bias_V = own.pop("decoder.bias")[: config.vocab_size]
    table_VD = encoder["embeddings.word_embeddings.weight"]
    if backbone.embeddings_project is None:
        # The sizes of ELECTRA have the same names, except for the separate width of embeddings.
        model: PreTrainedModel = BertForMaskedLM(BertConfig(**{key: getattr(config, key) for key in SIZES}))
        weights = {f"bert.{name}": value for name, value in encoder.items()}
        weights |= {f"cls.predictions.{name}": value for name, value in own.items()}
        weights |= {"cls.predictions.bias": bias_V, "cls.predictions.decoder.bias": bias_V}
        weights["cls.predictions.decoder.weight"] = table_VD
    else:
        if backbone.sizes["activation"] != "gelu":
            raise UserError(
                f"format is {FORMAT}, but the head of ELECTRA computes gelu, and that of this run "
                f"{backbone.sizes['activation']}; fine-tune the run here, by model.pretrained=RUN"
            )
        model = ElectraForMaskedLM(config)
        weights = {f"electra.{name}": value for name, value in encoder.items()}
        weights |= {f"generator_predictions.{name.removeprefix('transform.')}": value for name, value in own.items()}
        weights |= {"generator_lm_head.weight": table_VD, "generator_lm_head.bias": bias_V}
    load_exactly(model, weights)
    return model.eval()


def _difference_of_words(trained: Trained, read: "PreTrainedModel", rows: Sequence[Row]) -> float:
    """Return the largest difference of the scores that the run and the export give to words, for every token."""

    def scores(hidden_TD: Tensor, batch: Batch) -> Tensor:
        return trained.model.head(Encoded(units_UD=hidden_TD.float()), batch)

    return difference_of_tokens(trained, trained.layout, rows, read.forward, "logits", scores)


@torch.inference_mode()
def difference_of_tokens(
    trained: Trained,
    layout: Layout,
    rows: Sequence[Row],
    forward: Callable[..., Any],
    name: str,
    of_run: Callable[[Tensor, Batch], Tensor],
) -> float:
    """Return the largest difference of a result of the run for tokens and the one of this name in what `forward` of
    transformers returns.

    `of_run` makes the result of the vectors of all tokens; columns that only the run has are left out.
    """
    encoded = layout.encode(trained.tokenizer, rows, trained.config.data["max_len"])
    inputs = padded_inputs(encoded, trained.tokenizer)
    taken = inspect.signature(forward).parameters
    theirs = forward(**{name: torch.from_numpy(values) for name, values in inputs.items() if name in taken})[name]
    batch = collate(in_memory(encoded, layout), np.arange(len(rows)))
    backbone, largest = trained.model.backbone, 0.0
    hidden_TD = backbone.encode(backbone.embed(batch), batch, tokens=True).tokens_TD
    assert hidden_TD is not None
    own = of_run(hidden_TD, batch)
    for sequence, example in enumerate(batch.examples_B.tolist()):
        start, length = int(batch.starts_S[sequence]), batch.lengths[sequence]
        difference = own[start : start + length, : theirs.shape[2]] - theirs[example, :length]
        largest = max(largest, float(difference.abs().max()))
    return largest
