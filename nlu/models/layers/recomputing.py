"""Gradient checkpointing: the tensors inside of a layer are computed again in the backward pass instead of kept.

Chen et al. 2016 (https://arxiv.org/abs/1604.06174): only the inputs of layers are kept. torch restores its own random
numbers and autocast; the streams of `nlu.models.layers.dropout`, and modes of torch that the first pass was in, are
restored here, so the gradient has the same bits.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nlu.config.errors import UserError
from nlu.models.layers.dropout import active, drawing_from

Modes = Callable[[], AbstractContextManager[object]]
"""returns the context of the modes in which a layer is computed"""


def recomputed(layer: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Return `layer(*inputs)`, which is called again in the backward pass with the same random numbers."""
    result: Tensor = checkpoint(layer, *inputs, use_reentrant=False, context_fn=contexts)
    return result


def contexts(modes: Modes = nullcontext) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return the context of a first call, which begins now, and that of its repetitions, as torch's `context_fn`."""
    return nullcontext(), _Again(modes)


class _Again:
    """The streams as they are when this object is made. It can be entered several times, one after another."""

    def __init__(self, modes: Modes):
        self._modes, self._streams = modes, active()
        self._position = self._streams.position() if self._streams else None
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        stack = ExitStack()
        stack.enter_context(drawing_from(self._streams))
        if (streams := self._streams) is not None:
            here = streams.position()
            stack.callback(lambda: streams.go_to(here))
            streams.go_to(self._position)
        stack.enter_context(self._modes())
        self._entered.append(stack)

    def __exit__(self, *of_error: object) -> None:
        # torch ends a repetition by an exception once it has all tensors.
        self._entered.pop().close()


def recompute_layers(inner: Any, context_fn: Callable[[], object]) -> None:
    """Make the layers of a model of transformers compute themselves again, with the contexts that this returns.

    Raises UserError if its architecture does not provide for that.
    """
    # Versions before 5.24 only have the second name.
    enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False, "context_fn": context_fn})
    except ValueError:
        raise UserError(
            f"model.gradient_checkpointing is true, but transformers cannot compute the layers of "
            f"{inner.config.model_type} again; set it to false"
        ) from None
