"""Several tasks in one run over one encoder, each with its own head and training rows."""

from collections.abc import Mapping

from torch import Tensor

from nlu.config.keys import takes
from nlu.config.mixtures import MEAN
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.models.task_model import TaskModel, model_of
from nlu.tasks import keys as schemas
from nlu.tasks.task import Outputs, Task


@takes(schemas.Composite)
class Composite:
    """Each set of data=mixture has the task and the head of its name; everything is left to the task of a batch's set.

    A term of the loss is called by the name of its head. A step has rows of one head, so the terms of the others are 0.
    """

    def __init__(self, members: Mapping[str, Task], num_labels: Mapping[str, int], keys: schemas.Composite):
        """`members`: the tasks, built; `num_labels`: how many labels each has."""
        self.members = dict(members)
        known = keys.weights or {}
        self._terms = {
            name: {term: name if len(task.term_weights) == 1 else f"{name}.{term}" for term in task.term_weights}
            for name, task in members.items()
        }
        self.term_weights = {
            self._terms[name][term]: known.get(name, 1.0) * weight
            for name, task in members.items()
            for term, weight in task.term_weights.items()
        }
        # In place of the fact, which stands for all tasks.
        self.lower_is_better = tuple(dict.fromkeys(each for task in members.values() for each in task.lower_is_better))
        # A mean of a metric that should rise and one that should fall has no direction.
        self.has_mean = not any(task.default_metric in task.lower_is_better for task in members.values())
        self.metrics = (
            *((MEAN,) if self.has_mean else ()),
            *(
                f"{name}/{metric}"
                for name, task in members.items()
                for metric in (*task.metrics, *(task.binary_metrics if num_labels[name] == 2 else ()))
            ),
        )
        self.binary_metrics: tuple[str, ...] = ()

    def of(self, member: str) -> Task:
        """Return the task of a set."""
        return self.members[member]

    def summary(self, first: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the metrics of all heads together, by those of the first set of each head."""
        if not self.has_mean:
            return {}
        values = [first[name][task.default_metric] for name, task in self.members.items()]
        return {MEAN: sum(values) / len(values)}

    def counts(self, batch: Batch) -> dict[str, int]:
        names = self._terms[batch.member]
        return {names[term]: count for term, count in self.of(batch.member).counts(batch).items()}

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        return self.of(batch.member).forward(model_of(model, batch.member), batch, x_TD)

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        own = self.of(batch.member).terms(model_of(model, batch.member), batch, outputs)
        return self.named(batch.member, own)

    def named(self, member: str, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the terms of one head under their names here, beside those of all others."""
        names = self._terms[member]
        # Zeros for the heads without rows in this step: every step has the same terms in the same order, on all ranks.
        nothing = next(iter(own.values())).new_zeros(())
        return dict.fromkeys(self.term_weights, nothing) | {names[term]: value for term, value in own.items()}

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        return self.of(batch.member).divergence(batch, first, second)

    def rows(self, batch: Batch) -> int:
        return self.of(batch.member).rows(batch)

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        return self.of(batch.member).predictions(batch, model_of(model, batch.member), outputs)

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        return self.of(batch.member).records(part, batch, model_of(model, batch.member), outputs)


def task_of(task: Task, member: str) -> Task:
    """Return the task of a set: that of its head, or the only one."""
    return task.of(member) if isinstance(task, Composite) else task
