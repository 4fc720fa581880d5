"""The default head of a task."""


class Auto:
    """The task's default: a linear layer or, for two separately encoded texts, the comparison that the loss needs."""

    def __init__(self) -> None:
        """No options. The run replaces this head with the task's choice before anything is built."""
