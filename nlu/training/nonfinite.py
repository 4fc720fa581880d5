"""The rows of a step whose loss or gradient is not finite.

Axes: B examples of a micro-batch.
"""

import math

import numpy as np
import torch

from nlu.data.examples import Examples
from nlu.methods.method import Scale
from nlu.training.passes import Passes

SHOWN_ROWS = 8


def culprits(
    passes: Passes, part: Examples, micro_batches: list[np.ndarray], scale: Scale, number: int, epoch: int
) -> str:
    """Return the rows of all ranks whose loss or gradient is not finite, by their numbers in the file.

    Nothing was updated, so the step is repeated by micro-batches, and by single rows for a micro-batch that is not
    finite. If only the sum is not finite, all rows are named. All ranks run the same number of passes.
    """
    ranks = passes.ranks
    own: list[int] = []
    for micro, examples_B in enumerate(micro_batches):
        is_bad = not _is_finite(passes, part, examples_B, scale, number, micro, epoch)
        rows, bad = ranks.sum_on_host([float(len(examples_B)), float(is_bad)])
        # Decided by all ranks together, since the repeated passes below may communicate.
        if not bad:
            continue
        # The rows of a micro-batch are distributed to the ranks in turn, so no rank has more rows than this.
        most = math.ceil(rows / ranks.world_size)
        single = [
            examples_B[place]
            for place in range(most)
            if not _is_finite(passes, part, examples_B[place : place + 1], scale, number, micro, epoch)
        ]
        if is_bad:
            own += single or examples_B.tolist()
    found, all_rows = (
        part.stored.scalars("number", part.rows_N[np.asarray(rows, np.int64)]).tolist()
        for rows in (own, np.concatenate(micro_batches))
    )
    gathered = ranks.gather_to_first((found, all_rows))
    name = named(*(sum(rows, []) for rows in zip(*gathered, strict=True))) if gathered else ""
    return f"{ranks.from_first(name)} of {part.name}"


def _is_finite(
    passes: Passes, part: Examples, examples_B: np.ndarray, scale: Scale, number: int, micro: int, epoch: int
) -> bool:
    """Whether these examples of a micro-batch give a finite loss and gradient; True without examples."""
    # A rank that has run out of rows repeats a placeholder, to stay in step with the others.
    (share,) = passes.shares(part, [examples_B], epoch)
    if share is None:
        return True
    passes.forget_gradients()
    sums = passes.backward(share, scale, number, micro)
    gradients = [parameter.grad for parameter in passes.trained if parameter.grad is not None]
    return not share.is_own or bool(torch.isfinite(sums.sum() + torch.nn.utils.get_total_norm(gradients)))


def named(found: list[int], all_rows: list[int]) -> str:
    """Return the found rows among all rows of a step, in words; all rows if none was found."""
    rows = sorted(found or all_rows)
    if len(rows) == len(all_rows) > SHOWN_ROWS:
        return f"all {len(rows):,} rows"
    more = f" and {len(rows) - SHOWN_ROWS:,} more" if len(rows) > SHOWN_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN_ROWS]))}{more}"
