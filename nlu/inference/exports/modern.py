"""A run of the native ModernBERT as the run of model=hf that computes the same, which exports know."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from nlu.data.tokenizing import ROLES, Tokenizer
from nlu.inference.exports.padded import load_exactly
from nlu.inference.trained import Trained
from nlu.models import keys as schemas
from nlu.models.encoders import probing
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.modern import ModernBert
from nlu.models.formats.modernbert import KIND
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.sentence_folder import KEY
from nlu.models.heads.modern import ModernHead
from nlu.models.heads.transformers import TransformersHead
from nlu.models.heads.words import WordsHead
from nlu.models.task_model import TaskModel

PARTS = {"transform.dense": "head.dense", "transform.LayerNorm": "head.norm", "decoder": "decoder"}
WORDS = {
    f"predictions.{ours}.{leaf}": f"{theirs}.{leaf}" for ours, theirs in PARTS.items() for leaf in ("weight", "bias")
}
"""names of the head of masked words in transformers"""


def in_transformers(trained: Trained) -> Trained:
    """Return the run with its encoder and its head as those of transformers; itself if it has another encoder."""
    model, head = trained.model, trained.model.get_submodule("head")
    if not isinstance(model.backbone, ModernBert):
        return trained
    backbone = encoder_in_transformers(model.backbone, trained.tokenizer)
    width, own = backbone.width, {name: value.detach().float().cpu() for name, value in head.state_dict().items()}
    found: Any = head
    if isinstance(head, ModernHead):
        found = TransformersHead(width, trained.target, backbone)
        load_exactly(found.theirs, own)
    elif isinstance(head, WordsHead):
        found = WordsHead(width, trained.target, backbone)
        load_exactly(found.theirs, {WORDS.get(name, name): value for name, value in own.items()})
    return replace(trained, model=TaskModel(backbone, found, model.layout).eval())


def encoder_in_transformers(backbone: ModernBert, tokenizer: Tokenizer) -> HuggingFace:
    """Return the encoder as one of transformers, in fp32 on the host."""
    ids = {role: tokenizer.vocabulary.get(tokenizer.special(role) or "") for role in ROLES}
    ids |= {"pad": tokenizer.pad_id, "bos": ids.get("cls"), "eos": ids.get("sep")}
    inner = {
        **backbone.settings(),
        "model_type": KIND,
        "vocab_size": backbone.words.num_embeddings,
        "embedding_dropout": backbone.sizes["dropout"],
        **{f"{role}_token_id": ids.get(role) for role in ("pad", "cls", "sep", "bos", "eos")},
    }
    after = inner.pop(KEY)
    config = {"model_type": probing.MODEL_TYPE, "inner": inner, KEY: after}
    source, keys = Pretrained("the run", Path("run"), config), schemas.HuggingFace(pretrained="run")
    found = HuggingFace(backbone.words.num_embeddings, source, keys)
    weights = {name: value.detach().float().cpu() for name, value in backbone.state_dict().items()}
    modules = {name for name in weights if name.startswith("pooling_module.")}
    load_exactly(found.inner, {name: value for name, value in weights.items() if name not in modules})
    if found.pooling_module is not None:
        found.pooling_module.load_state_dict({name.partition(".")[2]: weights[name] for name in modules})
    found.has_segments = False
    return found.eval()
