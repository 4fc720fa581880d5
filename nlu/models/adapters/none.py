"""No adapter."""

from torch import Tensor

from nlu.config.keys import takes
from nlu.models import keys as schemas
from nlu.models.task_model import TaskModel


@takes(schemas.NoAdapter)
class NoAdapter:
    """All weights are trained, except those that `optimizer.freeze` names."""

    def apply(self, model: TaskModel) -> None:
        pass

    def merged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors
