"""Common parts of adversarial methods: the loss that they increase, and norms of word vectors over sequences.

Axes: S sequences, T tokens of all of them, E width of a word vector.
"""

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch, to_device
from nlu.methods.method import Context
from nlu.methods.plain import Plain
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task

TINY = 1e-12
"""avoids a division by zero for a sequence without gradient"""


class Climbing:
    """A method that perturbs word vectors to increase the loss of another method `of` (null: plain training)."""

    def __init__(self, of: Plain | None):
        if of is not None and not isinstance(of, Plain):
            raise UserError(
                f"method.of is {type(of).__name__}, which computes its own gradient, so that its loss cannot be "
                "perturbed; name a method that derives from nlu.methods.plain.Plain, such as "
                "{_target_: nlu.methods.rdrop.RDrop}"
            )
        # Not a default argument, which all methods of the process would share.
        self.of = of or Plain()

    def prepare(self, model: TaskModel, context: Context) -> nn.Module | None:
        return self.of.prepare(model, context)

    def weights(self, task: Task) -> dict[str, float]:
        return self.of.weights(task)

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        return self.of.counts(task, batch)


class SequenceNorms:
    """Norms over all word vectors of each sequence of a batch, which is packed and so without padding."""

    def __init__(self, batch: Batch, device: torch.device):
        self.lengths = np.array(batch.lengths)
        self.count = len(self.lengths)
        # Built on the host from the lengths, which are there, so that no size is read back from an accelerator.
        self._sequence_T = to_device(torch.from_numpy(np.repeat(np.arange(self.count), self.lengths)), device)

    def l2(self, values_TE: Tensor) -> Tensor:
        """Return the Euclidean norm of the vectors of each token's sequence; (T, 1)."""
        # In float64, so that the order in which an accelerator adds does not change the float32 result.
        squares_T = values_TE.double().square().sum(1)
        norm_S = squares_T.new_zeros(self.count).index_add(0, self._sequence_T, squares_T).sqrt()
        return norm_S.to(values_TE.dtype).index_select(0, self._sequence_T)[:, None]

    def largest(self, values_TE: Tensor) -> Tensor:
        """Return the largest magnitude in the vectors of each token's sequence; (T, 1)."""
        largest_T = values_TE.abs().amax(1)
        largest_S = largest_T.new_zeros(self.count).scatter_reduce(0, self._sequence_T, largest_T, "amax")
        return largest_S.index_select(0, self._sequence_T)[:, None]

    def token_counts(self, values_TE: Tensor) -> Tensor:
        """Return the length of each token's sequence; (T, 1), float32."""
        counts_T = torch.from_numpy(np.repeat(self.lengths, self.lengths).astype(np.float32))
        return to_device(counts_T, values_TE.device)[:, None]
