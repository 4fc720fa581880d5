"""The encoder of a siamese run as a folder that sentence-transformers loads. Axes: N texts, D width."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from nlu.config.errors import UserError
from nlu.data.layouts import LAYOUTS
from nlu.inference.exports.deciding import Row
from nlu.inference.exports.huggingface import tokenizer_of
from nlu.inference.exports.padded import (
    load_exactly,
    require_native,
    require_pooling,
    transformers_config,
    transformers_weights,
    write_config,
)
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.storage.tensors import save_tensors
from nlu.training import keys as schemas
from nlu.training.precision import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = "sentence_transformers"
POOLING = Path("1_Pooling")


def write(trained: Trained, folder: Path, rows: Sequence[Row]) -> float:
    """Write the encoder, its pooling and the tokenizer; returns the largest difference of the vectors of texts.

    Raises UserError if the run encodes pairs together.
    """
    from sentence_transformers import SentenceTransformer

    trained = trained.without_adapter()
    theirs = trained.model.backbone
    backbone = theirs if isinstance(theirs, HuggingFace) else require_native(trained, FORMAT)
    if trained.layout.name != "sides":
        raise UserError(
            f"format is {FORMAT}, but this run does not encode each text of a pair separately; export it as "
            "huggingface, or train task=siamese"
        )
    require_pooling(backbone, FORMAT, ("mean", "max", "first", "last"))
    reads_last = isinstance(backbone, HuggingFace) and backbone.reads_last and backbone.pooling in ("first", "last")
    _encoder_of(trained, backbone).save_pretrained(folder)
    tokenizer_of(trained).save_pretrained(folder)
    modules = [("", "Transformer"), (str(POOLING), "Pooling")]
    # Only model=hf has such layers.
    for layer, made in zip(backbone.after.dense, getattr(backbone, "dense", None) or (), strict=True):
        modules.append((f"{len(modules)}_Dense", "Dense"))
        _write_dense(folder / modules[-1][0], layer, made)
    if backbone.after.normalizes:
        (folder / f"{len(modules)}_Normalize").mkdir()
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    write_config(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules)
        ],
    )
    write_config(
        folder / "sentence_bert_config.json", {"max_seq_length": trained.config.data["max_len"], "do_lower_case": False}
    )
    write_config(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    (folder / POOLING).mkdir()
    write_config(
        folder / POOLING / "config.json",
        {
            "word_embedding_dimension": backbone.width,
            "pooling_mode_cls_token": backbone.pooling == "first" and not reads_last,
            "pooling_mode_lasttoken": reads_last,
            "pooling_mode_mean_tokens": backbone.pooling == "mean",
            "pooling_mode_max_tokens": backbone.pooling == "max",
            "pooling_mode_mean_sqrt_len_tokens": False,
            "include_prompt": True,
        },
    )
    return difference_of_vectors(trained, rows, SentenceTransformer(str(folder), device="cpu").encode)


def _write_dense(folder: Path, layer: dict[str, Any], made: nn.Module) -> None:
    """Write a linear layer and the function after it."""
    folder.mkdir()
    function = type(made.get_submodule("1"))
    sizes = {name: layer[name] for name in ("in_features", "out_features", "bias")}
    write_config(folder / "config.json", {**sizes, "activation_function": f"{function.__module__}.{function.__name__}"})
    tensors = {f"linear.{name}": value for name, value in made.get_submodule("0").state_dict().items()}
    save_tensors(folder / "model.safetensors", tensors)


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
    layout, predictor = LAYOUTS["single"], Predictor(trained, torch.device("cpu"))
    # As other programs compute.
    predictor.precision = Precision(schemas.Precision())
    encoded = layout.encode(trained.tokenizer, [{"text": text} for text in texts], trained.config.data["max_len"])
    apart_ND = np.abs(predictor.vectors(encoded, layout) - encode(texts))
    return float(apart_ND[~encoded.cut_N].max(initial=0.0))
