"""The contract of adapters."""

from typing import Protocol

from torch import Tensor

from nlu.models.task_model import TaskModel


class Adapter(Protocol):
    """Changes a model after its pretrained weights were loaded, so that few parameters are trained.

    Its constructor takes its options by keyword. A run applies it once, before the optimizer is built. To load a
    checkpoint of the run, it is applied before the weights are put in place. So checkpoints, the moving average and the
    optimizer's state hold the adapter's parameters like any others.
    """

    def apply(self, model: TaskModel) -> None:
        """Change the model in place: add modules, and freeze what is not to be trained (`requires_grad_(False)`).

        The names that this gives to parameters must be the same in each process. New weights are drawn from torch's
        generator, which is seeded by the run's seed. Raises UserError where an option does not fit the model.
        """

    def merged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of the model as it was before `apply` that compute the same; both by name in TaskModel.

        An export, and a run that starts from this run's weights, knows nothing of the adapter. Raises UserError if
        there are no such weights.
        """
