"""A real store for each test of a task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.data.dataset import Files
from nlu.data.prepare import Store, prepare
from nlu.data.tokenizing import WordPiece


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[..., Store]:
    """Open a store whose train and dev set are both the given file."""

    def opened(name: str, content: str, task: Any, **settings: Any) -> Store:
        path = tmp_path / name
        path.write_text(content)
        files = Files(train=str(path), dev=str(path), **settings)
        return prepare(files, WordPiece(), task.target, task.layouts, pretrained=None, vocab=None)

    return opened
