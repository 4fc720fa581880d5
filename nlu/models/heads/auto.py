"""The head that a task has where none is chosen."""


class Auto:
    """The task's own: a linear layer, or for two texts that are encoded apart what their loss compares them by."""

    def __init__(self) -> None:
        """No options. The run puts the task's choice in its place before anything is built."""
