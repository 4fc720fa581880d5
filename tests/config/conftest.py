"""A configuration tree and a package of targets of the tests' own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nlu.config.targets import trust

FILES = {
    "conf/job.yaml": """
defaults:
  - model: small
  - task: ???
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none
seed: 1
name: ???
trainer:
  batch_size: 32
  max_duration: 3ep
  log_interval: 10st
trusted_packages: [shop]
hydra:
  run: {dir: "."}
  sweep: {dir: ".", subdir: "${hydra:job.num}"}
  output_subdir: null
  help:
    template: The help of this program.
""",
    "conf/hydra/sweeper/basic.yaml": """
_target_: hydra_plugins.grid_sweeper.grid_sweeper.GridSweeper
params: null
""",
    "conf/model/small.yaml": "_target_: shop.models.Model\nhidden_size: 8\nname: ${name}\n",
    "conf/model/large.yaml": "_target_: shop.models.Model\nhidden_size: 800\nlayers: 24\n",
    "conf/task/classify.yaml": "_target_: shop.models.Task\n",
    "conf/task/tag.yaml": "_target_: shop.models.Task\nlabels: [a, b]\n",
    "shop/__init__.py": "",
    "shop/schema.py": '''
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nlu.config.schema import Trainer
from nlu.config.types import NonNegativeInt

@dataclass(kw_only=True)
class Job:
    """The keys
    of a job.

    More."""

    kinds: ClassVar[int] = 2
    seed: NonNegativeInt = 1
    name: str
    trusted_packages: list[str] = field(default_factory=list)
    later: int = field(init=False)
    task: Any
    model: Any
    trainer: Trainer
''',
    "shop/base.py": '''
from nlu.config.types import PositiveInt, Probability

class Base:
    """A base."""

    def __init__(self, labels, *, hidden_size: PositiveInt = 8, dropout: "Probability | None" = None):
        pass
''',
    "shop/models.py": '''
from typing import Any

from nlu.config.types import PositiveFloat, PositiveInt
from .base import Base
from shop.base import Base as Ancestor

class Model:
    """A model."""

    def __init__(self, labels, *, hidden_size: PositiveInt = 8, layers: PositiveInt = 2, name: str | None = None,
                 head: Any = None):
        pass

class Heir(Base):
    pass

class Extended(Ancestor):
    def __init__(self, labels, *, width: float, **others):
        super().__init__(labels, **others)

class Open:
    def __init__(self, **anything):
        pass

class Task:
    def __init__(self, *, labels: list[str] = []):
        pass

def make(*, rate: PositiveFloat):
    """Makes."""
''',
    "store/__init__.py": "",
    "store/parts.py": """
class Part:
    def __init__(self, *given, size, tags=()):
        self.given, self.size, self.tags = given, size, tags
""",
    "store/broken.py": "import a_package_that_is_missing\n\nclass Part: pass\n",
}


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with `conf`, the package `shop` and the package `store`."""
    root = tmp_path_factory.mktemp("tree")
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(autouse=True, scope="session")
def importable(tree: Path) -> Iterator[None]:
    """Put the packages of the tree on the import path."""
    sys.path.insert(0, str(tree))
    trust({"trusted_packages": ["shop"]})
    yield
    sys.path.remove(str(tree))
