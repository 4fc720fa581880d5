"""A SavedModel of TensorFlow (extra `tf`): the native encoders, with a signature over padded batches.

Axes: N texts, T tokens of the longest, H heads, K width of a head, C outputs, D width.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from nlu.inference.exports.huggingface_export import tokenizer_of
from nlu.inference.exports.padded import (
    NAMES,
    Inputs,
    copied_pooler,
    own_linear,
    require_native,
    require_pooling,
    transformers_weights,
)
from nlu.inference.trained import Trained
from nlu.models.encoders.bert_layers import Sizes

if TYPE_CHECKING:
    from tensorflow import Tensor, Variable

FORMAT = "savedmodel"
SIGNATURE = "serving_default"


def write(trained: Trained, folder: Path) -> None:
    """Write model and tokenizer. Raises UserError for an encoder or a head that is not supported."""
    backbone, linear = require_native(trained, FORMAT), own_linear(trained, FORMAT)
    if trained.target.kind != "tags":
        require_pooling(backbone, FORMAT, ("first", "mean", "max", "pooler"))
    tensors = transformers_weights(backbone)
    tensors |= {f"classifier.{name}": value.detach() for name, value in linear.named_parameters()}
    if (pooler := copied_pooler(backbone)) is not None:
        tensors |= {f"pooler.{name}": value.detach() for name, value in pooler.named_parameters()}
    pooling = "none" if trained.target.kind == "tags" else backbone.pooling
    tf = _tensorflow()
    module = tf.Module()
    module.weights = {name: tf.Variable(value.numpy(), trainable=False) for name, value in tensors.items()}
    logits = _Forward(tf, module.weights, backbone.sizes, pooling)
    # Tokenizers return integers of 64 bits.
    specs = [tf.TensorSpec([None, None], tf.int64, name=name) for name in NAMES]
    module.serve = tf.function(lambda *inputs: {"logits": logits(*inputs)}, input_signature=specs)
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: module.serve})
    tokenizer_of(trained).save_pretrained(folder)


def read(folder: Path) -> Callable[[Inputs], np.ndarray]:
    """Return a function that computes the logits of padded inputs."""
    tf = _tensorflow()
    # A signature only has weak references to the variables, so the function must keep the module.
    module = tf.saved_model.load(str(folder))

    def compute(inputs: Inputs) -> np.ndarray:
        found = module.signatures[SIGNATURE](**{name: tf.constant(inputs[name]) for name in NAMES})
        return found["logits"].numpy()

    return compute


class _Forward:
    """The computation of `nlu.models.encoders.bert`, on padded batches."""

    def __init__(self, tf: ModuleType, weights: "dict[str, Variable]", sizes: Sizes, pooling: str):
        self.tf, self.weights, self.sizes, self.pooling = tf, weights, sizes, pooling
        self.activation = {
            "gelu": tf.nn.gelu,
            "relu": tf.nn.relu,
            "gelu_new": lambda x: tf.nn.gelu(x, approximate=True),
            "gelu_pytorch_tanh": lambda x: tf.nn.gelu(x, approximate=True),
        }[sizes["activation"]]

    def __call__(self, ids_NT: "Tensor", mask_NT: "Tensor", types_NT: "Tensor") -> "Tensor":
        tf = self.tf
        x_NTD = tf.gather(self.weights["embeddings.word_embeddings.weight"], ids_NT)
        x_NTD += tf.gather(self.weights["embeddings.token_type_embeddings.weight"], types_NT)
        x_NTD += self.weights["embeddings.position_embeddings.weight"][: tf.shape(ids_NT)[1]]
        x_NTD = self._norm(x_NTD, "embeddings.LayerNorm")
        if "embeddings_project.weight" in self.weights:
            x_NTD = self._linear(x_NTD, "embeddings_project")
        # Added to scores before the softmax: padding gets a probability of exactly 0. The smallest float instead of
        # -inf, since 0 * -inf is NaN.
        hidden_N11T = (1.0 - tf.cast(mask_NT, tf.float32))[:, None, None, :] * tf.float32.min
        for number in range(self.sizes["layers"]):
            x_NTD = self._layer(x_NTD, hidden_N11T, f"encoder.layer.{number}")
        return self._linear(self._pool(x_NTD, mask_NT), "classifier")

    def _layer(self, x_NTD: "Tensor", hidden_N11T: "Tensor", name: str) -> "Tensor":
        tf, heads = self.tf, self.sizes["heads"]
        # tf.shape is known only when the graph runs, so batches of any size fit; the width is fixed.
        shape, width = tf.shape(x_NTD), x_NTD.shape[-1]

        def split(part: str) -> "Tensor":
            projected_NTD = self._linear(x_NTD, f"{name}.attention.self.{part}")
            return tf.transpose(tf.reshape(projected_NTD, [shape[0], shape[1], heads, width // heads]), [0, 2, 1, 3])

        query_NHTK, key_NHTK, value_NHTK = split("query"), split("key"), split("value")
        scores_NHTT = tf.matmul(query_NHTK, key_NHTK, transpose_b=True) / (width // heads) ** 0.5 + hidden_N11T
        mixed_NTHK = tf.transpose(tf.matmul(tf.nn.softmax(scores_NHTT), value_NHTK), [0, 2, 1, 3])
        attended_NTD = self._linear(tf.reshape(mixed_NTHK, shape), f"{name}.attention.output.dense")
        x_NTD = self._norm(x_NTD + attended_NTD, f"{name}.attention.output.LayerNorm")
        inner = self.activation(self._linear(x_NTD, f"{name}.intermediate.dense"))
        return self._norm(x_NTD + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _pool(self, x_NTD: "Tensor", mask_NT: "Tensor") -> "Tensor":
        tf = self.tf
        if self.pooling == "none":
            return x_NTD
        if self.pooling == "mean":
            mask_NT1 = tf.cast(mask_NT, tf.float32)[:, :, None]
            return tf.reduce_sum(x_NTD * mask_NT1, 1) / tf.reduce_sum(mask_NT1, 1)
        if self.pooling == "max":
            # The smallest float instead of -inf, as above.
            return tf.reduce_max(tf.where(mask_NT[:, :, None] > 0, x_NTD, tf.float32.min), 1)
        first_ND = x_NTD[:, 0]
        return tf.tanh(self._linear(first_ND, "pooler")) if self.pooling == "pooler" else first_ND

    def _linear(self, x: "Tensor", name: str) -> "Tensor":
        return self.tf.matmul(x, self.weights[f"{name}.weight"], transpose_b=True) + self.weights[f"{name}.bias"]

    def _norm(self, x: "Tensor", name: str) -> "Tensor":
        mean, variance = self.tf.nn.moments(x, axes=[-1], keepdims=True)
        scaled = (x - mean) * self.tf.math.rsqrt(variance + self.sizes["layer_norm_eps"])
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def _tensorflow() -> ModuleType:
    # TensorFlow reads this when it is imported, and would otherwise print how it was built.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow

    return tensorflow
