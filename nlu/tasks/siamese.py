"""Compare two texts that are encoded separately, so that vectors can be computed before the other text is known.

Reimers and Gurevych 2019 (https://arxiv.org/abs/1908.10084).

Axes: B examples, S sequences (two for each example), D width.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.schema import Node
from nlu.data.collate import Batch, to_device
from nlu.data.examples import Examples
from nlu.data.targets import Target
from nlu.losses.loss import Loss
from nlu.metrics.classes import SimilarityScorer
from nlu.metrics.ranking import RankingScorer
from nlu.metrics.scores import Scorer
from nlu.models.heads.pairs import unit_vectors
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.classify import Classify
from nlu.tasks.task import Outputs, to_host

HASH_FACTORS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB)
"""odd numbers of 61 and 62 bits, which spread each bit of a product over those above it"""


@takes(schemas.Siamese)
class Siamese(Classify):
    """Say how two texts relate, each encoded by itself."""

    def __init__(self, loss: Loss, target: Target, keys: schemas.Siamese):
        """Raises UserError unless a loss over cosines has two classes."""
        super().__init__(loss, target, schemas.Classify())
        self.threshold = keys.threshold
        self.over_cosines = loss.reads != "logits"
        if self.over_cosines:
            self.kind = "nlu.metrics.kinds.ClassBySimilarityKind"
        # A cosine has a threshold but not a likelihood; logits have a likelihood but not a threshold.
        absent = "loss" if self.over_cosines else "threshold"
        self.metrics = tuple(name for name in self.metrics if name != absent)
        if self.over_cosines and len(target.names) != 2:
            raise UserError(
                f"the loss separates matching from other pairs, but the data has "
                f"{len(target.names)} labels ({', '.join(target.names[:5])}, ...); set loss=cross_entropy"
            )

    def own_head(self) -> Node:
        features = "cosine" if self.over_cosines else "concat"
        return {"_target_": self.heads[0], "features": features}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of rows or, for similarities (InfoNCE), of matching pairs."""
        labels_B = batch.targets["labels"]
        return {"labels": int((labels_B > 0).sum()) if self.loss.reads == "similarities" else self.rows(batch)}

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        if not self.over_cosines:
            return super().forward(model, batch, x_TD)
        # Without the head's layer, since a cosine needs no parameters. Both vectors are outputs because InfoNCE
        # compares all pairs.
        first_BD, second_BD = unit_vectors(model.encode(batch, x_TD), batch)
        return {"logits": (first_BD * second_BD).sum(1, keepdim=True), "first": first_BD, "second": second_BD}

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        if self.loss.reads == "similarities":
            similarities_BB = outputs["first"] @ outputs["second"].T
            # A text that also answers the query must not be pushed away from it.
            similarities_BB = similarities_BB.masked_fill(_not_wrong(batch), -torch.inf)
            return {"labels": self.loss(similarities_BB, batch.targets["labels"])}
        return super().terms(model, batch, outputs)

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
        names, predicted = self.known.names, self.predictions(batch, model, outputs)
        labels = batch.targets["labels"].tolist()
        return [{"label": names[label], **one} for label, one in zip(labels, predicted, strict=True)]

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        if self.over_cosines:
            return SimilarityScorer(self.known.names, decided.get("threshold", self.threshold))
        return super().scorer(decided)

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        """Add the prediction at the set's threshold."""
        if "similarity" not in record:
            return record
        similarity = record["similarity"]
        assert isinstance(similarity, float), "a result of `predictions`"
        return {**record, "prediction": self.known.names[int(similarity >= metrics["threshold"])]}


@takes(schemas.Retrieve)
class Retrieve(Siamese):
    """Find the text that answers a query among all candidates of the set."""

    def __init__(self, loss: Loss, target: Target):
        super().__init__(loss, target, schemas.Siamese())
        self.kind = "nlu.metrics.kinds.SimilarityKind"

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        names = _names_of_sequences(batch)
        first_BD, second_BD = to_host(outputs["first"]), to_host(outputs["second"])
        predicted = self.predictions(batch, model, outputs)
        # Texts are identified by hashes, since a candidate may occur in several rows but must be ranked once.
        pairs = zip(*batch.sequences_KB.tolist(), batch.targets["labels"].tolist(), predicted, strict=True)
        return [
            {
                "label": relevant > 0,
                **one,
                "query": names[query],
                "candidate": names[candidate],
                "query_vector": first_BD[row],
                "candidate_vector": second_BD[row],
            }
            for row, (query, candidate, relevant, one) in enumerate(pairs)
        ]

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        return RankingScorer(self.known.names)

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        return record


def _not_wrong(batch: Batch) -> Tensor:
    """Return which second texts (columns) of other rows are not negatives of a first text (rows); (B, B).

    These are texts equal to the first text, and texts that match it in this row or any other.
    """
    first_B, second_B = _hashes_of_sequences(batch)[batch.sequences_KB]
    answers_BB = (first_B[:, None] == first_B) & (batch.targets["labels"] > 0)
    same_answer_BB = second_B[:, None] == second_B
    # A text is right if it equals one of the answers, which is a product of the two relations.
    is_right_BB = answers_BB.float() @ same_answer_BB.float() > 0
    return (is_right_BB | (first_B[:, None] == second_B)).fill_diagonal_(False)


def _hashes_of_sequences(batch: Batch) -> Tensor:
    """Return a 64-bit hash of the tokens of each sequence, computed on the batch's device without a synchronization;
    (S,)."""
    numbers = torch.from_numpy(np.repeat(np.arange(batch.num_sequences), batch.lengths))
    # The position enters the hash, because the sum below ignores the order of tokens.
    mixed_T = batch.tokens_T * HASH_FACTORS[0] + batch.positions_T * HASH_FACTORS[1]
    for factor in HASH_FACTORS:
        mixed_T = (mixed_T ^ (mixed_T >> 29)) * factor
    # The sum of integers does not depend on the order, also if it overflows.
    sequence_T = to_device(numbers, mixed_T.device)
    return mixed_T.new_zeros(batch.num_sequences).index_add(0, sequence_T, mixed_T)


def _names_of_sequences(batch: Batch) -> list[str]:
    """Return a name for each sequence, the same for equal texts; (S,)."""
    tokens_T = batch.tokens_T.numpy()
    starts = batch.starts_S.tolist()
    return [
        hashlib.blake2b(tokens_T[start : start + length].tobytes(), digest_size=12).hexdigest()
        for start, length in zip(starts, batch.lengths, strict=True)
    ]
