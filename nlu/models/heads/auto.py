"""The default head of a task."""

from nlu.config.keys import takes
from nlu.models import keys as schemas


@takes(schemas.Auto)
class Auto:
    """The task's default: a linear layer or, for two separately encoded texts, the comparison that the loss needs.

    The run replaces this head with the task's choice before anything is built.
    """
