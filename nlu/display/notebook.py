"""Live output below a cell of a Jupyter notebook."""

import io
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType

WIDTH = 100
"""characters of a line"""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, whose output may be replaced."""
    # A terminal's IPython has another shell. Nothing is imported here: a kernel has imported it.
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class CellOutput:
    """Text below the running cell, which is drawn again in the same place, as `rich.live.Live` does on a terminal."""

    def __init__(self, render: Callable[[], RenderableType]):
        self._render = render
        self._handle: Any = None
        self.refresh()

    def refresh(self) -> None:
        drawn = io.StringIO()
        Console(file=drawn, width=WIDTH, color_system=None, force_jupyter=False).print(self._render())
        text = {"text/plain": drawn.getvalue().rstrip()}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(text, raw=True, display_id=True)
        else:
            self._handle.update(text, raw=True)

    def stop(self) -> None:
        self.refresh()
