"""FGM: a second pass with word vectors that are moved one step along the gradient of the loss.

Miyato et al. 2017 (https://arxiv.org/abs/1605.07725), equation 5, with the gradient's norm over a sequence.
"""

import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.methods import keys as schemas
from nlu.methods.adversarial import TINY, Climbing, SequenceNorms
from nlu.methods.method import Autocast, Scale, same_noise
from nlu.methods.plain import detached, weighted
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task

ADVERSARIAL = "adversarial_"


@takes(schemas.Fgm)
class Fgm(Climbing):
    """The loss plus `weight` times the loss at word vectors that are moved by epsilon along its gradient."""

    def __init__(self, keys: schemas.Fgm):
        """Take the keys. Both passes have the same dropout masks.

        The paper normalizes word vectors first. Here pretrained vectors are not changed, so epsilon is in their unit:
        a word vector of BERT has a norm of about 1.4, one of SimBERT-tiny of 1.1.
        """
        super().__init__(keys.of)
        self.epsilon, self.weight = keys.epsilon, keys.weight

    def weights(self, task: Task) -> dict[str, float]:
        weights = self.of.weights(task)
        return weights | {ADVERSARIAL + name: self.weight * weight for name, weight in weights.items()}

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        counts = self.of.counts(task, batch)
        return counts | {ADVERSARIAL + name: count for name, count in counts.items()}

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Scale, autocast: Autocast
    ) -> dict[str, Tensor]:
        device = batch.tokens_T.device
        with autocast():
            embedded_TE = model.backbone.embed(batch)
        # A leaf of zeros, whose gradient is that of the word vectors. The vectors themselves stay in the graph, so that
        # the same pass also adds to the gradient of the embedding table.
        moved_TE = torch.zeros_like(embedded_TE, requires_grad=True)
        # The second pass must see the same dropout masks: the perturbation follows the gradient of this very function.
        with same_noise(device):
            terms = self.of.terms(task, model, batch, autocast, embedded_TE + moved_TE)
        weighted(terms, scale).backward()
        found = detached(terms)
        # The gradient is scaled by `scale`, which cancels in the division by its norm.
        assert moved_TE.grad is not None, "every encoder uses its word vectors"
        norm_T1 = SequenceNorms(batch, device).l2(moved_TE.grad).clamp(min=TINY)
        # Looked up again, since backward has released the first graph; this adds the adversarial gradient of the table.
        with autocast():
            embedded_TE = model.backbone.embed(batch)
        terms = self.of.terms(task, model, batch, autocast, embedded_TE + self.epsilon * moved_TE.grad / norm_T1)
        weighted(terms, {name: scale[ADVERSARIAL + name] for name in terms}).backward()
        return found | {ADVERSARIAL + name: value for name, value in detached(terms).items()}
