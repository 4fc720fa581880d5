"""Compare two texts that are encoded separately, so that vectors can be computed before the other text is known.

Reimers and Gurevych 2019 (https://arxiv.org/abs/1908.10084).

Axes: B examples, S sequences (two for each example), D width.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.schema import Node
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Number, Target
from nlu.losses.loss import Loss, loss_of
from nlu.losses.of_queries import OfQueries
from nlu.metrics.classes import SimilarityScorer
from nlu.metrics.numbers import CorrelationScorer
from nlu.metrics.ranking import RankingScorer
from nlu.metrics.scores import Scorer
from nlu.models.heads.pairs import unit_vectors
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.classify import Classify
from nlu.tasks.keys import OF_SIMILARITIES
from nlu.tasks.task import Outputs, to_host


@takes(schemas.Siamese)
class Siamese(Classify):
    """Say how two texts relate, each encoded by itself."""

    def __init__(self, loss: Loss, target: Target, keys: schemas.Siamese):
        """Raises UserError unless a loss over cosines has two classes or numbers, and for dims without such a loss."""
        super().__init__(loss, target, schemas.Classify())
        self.threshold, self.dims = keys.threshold, keys.dims or []
        self.over_cosines = loss.reads != "logits"
        self.numbers = target if isinstance(target, Number) else None
        if self.dims and not self.over_cosines:
            raise UserError(
                f"task.dims is {self.dims}, but this loss reads logits, which need the whole vector; set "
                "loss=info_nce, or another one over cosines, or task.dims=null"
            )
        if self.numbers is not None:
            self.kind, self.default_metric = "nlu.metrics.kinds.SimilarityKind", OF_SIMILARITIES[0]
            self.metrics = OF_SIMILARITIES
            return
        if self.over_cosines:
            self.kind = "nlu.metrics.kinds.ClassBySimilarityKind"
        # A cosine has a threshold but not a likelihood; logits have a likelihood but not a threshold.
        absent = ("loss" if self.over_cosines else "threshold", *OF_SIMILARITIES)
        self.metrics = tuple(name for name in self.metrics if name not in absent)
        if self.over_cosines and len(target.names) != 2:
            raise UserError(
                f"the loss separates matching from other pairs, but the data has "
                f"{len(target.names)} labels ({', '.join(target.names[:5])}, ...); set loss=cross_entropy"
            )

    def own_head(self) -> Node:
        features = "cosine" if self.over_cosines else "concat"
        return {"_target_": self.heads[0], "features": features}

    def rows(self, batch: Batch) -> int:
        return len(batch.targets["labels" if self.numbers is None else "numbers"])

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of rows, for similarities (InfoNCE) of matching pairs, for groups as the loss counts."""
        if self.loss.reads == "groups":
            return {"labels": cast(OfQueries, self.loss).count(batch.targets["labels"], batch.targets["queries"])}
        if self.loss.reads != "similarities":
            return super().counts(batch)
        return {"labels": int((batch.targets["labels"] > 0).sum())}

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        if not self.over_cosines:
            return super().forward(model, batch, x_TD)
        # Without the head's layer, since a cosine needs no parameters. Both vectors are outputs because InfoNCE
        # compares all pairs.
        first_BD, second_BD = unit_vectors(model.encode(batch, x_TD), batch)
        return {"logits": (first_BD * second_BD).sum(1, keepdim=True), "first": first_BD, "second": second_BD}

    def facts_of(self, batch: Batch) -> dict[str, Tensor]:
        """Return the labels, of numbers in their own unit, and for similarities a hash of each text."""
        if self.numbers is not None:
            return {"labels": batch.targets["numbers"] * self.numbers.sd + self.numbers.mean}
        if self.loss.reads == "groups":
            return {name: batch.targets[name] for name in ("labels", "queries")}
        if self.loss.reads != "similarities":
            return super().facts_of(batch)
        assert batch.texts_KB is not None, "pairs of a store"
        first_B, second_B = batch.texts_KB
        return {"labels": batch.targets["labels"], "first_text": first_B, "second_text": second_B}

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        if not self.over_cosines:
            return super().terms(model, batch, outputs)
        is_real_B = None if batch.filling is None else batch.filling.is_real_N
        return {"labels": self._over_widths(outputs, self.facts_of(batch), is_real_B)}

    def compare(self, outputs: Outputs, facts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"labels": self._over_widths(outputs, facts)} if self.over_cosines else super().compare(outputs, facts)

    def _over_widths(self, outputs: Outputs, facts: Mapping[str, Tensor], is_real_B: Tensor | None = None) -> Tensor:
        """Return the mean loss over the whole vectors and their first dimensions.

        Kusupati et al. 2022 (https://arxiv.org/abs/2205.13147), equation 1, with equal weights.
        """
        whole = self._loss_of(outputs, facts, is_real_B)
        if not self.dims:
            return whole
        if (largest := max(self.dims)) > (width := outputs["first"].shape[1]):
            raise UserError(f"task.dims has {largest}, but vectors have {width} numbers; set task.dims to fewer")
        cut = [_first_dimensions(outputs, width) for width in self.dims]
        return torch.stack([whole, *(self._loss_of(one, facts, is_real_B) for one in cut)]).mean()

    def _loss_of(self, outputs: Outputs, facts: Mapping[str, Tensor], is_real_B: Tensor | None) -> Tensor:
        labels_B, loss = facts["labels"], cast(Any, self.loss)
        if loss.reads == "vectors":
            return cast(Tensor, loss(outputs["first"], outputs["second"], labels_B))
        if loss.reads == "groups":
            return cast(Tensor, loss(outputs["logits"][:, 0], labels_B, facts["queries"]))
        if loss.reads != "similarities":
            return loss_of(loss, outputs["logits"], labels_B, is_real_B)
        similarities_BB = outputs["first"] @ outputs["second"].T
        left_out_BB, left_out_of_second_BB = _no_negatives(labels_B, facts["first_text"], facts["second_text"])
        found = loss(similarities_BB.masked_fill(left_out_BB, -torch.inf), labels_B)
        if not loss.symmetric:
            return cast(Tensor, found)
        return 0.5 * (found + loss(similarities_BB.T.masked_fill(left_out_of_second_BB, -torch.inf), labels_B))

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        """Return half the squared difference of cosines, or the divergence of a classifier's logits."""
        if self.over_cosines:
            return 0.5 * (first["logits"] - second["logits"]).square().sum()
        return super().divergence(batch, first, second)

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        if not self.over_cosines:
            return super().predictions(batch, model, outputs)
        return [{"similarity": cosine} for cosine in to_host(outputs["logits"][:, 0]).astype(np.float64).tolist()]

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        if not self.over_cosines:
            return super().records(part, batch, model, outputs)
        predicted = self.predictions(batch, model, outputs)
        if self.numbers is not None:
            label_B = self.numbers.values(part.stored, part.rows_N[batch.examples_B]).tolist()
            return [{"label": label, **one} for label, one in zip(label_B, predicted, strict=True)]
        names, labels = self.known.names, batch.targets["labels"].tolist()
        return [{"label": names[label], **one} for label, one in zip(labels, predicted, strict=True)]

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        if self.numbers is not None:
            return CorrelationScorer([])
        if self.over_cosines:
            return SimilarityScorer(self.known.names, decided.get("threshold", self.threshold))
        return super().scorer(decided)

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        """Add the prediction at the set's threshold; numbers have none."""
        if "similarity" not in record or self.numbers is not None:
            return record
        similarity = record["similarity"]
        assert isinstance(similarity, float), "a result of `predictions`"
        return {**record, "prediction": self.known.names[int(similarity >= metrics["threshold"])]}


