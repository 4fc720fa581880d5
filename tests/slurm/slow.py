"""A method of a user's own whose steps last as long as the environment says, on any machine."""

import os
import time
from collections.abc import Mapping

from torch import Tensor

from nlu.data.collate import Batch
from nlu.methods.method import Autocast
from nlu.methods.plain import Plain
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task

STEP_S = "NLU_TEST_STEP_S"


class Slow(Plain):
    """The gradient of the task's own loss, after a sleep."""

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Mapping[str, float | Tensor], autocast: Autocast
    ) -> dict[str, Tensor]:
        time.sleep(float(os.environ.get(STEP_S, "0")))
        return super().backward(task, model, batch, scale, autocast)
