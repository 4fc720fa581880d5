"""A TF1 checkpoint in the layout of Google's BERT: bert_model.ckpt.*, bert_config.json, vocab.txt.

Writing it does not need TensorFlow. The head is output_weights, (C, D), and output_bias, as in Google's
run_classifier.py.

Axes: C outputs, D width.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import normalizers
from tokenizers.models import WordPiece

from nlu.config.errors import UserError
from nlu.data.tokenizer_files import read_vocab
from nlu.inference.exports.padded import (
    copied_pooler,
    load_exactly,
    own_linear,
    require_native,
    require_pooling,
    transformers_weights,
    write_config,
)
from nlu.inference.exports.padded_models import Padded, PaddedBert
from nlu.inference.trained import Trained
from nlu.models.encoders.bert_layers import CONFIG_KEYS
from nlu.models.formats.fine_tuned import OF_EXPORT
from nlu.models.formats.tensorflow import read_checkpoint
from nlu.models.formats.tensorflow_writing import encoder_names, tensorflow_names, write_checkpoint

if TYPE_CHECKING:
    from transformers import BertTokenizer

FORMAT = "tf_checkpoint"
NAME = "bert_model.ckpt"
HEAD = ("output_weights", "output_bias")


def write(trained: Trained, folder: Path) -> None:
    """Write weights, sizes and vocabulary. Raises UserError for an encoder or a tokenizer that BERT does not have."""
    backbone, linear = require_native(trained, FORMAT), own_linear(trained, FORMAT)
    own, normalizer = trained.tokenizer, trained.tokenizer.backend.normalizer
    if not isinstance(own.backend.model, WordPiece) or not isinstance(normalizer, normalizers.BertNormalizer):
        raise UserError(
            f"format is {FORMAT}, which needs a WordPiece tokenizer of BERT, but this run has another one; export it "
            "as huggingface, onnx or torchscript"
        )
    if trained.target.kind != "tags":
        require_pooling(backbone, FORMAT, ("first", "mean", "max", "pooler"))
    weights = transformers_weights(backbone)
    if (pooler := copied_pooler(backbone)) is not None:
        weights |= {f"pooler.dense.{name}": value.detach() for name, value in pooler.named_parameters()}
    prefix = "electra" if backbone.embeddings_project is not None else "bert"
    tensors = tensorflow_names({name: value.numpy() for name, value in weights.items()}, prefix)
    values = (linear.weight.detach().numpy(), linear.bias.detach().numpy())
    write_checkpoint(folder / NAME, {**tensors, **dict(zip(HEAD, values, strict=True))})
    known: Mapping[str, object] = backbone.sizes
    sizes = {theirs: known[ours] for ours, theirs in CONFIG_KEYS.items() if known[ours] is not None}
    # Without names and pooling, the head could not be loaded again.
    labels = {"id2label": dict(enumerate(trained.labels))} if trained.labels else {}
    read = {} if trained.target.kind == "tags" else {OF_EXPORT: backbone.pooling}
    write_config(folder / "bert_config.json", {**sizes, "vocab_size": own.vocab_size, **labels, **read})
    numbers = own.backend.get_vocab(with_added_tokens=True)
    # The line of a token is its number.
    lines = sorted(numbers, key=numbers.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_config(folder / "tokenizer_config.json", {"do_lower_case": normalizer.lowercase})


def read(folder: Path, trained: Trained) -> Padded:
    """Return the model of the run with the weights of the checkpoint."""
    tensors = read_checkpoint(folder / NAME)
    head = {name: torch.from_numpy(tensors.pop(name)) for name in HEAD}
    named = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in encoder_names(tensors).items()}
    model = Padded(trained, FORMAT)
    pooler = {name.removeprefix("pooler.dense."): named.pop(name) for name in list(named) if name.startswith("pooler.")}
    encoder, linear = model.encoder, model.head
    assert isinstance(encoder, PaddedBert), "only BERT and ELECTRA are written"
    # A tensor that the checkpoint lacks would keep the value that it was copied with, and the comparison find nothing.
    for module in (encoder.inner, encoder.pooler, linear):
        for parameter in module.parameters() if module is not None else ():
            parameter.data.fill_(torch.nan)
    load_exactly(encoder.inner, named)
    if encoder.pooler is not None:
        load_exactly(encoder.pooler, pooler)
    load_exactly(linear, {"weight": head["output_weights"], "bias": head["output_bias"]})
    return model


def tokenizer_in(folder: Path) -> "BertTokenizer":
    """Return the tokenizer of transformers for the vocabulary."""
    from transformers import BertTokenizer

    lowercase = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["do_lower_case"]
    numbers = {token: number for number, token in enumerate(read_vocab(folder / "vocab.txt"))}
    # Google's own tokenizer does not interpret special tokens in a text either.
    return BertTokenizer(vocab=numbers, do_lower_case=lowercase, split_special_tokens=True)
