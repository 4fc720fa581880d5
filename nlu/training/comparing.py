"""The gradient of a loss that compares all rows of a step, in the memory of one micro-batch.

Gao et al. 2021 (https://arxiv.org/abs/2101.06983): the outputs of all rows are computed first, and their graphs given
up; the loss of all of them gives the gradient of each output; then each micro-batch is computed again, with the same
random numbers, and takes the gradient of its own outputs back to the weights. By the chain rule this is the gradient of
one pass over all rows, whatever the micro-batches and ranks.

Axes: N rows of the step, of all micro-batches and ranks, in the order of ranks and then of micro-batches.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from nlu.data.collate import Batch
from nlu.runs import summary
from nlu.tasks.task import Comparing, Outputs
from nlu.training.memory import is_out_of_memory, release
from nlu.training.ranks import Ranks

LACKING = "a rank has too little memory for the outputs of its micro-batches"


@dataclass
class Piece:
    """A micro-batch of this rank, whose outputs can be computed repeatedly."""

    is_own: bool
    """False for the placeholder of a rank without rows in the micro-batch"""
    begun: Callable[[], AbstractContextManager[Batch]]
    """begins a pass and yields the batch on the device"""
    forward: Callable[[Batch], Outputs]

    def recorded(self, again: bool) -> AbstractContextManager[None]:
        """Return a context in which the model records numbers, once, and none about a placeholder."""
        return nullcontext() if again and self.is_own else summary.unheard()


def compared(
    task: Comparing,
    pieces: Sequence[Piece],
    ranks: Ranks,
    backward: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    put_back: Callable[[], None],
) -> dict[str, Tensor]:
    """Add the gradient of this rank's rows; return the sum of each term over the rows of all ranks on the first one,
    and zeros on the others.

    `backward` runs the backward pass of the task's terms, each times its scale, and returns all terms of the run;
    `put_back` undoes what a pass has changed, such as running statistics. Every rank must call it, with at least one
    piece. Raises MemoryError on all of them if one has too little memory for the outputs.
    """
    outputs, facts = _outputs_of(task, pieces, ranks)
    counts = [len(next(iter(one.values()))) for one in facts]
    # Pieces have the same names, and shapes that differ in the number of rows only.
    outputs_N = {name: ranks.all_rows(torch.cat([one[name] for one in outputs])) for name in outputs[0]}
    facts_N = {name: ranks.all_rows(torch.cat([one[name] for one in facts])) for name in facts[0]}
    for values_N in outputs_N.values():
        values_N.requires_grad_()
    # Before the comparison: memory may run out in it on this rank only, which then takes no part in what follows.
    begin = sum(map(int, ranks.all_on_host(float(sum(counts)))[: ranks.rank]))
    terms = backward(task.compare(outputs_N, facts_N))
    put_back()
    for piece, count in zip(pieces, counts, strict=True):
        own = slice(begin, begin + count)
        _take_back(piece, {name: each.grad[own] for name, each in outputs_N.items() if each.grad is not None})
        begin += count
    return {name: value.detach() if ranks.is_first else torch.zeros_like(value) for name, value in terms.items()}


def _outputs_of(
    task: Comparing, pieces: Sequence[Piece], ranks: Ranks
) -> tuple[list[Outputs], list[dict[str, Tensor]]]:
    """Return the outputs and the facts of the rows of each piece; none of placeholders."""
    outputs: list[Outputs] = []
    facts: list[dict[str, Tensor]] = []
    fits = True
    try:
        for piece in pieces:
            rows = slice(None if piece.is_own else 0)
            with piece.begun() as batch, piece.recorded(again=False):
                # Not under `no_grad`, where layers drop nothing in attention; the graph is given up here.
                outputs.append({name: values[rows].detach() for name, values in piece.forward(batch).items()})
                facts.append({name: values[rows] for name, values in task.facts_of(batch).items()})
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    if ranks.world_size > 1:
        fits = not ranks.sum_on_host([float(not fits)])[0]
    if not fits:
        release(ranks.device)
        raise MemoryError(LACKING)
    return outputs, facts


def _take_back(piece: Piece, gradients: Mapping[str, Tensor]) -> None:
    """Compute a piece again and add the gradient of the weights, by that of its outputs."""
    with piece.begun() as batch, piece.recorded(again=True):
        outputs = piece.forward(batch)
        # Of a placeholder zeros, so that all ranks have gradients of the same parameters.
        given = [one if piece.is_own else torch.zeros_like(outputs[name]) for name, one in gradients.items()]
        torch.autograd.backward([outputs[name] for name in gradients], given)
