"""Score how well a text answers another one, both in one sequence (a cross-encoder), and learn it query by query.

Nogueira and Cho 2019 (https://arxiv.org/abs/1901.04085). Axes: N rows.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.losses.of_queries import OfQueries
from nlu.metrics.reranking import RerankingScorer
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.task import Outputs, RowsOfLogits, to_host


@takes(schemas.Rerank)
class Rerank(RowsOfLogits):
    """Score the candidates of a query, so that they can be ranked."""

    loss: OfQueries  # type: ignore[assignment]

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"labels": self.loss.count(batch.targets["labels"], batch.targets["queries"])}

    def facts_of(self, batch: Batch) -> dict[str, Tensor]:
        """Return what `compare` needs of the rows of a batch beside their outputs; (N,) each."""
        return {name: batch.targets[name] for name in ("labels", "queries")}

    def compare(self, outputs: Outputs, facts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sum of the term over the queries of these rows."""
        return {"labels": self.loss(outputs["logits"][:, 0], facts["labels"], facts["queries"])}

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        return self.compare(outputs, self.facts_of(batch))

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        """Return half the squared difference of scores, summed over rows."""
        return 0.5 * (first["logits"] - second["logits"]).square().sum()

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        return [{"score": score} for score in to_host(outputs["logits"][:, 0]).astype(np.float64).tolist()]

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        labels, queries = (batch.targets[name].tolist() for name in ("labels", "queries"))
        predicted = self.predictions(batch, model, outputs)
        return [
            {"label": label, **one, "query": query}
            for label, one, query in zip(labels, predicted, queries, strict=True)
        ]

    def scorer(self, decided: Mapping[str, float]) -> RerankingScorer:
        return RerankingScorer([])
