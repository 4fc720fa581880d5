"""The contract of adapters."""

from typing import Protocol

from torch import Tensor

from nlu.models.task_model import TaskModel


class Adapter(Protocol):
    """Changes a model after its pretrained weights were loaded, so that few parameters are trained.

    The constructor takes the options by keyword. A run applies the adapter once, before the optimizer is built. When a
    checkpoint of the run is loaded, the adapter is applied before the weights are. So checkpoints, the moving average
    and the optimizer's state contain the adapter's parameters like all others.
    """

    def apply(self, model: TaskModel) -> None:
        """Change the model in place: add modules, and freeze other parameters by `requires_grad_(False)`.

        The names of parameters must be the same in each process. New weights are drawn from torch's generator, which
        has the run's seed. Raises UserError if an option does not fit the model.
        """

    def merged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return equivalent weights of the model without the adapter; both are by name in TaskModel.

        They are used by exports and by runs that start from this run's weights. Raises UserError if such weights do not
        exist.
        """
