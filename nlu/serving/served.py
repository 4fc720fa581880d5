"""The run that is served: which of its checkpoints, and whether a newer one is there."""

import logging
import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.inference import Serve
from nlu.inference.columns import Kind, kind_of
from nlu.inference.locate import LABELS, Located, locate
from nlu.inference.mistakes import Mistakes
from nlu.inference.predictor import Predictor
from nlu.inference.rows import alternatives_of
from nlu.inference.trained import Trained, load_trained
from nlu.runs.checkpoint import SCORE
from nlu.training.ranks import choose_device

log = logging.getLogger(__name__)

Mark = tuple[str, int, int]
"""what a checkpoint is known by: its place, and the file that each save replaces"""


@dataclass
class Served:
    """A checkpoint in memory. Only the model's thread may use `predictor` and `mistakes`."""

    predictor: Predictor
    mark: Mark
    _kept: list[Mistakes] = field(default_factory=list)

    @property
    def trained(self) -> Trained:
        return self.predictor.trained

    @cached_property
    def kind(self) -> Kind:
        return kind_of(self.trained)

    @property
    def mistakes(self) -> Mistakes:
        """The mistakes of the run on its evaluation set, encoded when they are first asked for."""
        if not self._kept:
            self._kept.append(Mistakes(self.predictor))
        return self._kept[0]

    def about(self) -> dict[str, Any]:
        """Return what a client must know to ask and to read the answers."""
        trained = self.trained
        fields = trained.config.data["fields"] or {}
        return {
            "run": trained.located.run_dir.name, "checkpoint": trained.located.checkpoint.name, "kind": self.kind,
            "labels": _types(trained.labels) if self.kind == "spans" else trained.labels,
            "fields": [list(roles) for roles in alternatives_of(trained)],
            "columns": {role: name for role, name in fields.items() if isinstance(name, str)},
            "max_len": trained.config.data["max_len"],
        }  # fmt: skip


def _types(tags: list[str]) -> list[str]:
    return [tag[2:] for tag in tags if tag.startswith("B-")]


class Newest:
    """The checkpoint that the configuration names, as it is now."""

    def __init__(self, config: Serve):
        """Load it. Raises UserError where there is none."""
        self._config = config
        self._device = choose_device(config.device, 0, keys="")
        self._lock = threading.Lock()
        self.served = self._load(locate(config.run, config.checkpoint))

    def renew(self) -> bool:
        """Load the checkpoint anew where it is another by now; requests under way keep the one they began with.

        Returns whether it did. What cannot be read now, such as a checkpoint that is just being replaced, is tried
        again the next time.
        """
        with self._lock:
            try:
                located = locate(self._config.run, self._config.checkpoint)
                if _mark(located) == self.served.mark:
                    return False
                self.served = self._load(located)
            except (UserError, OSError) as error:
                log.info("reload: not now: %s", error)
                return False
            log.info("reload: %s", located.checkpoint)
            return True

    def _load(self, located: Located) -> Served:
        # Taken before it is read: what is replaced meanwhile is loaded again.
        mark = _mark(located)
        predictor = Predictor(load_trained(located), self._device, batch_size=self._config.batch_size)
        # The first row takes much longer than any other; no client is to wait for that.
        first = dict.fromkeys(alternatives_of(predictor.trained)[-1], "a")
        predictor.predict(predictor.encode([first]))
        return Served(predictor, mark)


def _mark(located: Located) -> Mark:
    path: Path = located.checkpoint / SCORE
    known = (path if path.is_file() else located.checkpoint / LABELS).stat()
    return str(located.checkpoint.resolve()), known.st_ino, known.st_mtime_ns
