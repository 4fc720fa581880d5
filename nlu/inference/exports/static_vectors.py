"""The vectors of model=static as a folder that model2vec loads, and sentence-transformers as its StaticEmbedding.

Axes: V words, D width.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as Backend

from nlu.config.errors import UserError
from nlu.inference.exports.deciding import Row
from nlu.inference.exports.sentences import difference_of_vectors
from nlu.inference.trained import Trained
from nlu.models.encoders.static import Static

STATIC = "model2vec"


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
