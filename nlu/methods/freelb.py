"""FreeLB: K passes whose word vectors move along the gradient of the loss; each also adds to the weights' gradient.

Zhu et al. 2020 (https://arxiv.org/abs/1909.11764), algorithm 1.
"""

import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.collate import Batch, to_device
from nlu.methods import keys as schemas
from nlu.methods.adversarial import TINY, Climbing, SequenceNorms
from nlu.methods.method import Autocast, Scale, same_noise
from nlu.methods.plain import detached, weighted
from nlu.models.layers.dropout import active
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task


@takes(schemas.FreeLb)
class FreeLb(Climbing):
    """The mean gradient over K passes, with a perturbation of word vectors that increases the loss inside a ball.

    The dropout masks are the same in all passes (section 3.3 of the paper).
    """

    def __init__(self, keys: schemas.FreeLb):
        super().__init__(keys.of)
        self.steps, self.lr, self.norm = keys.steps, keys.lr, keys.norm
        self.init_magnitude, self.max_norm = keys.init_magnitude, keys.max_norm

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Scale, autocast: Autocast
    ) -> dict[str, Tensor]:
        device = batch.tokens_T.device
        norms = SequenceNorms(batch, device)
        # Each pass adds its part of the mean gradient, so that only one pass is in memory at a time.
        share = {name: value / self.steps for name, value in scale.items()}
        sums: dict[str, Tensor] = {}
        delta_TE: Tensor | None = None
        for number in range(self.steps):
            with autocast():
                embedded_TE = model.backbone.embed(batch)
            # Inside the loop, because its shape and type are those of the embedded vectors.
            if delta_TE is None:
                delta_TE = self._start(embedded_TE, norms)
            # A new leaf in each pass: the gradient must not flow through earlier moves.
            delta_TE = delta_TE.detach().requires_grad_()
            with same_noise(device):
                terms = self.of.terms(task, model, batch, autocast, embedded_TE + delta_TE)
            weighted(terms, share).backward()
            for name, value in detached(terms, 1 / self.steps).items():
                sums[name] = sums[name] + value if name in sums else value
            # After the last pass nothing reads the perturbation.
            if number + 1 < self.steps:
                assert delta_TE.grad is not None, "every encoder uses its word vectors"
                delta_TE = self._moved(delta_TE.detach(), delta_TE.grad, norms)
        return sums

    def _start(self, embedded_TE: Tensor, norms: SequenceNorms) -> Tensor:
        """Return the initial perturbation, (T, E). It is drawn on the host, so that it is the same on every device."""
        if not self.init_magnitude:
            return torch.zeros_like(embedded_TE)
        shape = embedded_TE.shape
        if (streams := active()) is not None:
            # From the stream of each sequence, so that the perturbation does not depend on the batch or the rank.
            drawn_TE = torch.from_numpy(streams.uniform(streams.lengths, shape[1]))
        else:
            drawn_TE = torch.empty(shape).uniform_(-1, 1)
        uniform_TE = to_device(drawn_TE, embedded_TE.device).to(embedded_TE.dtype)
        if self.norm == "linf":
            return uniform_TE * self.init_magnitude
        return uniform_TE * self.init_magnitude / (norms.token_counts(uniform_TE) * shape[1]).sqrt()

    def _moved(self, delta_TE: Tensor, gradient_TE: Tensor, norms: SequenceNorms) -> Tensor:
        """Return the perturbation moved by `lr` along the gradient of each sequence, then projected to the ball."""
        if self.norm == "linf":
            moved_TE = delta_TE + self.lr * gradient_TE / norms.largest(gradient_TE).clamp(min=TINY)
            return moved_TE.clamp(-self.max_norm, self.max_norm) if self.max_norm else moved_TE
        moved_TE = delta_TE + self.lr * gradient_TE / norms.l2(gradient_TE).clamp(min=TINY)
        if not self.max_norm:
            return moved_TE
        return moved_TE * (self.max_norm / norms.l2(moved_TE).clamp(min=TINY)).clamp(max=1.0)
