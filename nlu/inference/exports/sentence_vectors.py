"""Runs that give vectors of texts, as folders that other programs load.

The encoder of a siamese run is written for sentence-transformers. The vectors of model=static are written for model2vec
and, as its StaticEmbedding, for sentence-transformers.

Axes: N texts, V words, D width.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from torch import nn

from nlu.config.errors import UserError
from nlu.inference.exports.export_decisions import Row
from nlu.inference.exports.huggingface_export import tokenizer_of
from nlu.inference.exports.modern import in_transformers
from nlu.inference.exports.padded import (
    load_exactly,
    require_native,
    require_pooling,
    transformers_config,
    transformers_weights,
)
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.static import Static
from nlu.training import keys as schemas
from nlu.training.precision import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


FORMAT = "sentence_transformers"

STATIC = "model2vec"


def write(trained: Trained, folder: Path, rows: Sequence[Row]) -> float:
    """Write the encoder, its pooling and the tokenizer; returns the largest difference of the vectors of texts.

    Raises UserError if the run encodes pairs together.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    trained = trained.without_adapter()
    theirs = in_transformers(trained).model.backbone
    backbone = theirs if isinstance(theirs, HuggingFace) else require_native(trained, FORMAT)
    if trained.layout.name != "sides":
        raise UserError(
            f"format is {FORMAT}, but this run does not encode each text of a pair separately; export it as "
            "huggingface, or train task=siamese"
        )
    require_pooling(backbone, FORMAT, ("mean", "max", "first", "last"))
    pooling = backbone.pooling
    if isinstance(backbone, HuggingFace) and backbone.reads_last and pooling == "first":
        pooling = "last"
    mode = {"first": "cls", "last": "lasttoken"}.get(pooling, pooling)
    with TemporaryDirectory(prefix="nlu-export-") as encoder:
        _encoder_of(trained, backbone).save_pretrained(encoder)
        tokenizer_of(trained).save_pretrained(encoder)
        modules: list[nn.Module] = [Transformer(encoder, max_seq_length=trained.config.data["max_len"])]
        modules.append(Pooling(backbone.width, pooling_mode=mode))
        # Only model=hf has such layers.
        for layer, made in zip(backbone.after.dense, getattr(backbone, "dense", None) or (), strict=True):
            dense = Dense(*(layer[name] for name in ("in_features", "out_features", "bias")), made.get_submodule("1"))
            dense.linear.load_state_dict(made.get_submodule("0").state_dict())
            modules.append(dense)
        if backbone.after.normalizes or getattr(trained.task, "over_cosines", False):
            modules.append(Normalize())
        prompts = trained.lengths.prompts
        own = {name: prompts.get(role, "") for name, role in (("query", "text_a"), ("document", "text_b"))}
        model = SentenceTransformer(
            modules=modules, device="cpu", similarity_fn_name="cosine", prompts=own if prompts else None
        )
        model.save_pretrained(str(folder), create_model_card=False)
    return difference_of_vectors(trained, rows, SentenceTransformer(str(folder), device="cpu").encode)


def _encoder_of(trained: Trained, backbone: Bert | HuggingFace) -> "PreTrainedModel":
    if isinstance(backbone, HuggingFace):
        return backbone.inner
    from transformers import ElectraModel

    model = ElectraModel(transformers_config(trained))
    load_exactly(model, transformers_weights(backbone))
    return model


def difference_of_vectors(trained: Trained, rows: Sequence[Row], encode: Callable[[list[str]], np.ndarray]) -> float:
    """Return the largest difference of the vectors of the run and those of another program, for all texts of rows.

    Texts that the run cuts are left out, since others cut them elsewhere or not at all.
    """
    texts = [row[name] for row in rows for name in ("text", "text_a", "text_b") if name in row]
    vectors = Predictor(trained, torch.device("cpu")).text_vectors
    # As other programs compute.
    vectors.precision = Precision(schemas.Precision())
    encoded = vectors.tokens([{"text": text} for text in texts], "")
    apart_ND = np.abs(vectors.of(encoded, normalize=vectors.normalizes) - encode(texts))
    return float(apart_ND[~encoded.cut_N].max(initial=0.0))


def write_static(trained: Trained, folder: Path, rows: Sequence[Row]) -> float:
    """Write weights, tokenizer and configuration; returns the largest difference of the vectors of the rows' texts.

    A vector is what `nlu.load(RUN).encode` gives for a text that is not cut. Raises UserError for another encoder.
    """
    from model2vec import StaticModel

    backbone, tokenizer = trained.model.backbone, trained.tokenizer
    if not isinstance(backbone, Static) or trained.layout.name not in ("single", "sides"):
        raise UserError(
            f"format is {STATIC}, which holds the vectors of single texts of model=static; export this run as onnx or "
            "torchscript, or distil it: docs/distillation.md"
        )
    left_out = [*tokenizer.special_ids, tokenizer.unknown_id]
    if backbone.weights_V[left_out].any():
        raise UserError(
            f"format is {STATIC}, which leaves out special tokens, but the run was trained with them, by an earlier "
            "version; train it again"
        )
    vectors_VD = (backbone.weights_V[:, None] * backbone.word_embeddings.weight).detach().float().cpu().numpy()
    backend = Backend.from_str(tokenizer.backend.to_str())
    StaticModel(vectors_VD, backend, max_length=None).save_pretrained(folder)
    return difference_of_vectors(trained, rows, StaticModel.from_pretrained(folder).encode)
