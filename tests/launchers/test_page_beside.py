"""The page of a search while the search runs: another process writes it, and no decision waits for that."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra_plugins.hyperband_sweeper import _board, _pages

from nlu.sweeps import page_process
from nlu.sweeps.page_process import PageProcess
from tests.few import first
from tests.launchers.test_pausing import World


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What searches say; their pages are due at any time."""
    lines: list[str] = []
    monkeypatch.setattr(_board.Board, "say", lambda self, text, style=None: lines.append(text))
    for name in ("EVERY_S", "SHARE", "NICE"):
        monkeypatch.setattr(_pages, name, 0)
    return lines


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[PageProcess]:
    """The processes that searches start for their pages."""
    processes: list[PageProcess] = []

    class Followed(PageProcess):
        def __init__(self, *arguments: Any, **named: Any):
            super().__init__(*arguments, **named)
            processes.append(self)

    monkeypatch.setattr(_pages, "PageProcess", Followed)
    return processes


def world_of(folder: Path, **options: Any) -> World:
    folder.mkdir()
    return World(folder, **options)


def after_each_page(monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    """Make a search wait for each page, and then call `look`."""
    update = _pages.Pages.update

    def waiting(self: _pages.Pages, read: Any) -> None:
        update(self, read)
        if self._process is not None:
            self._process.wait()
            look()

    monkeypatch.setattr(_pages.Pages, "update", waiting)


def test_a_search_decides_while_its_page_takes_longer_than_the_search(
    tmp_path: Path, said: list[str], begun: list[PageProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_process, "END_S", 0.1)
    expected = world_of(tmp_path / "without")
    expected.search()
    world, trained = world_of(tmp_path / "s"), []
    begun.clear()

    def stop() -> None:
        if begun and not trained:
            os.kill(begun[0].number, signal.SIGSTOP)
            trained.append(len(world.trained))

    world.search(stop)
    assert len(begun) == 1, "one at a time"
    assert trained[0] < len(world.trained) and world.outcome() == expected.outcome()
    assert begun[0].has_ended() and not list((tmp_path / "s").glob("summary/*"))
    assert not any(line.startswith("the page") for line in said), "it was ended, and has not failed"


@pytest.mark.thorough
def test_the_page_and_the_tables_are_there_while_a_search_runs(
    tmp_path: Path, said: list[str], begun: list[PageProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, world = [], world_of(tmp_path / "s", n_trials=3)
    after_each_page(monkeypatch, lambda: pages.append((world.folder / "summary" / "index.html").read_text()))
    world.search()
    assert len(pages) == len(begun) > 2
    counts = [re.search(r"(\d) trials?: ", page)[1] for page in pages]
    assert counts == sorted(counts) and {"1", "3"} <= set(counts)
    assert all("the search has not ended; as of" in page for page in pages)
    assert {path.name for path in world.folder.glob("summary/*")} == {"index.html", "trials.tsv", "decisions.tsv"}
    assert not any(line.startswith("the page") for line in said)


@pytest.mark.parametrize("steps_later", first(1, [3, 0]))
def test_ctrl_c_leaves_a_page_of_the_last_state_and_no_process(
    tmp_path: Path, said: list[str], begun: list[PageProcess], monkeypatch: pytest.MonkeyPatch, steps_later: int
) -> None:
    world, update, trained = world_of(tmp_path / "s"), _pages.Pages.update, []

    def interrupted(self: _pages.Pages, read: Any) -> None:
        update(self, read)
        if begun:
            trained.append(len(world.trained))
            if trained[-1] >= trained[0] + steps_later:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_pages.Pages, "update", interrupted)
    with pytest.raises(SystemExit) as end:
        world.search()
    assert end.value.code == 130 and said[-1].startswith("interrupted; ")
    assert len(begun) == (2 if steps_later else 1), "the first one shows this state, or an earlier one"
    assert all(process.has_ended() for process in begun)
    table = (world.folder / "summary" / "trials.tsv").read_text().splitlines()[1:]
    examples = [int(line.split("\t")[4]) for line in table if line.split("\t")[4]]
    assert sum(examples) == sum(trial.last_step or 0 for trial in world.trials())
