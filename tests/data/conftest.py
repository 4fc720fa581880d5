"""Real files and real stores for the tests of the data package."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.commands.data import main
from nlu.data.dataset import Files
from nlu.data.folds import Fold
from nlu.data.opening import Store
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.tokenizing import WordPiece
from nlu.display import survey_tables

Survey = Callable[..., dict[str, Any]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file of the test's own and return its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Survey:
    """Run nlu.data with these arguments and return the record that its tables and its page show."""
    found: list[dict[str, Any]] = []

    def run(*arguments: str) -> dict[str, Any]:
        with monkeypatch.context() as patched:
            patched.setattr(survey_tables, "print_survey", found.append)
            assert main([*arguments, "--out", str(tmp_path / f"page-{len(found)}.html")]) == 0
        return found[-1]

    return run


@pytest.fixture
def open_files() -> Callable[..., Store]:
    """Prepare a store of the given files, single texts unless said otherwise, with a vocabulary of all their words."""

    def opened(
        layout: str | tuple[str, ...] = "single", target: str | None = None, tokenizing: WordPiece | None = None,
        vocab: Path | None = None, group_by: str | int | None = None, fold: Fold | None = None,
        **settings: Any,
    ) -> Store:  # fmt: skip
        if layout == "single" and settings.get("format") != "lines":
            settings.setdefault("fields", {"text": 0, "label": 1})
        given: dict[str, Any] = {
            key: str(value) if isinstance(value, Path) else value for key, value in settings.items()
        }
        files = Files(**given)
        target = target or f"nlu.data.targets.{'Tags' if layout == 'units' else 'Classes'}"
        layouts = (layout,) if isinstance(layout, str) else layout
        plan = plan_of(
            files, tokenizing or WordPiece(min_count=1), target, layouts, pretrained=None, vocab=vocab,
            group_by=group_by,
        )  # fmt: skip
        return prepare(plan, fold=fold)

    return opened


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing was stored before this test."""
    folder = tmp_path / "empty_cache"
    monkeypatch.setenv("NLU_CACHE", str(folder))
    return folder
