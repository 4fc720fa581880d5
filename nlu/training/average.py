"""The moving average of the weights, which is scored and kept instead of them (`trainer.ema_decay`)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@torch.no_grad()
def follow(average: Mapping[str, Tensor], model: nn.Module, decay: float, number: int, skipped: Tensor | None) -> None:
    """Move the averages towards the weights after step `number`.

    The averages are float32, and of the trained parameters only: frozen ones and buffers are the same in both.
    `skipped`: a number on the device, 1 for a step that has not updated the weights; None: this one has.
    """
    # The decay grows over the first steps; otherwise the average would long consist of the initial weights.
    amount: Tensor | float = 1 - min(decay, (1 + number) / (10 + number))
    amount = amount if skipped is None else amount * (1 - skipped)
    pairs = [(average[name], parameter) for name, parameter in model.named_parameters() if name in average]
    for shadow, weight in pairs:
        if weight.dtype == torch.float16:
            # Copies of all weights at once would take as much memory as master weights.
            shadow.lerp_(weight.float(), amount)
    if others := [pair for pair in pairs if pair[1].dtype != torch.float16]:
        shadows, weights = map(list, zip(*others, strict=True))
        torch._foreach_lerp_(shadows, weights, [amount] * len(shadows) if isinstance(amount, Tensor) else amount)


@contextmanager
def averaged(model: nn.Module, average: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Give the trained parameters of a model the values of their moving average, if there is one, in the block."""
    own: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if average is not None and name in average:
                # Copied, so that exactly the same weights come back.
                own[name] = parameter.detach().clone()
                parameter.copy_(average[name])
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in own:
                    parameter.copy_(own[name])
