"""The encoder of a siamese run as a folder that sentence-transformers loads. Axes: N texts, D width."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from nlu.config.errors import UserError
from nlu.inference.exports.deciding import Compute
from nlu.inference.exports.huggingface import tokenizer_of
from nlu.inference.exports.padded import (
    NAMES,
    load_exactly,
    require_native,
    require_pooling,
    transformers_config,
    transformers_weights,
    write_config,
)
from nlu.inference.trained import Trained
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import open_pretrained
from nlu.models.formats.sentence_folder import after_encoder, dense_layers, dense_tensors, finished
from nlu.storage.tensors import save_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = "sentence_transformers"
POOLING = Path("1_Pooling")


def write(trained: Trained, folder: Path) -> None:
    """Write the encoder, its pooling and the tokenizer. Raises UserError if the run encodes pairs together."""
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


def read(folder: Path) -> Compute:
    """Return a function that computes the vectors of texts, (N, D), as sentence-transformers does from these files."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    # Some architectures, such as DistilBERT, lack segments.
    taken = inspect.signature(model.forward).parameters
    source = open_pretrained(str(folder), "out")
    after = after_encoder(source, None, None)
    dense = dense_layers(after)
    if dense is not None:
        dense.load_state_dict(dense_tensors(source, after))

    @torch.inference_mode()
    def compute(inputs: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.from_numpy(inputs[name]) for name in NAMES}
        hidden_NTD = model(**{name: value for name, value in tensors.items() if name in taken}).last_hidden_state
        mask_NT1 = tensors["attention_mask"].unsqueeze(-1).float()
        if after.pooling == "mean":
            pooled_ND = (hidden_NTD * mask_NT1).sum(1) / mask_NT1.sum(1)
        elif after.pooling == "max":
            pooled_ND = hidden_NTD.masked_fill(mask_NT1 == 0, float("-inf")).amax(1)
        else:
            last_N = mask_NT1.sum(1)[:, 0].long() - 1
            pooled_ND = hidden_NTD[torch.arange(len(last_N)), last_N if after.pooling == "last" else 0]
        if dense is not None:
            pooled_ND = dense(pooled_ND)
        return finished(pooled_ND, after, "sides").numpy()

    return compute
