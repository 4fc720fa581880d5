"""No adapter."""

from torch import Tensor

from nlu.models.task_model import TaskModel


class NoAdapter:
    """All weights are trained, except those that `optimizer.freeze` names."""

    def __init__(self) -> None:
        """No options."""

    def apply(self, model: TaskModel) -> None:
        pass

    def merged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors
