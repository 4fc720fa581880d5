"""Real files and real stores for the tests of the data package."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.data.dataset import Files
from nlu.data.folds import Fold
from nlu.data.opening import Store
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
from nlu.data.tokenizing import WordPiece


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file of the test's own and return its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


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
