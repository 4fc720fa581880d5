"""In a notebook progress is drawn below the cell, again and again in the same place."""

import sys
from types import SimpleNamespace

import pytest

from nlu.display.progress import Progress


def test_a_notebook_shows_progress_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown[0] = data["text/plain"]

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(data["text/plain"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with Progress() as progress:
        progress.start(4)
        progress.advance(3, loss=0.5)
    assert len(shown) == 1
    assert shown[0].startswith("train 3/4") and "loss 0.5" in shown[0]
