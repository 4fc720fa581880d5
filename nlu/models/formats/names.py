"""Conversion between the parameter names of TensorFlow encoders (BERT, ELECTRA) and those of Hugging Face.

The rest of the package uses only the names of Hugging Face; TensorFlow checkpoints are renamed when they are read.
"""

import re

import numpy as np

from nlu.config.errors import CheckpointError

OPTIMIZER_STATE = re.compile(r"(^|/)(global_step|[^/]*_power|adam_[mv]|lamb_[mv]|Adam(_\d+)?|LAMB(_\d+)?|Momentum)$")
ENCODER_PREFIX = re.compile(r"^(bert|electra)/")
PROJECTION = re.compile(r"(?:^|(?<=/))(?:encoder/)?(?:embedding_hidden_mapping_in|embeddings_project)(?=/)")
LEAVES = {"gamma": "weight", "beta": "bias", "kernel": "weight"}


def encoder_names(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors under Hugging Face's names, for example `encoder.layer.0.attention.self.query.weight`.

    Kernels (in, out) become weights (out, in); the projection of narrow embeddings is `embeddings_project`;
    float64 becomes float32; an optimizer's state is dropped. Heads keep their names, with dots. Raises
    CheckpointError if two tensors would get the same name.
    """
    renamed: dict[str, np.ndarray] = {}
    sources: dict[str, str] = {}
    for source, values in tensors.items():
        # Twice the size of the weights, and of no use in another optimizer.
        if OPTIMIZER_STATE.search(source):
            continue
        name = _rename(source)
        if name in sources:
            raise CheckpointError(
                f"the tensors {sources[name]} and {source} would both be named {name}; save one encoder per checkpoint"
            )
        sources[name] = source
        renamed[name] = _convert(source, values)
    return renamed


def tensorflow_names(tensors: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return an encoder's tensors under TensorFlow's names, such as `bert/encoder/layer_0/attention/self/query/kernel`.

    This is the inverse of `encoder_names`; weights of layers become kernels. `prefix` is bert or electra.
    """
    found = {}
    for source, values in tensors.items():
        path = re.sub(r"(^|\.)layer\.(\d+)(?=\.)", r"\1layer_\2", source).replace(".", "/")
        parent, _, leaf = path.rpartition("/")
        if parent.endswith("_embeddings"):
            path = parent
        elif parent.endswith("LayerNorm"):
            path = f"{parent}/{'gamma' if leaf == 'weight' else 'beta'}"
        elif leaf == "weight":
            path, values = f"{parent}/kernel", np.ascontiguousarray(values.T)
        found[f"{prefix}/{path}"] = values
    return found


def _rename(source: str) -> str:
    path = PROJECTION.sub("embeddings_project", ENCODER_PREFIX.sub("", source))
    parent, _, leaf = path.rpartition("/")
    # TensorFlow names the table itself; in torch it is the weight of a module.
    if leaf.endswith("_embeddings"):
        leaf += ".weight"
    path = f"{parent}/{LEAVES.get(leaf, leaf)}" if parent else leaf
    return re.sub(r"(^|/)layer_(\d+)(?=/)", r"\1layer/\2", path).replace("/", ".")


def _convert(source: str, values: np.ndarray) -> np.ndarray:
    if source.endswith("/kernel") and values.ndim == 2:
        values = np.ascontiguousarray(values.T)
    return values.astype(np.float32) if values.dtype == np.float64 else values
