"""How much the loss of a run depends on each attention head.

Michel et al. 2019 (https://arxiv.org/abs/1905.10650), section 4.1: I_h = E_x |d L(x) / d m_h|, where m_h = 1 multiplies
the output of head h. Values of a layer are divided by the root of the sum of their squares, as there.

Axes: N examples, R rows of a batch (tokens, or first tokens of sequences), S sequences, H heads of a layer, E width of
a head.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.order import evaluation_batches
from nlu.models.encoders.bert import Bert
from nlu.models.formats.smaller_weights import Heads
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task, comparing_loss

Place = tuple[int, int]
"""a layer, and the place of a head among those that the layer has"""


def require_own_losses(task: Task) -> None:
    """Raise UserError for a loss that compares examples, which then lack a loss of their own."""
    if (loss := comparing_loss(task)) is not None:
        raise UserError(
            f"the run was trained with the loss {loss}, which depends on several rows at once, but the "
            "importance of heads is a mean over single rows; fine-tune the run with another loss, and prune that one"
        )


def importances(
    model: TaskModel,
    task: Task,
    part: Examples,
    device: torch.device,
    *,
    batch_size: int = 32,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[np.ndarray]:
    """Return the importance of each head of each layer, (H,) float64; the squares of a layer add up to 1.

    Each example counts once, with the sum of its own losses and without dropout, in fp32; so the values depend neither
    on padding nor on batches, except for rounding. The encoder is a native one without repeated layers. The task has a
    loss that is a sum over rows. A layer without any gradient has zeros.
    """
    backbone: Any = model.backbone
    counts = [backbone.heads_of(number) for number in range(backbone.sizes["layers"])]
    found_NH = [np.zeros((len(part), heads)) for heads in counts]
    model.eval().requires_grad_(False)
    for examples_B in evaluation_batches(part.lengths_N, batch_size=batch_size, rank=0, world_size=1):
        batch = collate(part, examples_B)
        for layer_NH, own_BH in zip(found_NH, _of_batch(model, task, batch, device, counts), strict=True):
            layer_NH[batch.examples_B] = own_BH
        advance(len(batch))
    # In the order of examples, whatever the batches were.
    means = [layer_NH.mean(0) for layer_NH in found_NH]
    return [mean_H / (np.linalg.norm(mean_H) or 1.0) for mean_H in means]


def _of_batch(
    model: TaskModel, task: Task, batch: Batch, device: torch.device, counts: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yield, for each layer, |dL/dm| of each example and head; (B, H)."""
    on_device = batch.to(device)
    with _outputs_of_heads(model) as mixed, torch.enable_grad():
        # The weights are frozen, so that the vectors of words start the graph.
        x_TD = model.backbone.embed(on_device).detach().requires_grad_()
        outputs = task.forward(model, on_device, x_TD)
        terms = task.terms(model, on_device, outputs)
        loss = sum(weight * terms[name] for name, weight in task.term_weights.items())
        assert isinstance(loss, Tensor), "a task has a term"
        # Pooling of lower layers uses none of the later ones, whose gradients are zeros.
        gradients = torch.autograd.grad(loss, mixed, allow_unused=True, materialize_grads=True)
    example_S, _ = batch.origin_S()
    example_T = np.repeat(example_S, batch.lengths)
    for output, gradient, heads in zip(mixed, gradients, counts, strict=True):
        # dL/dm is the product of the head's output and its gradient, summed over all places that m multiplies.
        product_RH = (output.detach().double() * gradient.double()).unflatten(1, (heads, -1)).sum(2).cpu().numpy()
        # In the last layer only the first token of each sequence may be computed. Rows after the tokens are padding.
        example_R = example_S if len(product_RH) == len(example_S) < len(example_T) else example_T
        summed_BH = np.zeros((len(batch), heads))
        np.add.at(summed_BH, example_R, product_RH[: len(example_R)])
        yield np.abs(summed_BH)


@contextmanager
def _outputs_of_heads(model: TaskModel) -> Iterator[list[Tensor]]:
    """Yield a list, to which each layer of a forward pass appends the outputs of its heads; (R, H * E)."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    backbone = model.backbone
    assert isinstance(backbone, Bert), "a native encoder"
    layers = backbone.encoder["layer"].children()
    hooks = [layer.get_submodule("attention.output").register_forward_pre_hook(keep) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def least_first(importance: Sequence[np.ndarray]) -> list[Place]:
    """Return all heads, the least important first; of equal ones, by layer and place."""
    return sorted(
        ((layer, place) for layer, own_H in enumerate(importance) for place in range(len(own_H))),
        key=lambda head: (importance[head[0]][head[1]], head),
    )


def to_remove(order: Sequence[Place], heads: Sequence[int], count: int) -> Heads:
    """Return `count` heads by layer, the first ones of `order`, except for the last one that a layer has."""
    found: Heads = {}
    for layer, place in order:
        if count and len(found.get(layer, [])) + 1 < heads[layer]:
            found.setdefault(layer, []).append(place)
            count -= 1
    assert not count, "the command has asked for fewer"
    return {layer: sorted(places) for layer, places in sorted(found.items())}


def of_layers(order: Sequence[Place], counts: Mapping[int, int]) -> Heads:
    """Return the least important heads of each layer, as many as `counts` has for it."""
    found: Heads = {}
    for layer, place in order:
        if len(found.get(layer, [])) < counts.get(layer, 0):
            found.setdefault(layer, []).append(place)
    return {layer: sorted(places) for layer, places in sorted(found.items())}
