"""The head of a method that fits it: before an evaluation, to the vectors that the weights have then."""

import numpy as np
import torch

from nlu.data.collate import Batch, collate
from nlu.data.order import evaluation_batches
from nlu.methods.method import FitsHead
from nlu.optim.optimizer import averaged
from nlu.tasks.task import to_host
from nlu.training.evaluation import scoring
from nlu.training.memory import by_parts
from nlu.training.parts import Training


def settle_head(run: Training) -> None:
    """Fit the head to the weights that are scored, their moving average if there is one, if the method does that.

    Every rank must call it: each encodes its share of the rows, rank 0 fits, and all get the same head. The head
    becomes that of the weights and of their average, so that both are saved with it. Memory: the vectors of the rows.
    """
    stepper, ranks = run.stepper, run.stepper.ranks
    # Of a method that changes the loss of another one, such as fgm, it is that one's.
    method = getattr(stepper.method, "of", stepper.method)
    if not isinstance(method, FitsHead):
        return
    model, rows = stepper.model, method.rows

    def encoded(examples_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        batch: Batch = collate(rows, examples_B)
        with stepper.precision.autocast(ranks.device):
            vectors_BD = method.vectors(model, batch.to(ranks.device))
        return batch.examples_B, to_host(vectors_BD), to_host(batch.targets["labels"])

    batches = evaluation_batches(
        rows.lengths_N, batch_size=run.trainer.rows_to_score, rank=ranks.rank, world_size=ranks.world_size
    )
    with averaged(model, stepper.average), scoring(model), torch.inference_mode():
        own = [found for _, found in by_parts(encoded, batches, ranks.device)]
    head = None
    if (gathered := ranks.gather_to_first(own)) is not None:
        parts = [part for of_rank in gathered for part in of_rank]
        examples_N, vectors_ND, labels_N = (np.concatenate(column) for column in zip(*parts, strict=True))
        # In the order of examples, so that the number of ranks and the batches do not change a bit of the fit.
        order_N = np.argsort(examples_N)
        head = method.fitted(vectors_ND[order_N], labels_N[order_N], len(run.store.labels))
    head = ranks.from_first(head)
    assert head is not None
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, values in head.items():
            for tensors in (parameters, stepper.average or {}):
                if (held := tensors.get(f"head.{name}")) is not None:
                    held.copy_(torch.from_numpy(values))