@takes(schemas.Retrieve)
class Retrieve(Siamese):
    """Find the text that answers a query among all candidates of the set."""

    def __init__(self, loss: Loss, target: Target, keys: schemas.Retrieve):
        super().__init__(loss, target, schemas.Siamese(dims=keys.dims))
        self.kind = "nlu.metrics.kinds.SimilarityKind"

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        assert batch.texts_KB is not None, "pairs of a store"
        first_BD, second_BD = to_host(outputs["first"]), to_host(outputs["second"])
        predicted = self.predictions(batch, model, outputs)
        # Texts are identified by hashes, since a candidate may occur in several rows but must be ranked once.
        texts = (map(_named, hashes_B) for hashes_B in batch.texts_KB.tolist())
        pairs = zip(*texts, batch.targets["labels"].tolist(), predicted, strict=True)
        return [
            {
                "label": relevant > 0,
                **one,
                "query": query,
                "candidate": candidate,
                "query_vector": first_BD[row],
                "candidate_vector": second_BD[row],
            }
            for row, (query, candidate, relevant, one) in enumerate(pairs)
        ]

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        return RankingScorer(self.known.names)

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        return record


def _named(text: int) -> str:
    """Return the name of a text by its hash of 64 bits."""
    return f"{text & (1 << 64) - 1:016x}"


def _first_dimensions(outputs: Outputs, width: int) -> Outputs:
    """Return the outputs for the first dimensions of the vectors, scaled to length 1."""
    first_BD, second_BD = (F.normalize(outputs[name][:, :width], dim=1) for name in ("first", "second"))
    return {"logits": (first_BD * second_BD).sum(1, keepdim=True), "first": first_BD, "second": second_BD}


def _no_negatives(labels_B: Tensor, first_B: Tensor, second_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return which second texts (columns) are no negatives of a first text (rows), and which first texts (columns) are
    none of a second text (rows); (B, B) each.

    These are texts equal to the one in the row, texts that match it in this row or any other, and texts that stand in
    an earlier row too, so that each counts once. `first_B` and `second_B` identify the texts.
    """
    answers_BB = (first_B[:, None] == first_B) & (labels_B > 0)
    same_second_BB = second_B[:, None] == second_B
    # A text is right if it equals one of the answers, which is a product of the two relations.
    is_right_BB = answers_BB.float() @ same_second_BB.float() > 0
    left_out_BB = is_right_BB | (first_B[:, None] == second_B)
    repeats_second_B, repeats_first_B = ((text_B[:, None] == text_B).triu(1).any(0) for text_B in (second_B, first_B))
    return (left_out_BB | repeats_second_B).fill_diagonal_(False), (left_out_BB.T | repeats_first_B).fill_diagonal_(
        False
    )
