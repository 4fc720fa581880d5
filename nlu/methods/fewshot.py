"""Train on few rows: an encoder that stays or learns from pairs, and a logistic regression on its vectors as the head.

The pairs are those of SetFit (Tunstall et al. 2022, https://arxiv.org/abs/2209.11055), two texts of the same or of
another class, but each text of a micro-batch is encoded once and compared with all others of it, by the supervised
contrastive loss (Khosla et al. 2020, https://arxiv.org/abs/2004.11362, equation 2). The order of the run decides which
texts meet, a function of (seed, epoch, position), so no list of pairs exists.

Axes: B examples of a micro-batch, N rows that the head is fitted to, D width, C classes.
"""

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.data.examples import Examples, sample
from nlu.data.mixture import MixedStore
from nlu.methods import keys as schemas
from nlu.methods.method import Autocast, Context
from nlu.methods.plain import Plain
from nlu.models.head import vectors_of
from nlu.models.heads.linear import LinearHead
from nlu.models.layers.pooling import of_windows
from nlu.models.task_model import TaskModel
from nlu.tasks.classify import Deciding
from nlu.tasks.task import Task

CONTRASTIVE = "contrastive"
LEAST_SD = 1e-6
"""of a feature, so that one that is equal in all rows is not divided by 0"""
ABSENT = -30.0
"""the logit of a class that none of the rows has"""


@takes(schemas.Frozen)
class Frozen(Plain):
    """The encoder stays as it is; the head is fitted whenever the model is to be scored."""

    trains_encoder = False

    def __init__(self, keys: schemas.Frozen):
        self.head_rows, self.penalty = keys.head_rows, keys.penalty

    def prepare(self, model: TaskModel, context: Context) -> nn.Module | None:
        """Choose the rows of the head. Raises UserError for a run whose head cannot be fitted."""
        _require_classes(model, context)
        self.rows: Examples = sample(context.store.sets["train"], self.head_rows, context.seed)
        if len(np.unique(self.rows.target.strata(self.rows.stored, self.rows.rows_N)[0])) < 2:
            raise UserError(
                f"the rows of data.train that the head is fitted to ({len(self.rows):,}, method.head_rows is "
                f"{self.head_rows}) are of one class, from which no head can be fitted; add another class, or set "
                "method.head_rows higher"
            )
        if not self.trains_encoder:
            for name, parameter in model.named_parameters():
                # The head takes steps too, so that a step of this method is an ordinary one; the fit replaces them.
                parameter.requires_grad_(name.startswith("head."))
        return None

    def vectors(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Tensor:
        """Return what the head reads of each example; (B, D)."""
        # Of windows the mean, as of their logits.
        return of_windows(vectors_of(model.encode(batch, x_TD), batch, "pooled"), batch.windows_B, "mean")

    def fitted(self, vectors_ND: np.ndarray, labels_N: np.ndarray, classes: int) -> dict[str, np.ndarray]:
        """Return the parameters of the head by name: the logistic regression of these labels, float32."""
        from sklearn.linear_model import LogisticRegression

        mean_D, sd_D = vectors_ND.mean(0, dtype=np.float64), vectors_ND.std(0, dtype=np.float64).clip(LEAST_SD)
        # At the default tolerance probabilities would be those of the optimum to three digits only.
        fit = LogisticRegression(C=1 / self.penalty, max_iter=1000, tol=1e-6)
        found = fit.fit((vectors_ND - mean_D) / sd_D, labels_N)
        own_CD, own_C = found.coef_ / sd_D, found.intercept_
        # Of two classes sklearn keeps the difference of their logits.
        own_CD, own_C = (np.stack([-x[0] / 2, x[0] / 2]) if len(x) == 1 else x for x in (own_CD, own_C))
        weight_CD, bias_C = np.zeros((classes, vectors_ND.shape[1])), np.full(classes, ABSENT)
        weight_CD[found.classes_], bias_C[found.classes_] = own_CD, own_C - own_CD @ mean_D
        return {"linear.weight": weight_CD.astype(np.float32), "linear.bias": bias_C.astype(np.float32)}


@takes(schemas.FewShot)
class FewShot(Frozen):
    """The encoder learns which texts have the same class; the head is fitted whenever the model is to be scored."""

    trains_encoder = True
    compiles = False

    def __init__(self, keys: schemas.FewShot):
        super().__init__(keys)
        self.temperature, self.freeze_words = keys.temperature, keys.freeze_words

    def prepare(self, model: TaskModel, context: Context) -> nn.Module | None:
        super().prepare(model, context)
        cast(Any, context.task).compared_by = type(self).__name__
        if self.freeze_words:
            model.backbone.words.weight.requires_grad_(False)
        if not any(each.requires_grad for name, each in model.named_parameters() if name.startswith("backbone.")):
            raise UserError(
                f"model is {type(model.backbone).__name__}, of which method=fewshot trains nothing with "
                "method.freeze_words=true; set that to false, or method=frozen"
            )
        return None

    def weights(self, task: Task) -> dict[str, float]:
        return {CONTRASTIVE: 1.0}

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        return {CONTRASTIVE: len(batch)}

    def terms(
        self, task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
    ) -> dict[str, Tensor]:
        with autocast():
            vectors_BD = self.vectors(model, batch, x_TD)
        return {CONTRASTIVE: contrastive(vectors_BD, batch.targets["labels"], self.temperature)}


def contrastive(vectors_BD: Tensor, labels_B: Tensor, temperature: float) -> Tensor:
    """Return the sum over examples of the mean of -log p(other) over others of the same class; nats.

    p is the softmax over all other examples of cosine / temperature. An example that is alone in its class counts 0.
    """
    unit_BD = F.normalize(vectors_BD, dim=1)
    is_same_BB = (labels_B[:, None] == labels_B).fill_diagonal_(False)
    # Finite, so that an example without any other has no NaN as gradient.
    logits_BB = (unit_BD @ unit_BD.T / temperature).fill_diagonal_(torch.finfo(unit_BD.dtype).min)
    log_p_BB = F.log_softmax(logits_BB, 1).masked_fill(~is_same_BB, 0)
    return -(log_p_BB.sum(1) / is_same_BB.sum(1).clamp_min(1)).sum()


def _require_classes(model: TaskModel, context: Context) -> None:
    if isinstance(context.store, MixedStore):
        raise UserError(
            "data is mixture, but the head of method=fewshot and frozen is fitted to the rows of one set; train each "
            "set in a run of its own, or set method=plain"
        )
    target, loss = context.store.target, getattr(context.task, "loss", None)
    if target.kind != "classes" or not isinstance(model.head, LinearHead):
        raise UserError(
            f"the head of method=fewshot and frozen is a logistic regression on one vector for each row, but the "
            f"target is {target.kind} and the head {type(model.head).__name__}; use task=classify or match with "
            "head=linear, or method=plain"
        )
    if isinstance(loss, Deciding):
        raise UserError(
            f"loss is {type(loss).__name__}, which does not read logits as the logistic regression of method=fewshot "
            "and frozen gives them; set loss=cross_entropy"
        )
