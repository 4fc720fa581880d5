"""Parts of a model that compute NaN in a batch with a certain piece, for tests of how such a step is diagnosed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nlu.data.collate import Batch
from nlu.losses.cross_entropy import CrossEntropy
from nlu.models.encoders.bert import Bert
from nlu.models.heads.linear import LinearHead

HERE = "tests.training.poisoned"
LAYER = "encoder.layer.0"
is_active = True
"""False: everything is finite"""
has_piece = False
"""whether the batch of the last pass has the piece"""


class _Poison(torch.autograd.Function):
    """The identity, with an infinite gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.full_like(gradients[0], torch.inf)


def bad(phase: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function whose result is NaN, or its gradient is NaN or infinite, in a batch with the piece."""

    def call(*args: Any, **named: Any) -> Tensor:
        found = function(*args, **named)
        if not (is_active and has_piece):
            return found
        if phase == "forward":
            return found * torch.nan
        if phase == "backward":
            # The slope of the root at 0 is infinite.
            return found + torch.sqrt(0 * found)
        return _Poison.apply(found)  # type: ignore[no-untyped-call,no-any-return]

    return call


class BadBert(Bert):
    """BERT with a place that computes NaN: the name of a module, or `activation`, or "" for none."""

    def __init__(self, vocab_size: int, source: Any, *, place: str, phase: str, piece: int, **options: Any):
        super().__init__(vocab_size, source, **options)
        self._piece = piece
        layer: Any = self.get_submodule(LAYER)
        if place == "activation":
            layer.activation = bad(phase, layer.activation)
        elif place:
            module = self.get_submodule(place)
            module.forward = bad(phase, module.forward)  # type: ignore[method-assign]

    def embed(self, batch: Batch) -> Tensor:
        global has_piece
        has_piece = bool((batch.tokens_T == self._piece).any())
        return super().embed(batch)


class BadHead(LinearHead):
    """A head whose linear layer computes NaN."""

    def __init__(self, width: int, target: Any, encoder: Any = None, *, phase: str):
        super().__init__(width, target, encoder)
        self.linear.forward = bad(phase, self.linear.forward)  # type: ignore[method-assign]


class BadLoss(CrossEntropy):
    """A loss that is NaN."""

    def __init__(self, *, phase: str):
        super().__init__()
        self._bad = bad(phase, super().__call__)

    def __call__(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        return self._bad(logits_NC, labels_N)
