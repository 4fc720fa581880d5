"""The run that is served: which of its checkpoints, and whether a newer one is there."""

import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import CheckpointError
from nlu.config.inference import Serve
from nlu.inference.locate import LABELS, Located, locate
from nlu.inference.mistakes import Mistakes
from nlu.inference.predictor import Predictor
from nlu.inference.rows import alternatives_of
from nlu.inference.trained import Trained, load_trained
from nlu.metrics.kinds import SpanKind
from nlu.runs.checkpoint import SCORE
from nlu.training.ranks import choose_device

log = logging.getLogger(__name__)

MOST_TRIES = 3
LONGEST_WAIT_S = 600.0
"""before a checkpoint that could not be loaded is tried again"""
Mark = tuple[str, int, int]
"""what a checkpoint is known by: its place, and the file that each save replaces"""


@dataclass
class Served:
    """A checkpoint in memory. Only the model's thread may use `predictor` and what `mistakes` gives."""

    predictor: Predictor
    mark: Mark
    _mistakes: Mistakes | None = None
    _search: "Generator[None, None, Mistakes] | None" = None
    """under way"""

    @property
    def trained(self) -> Trained:
        return self.predictor.trained

    def mistakes(self) -> "Generator[None, None, Mistakes]":
        """Find the mistakes of the run on its evaluation set, in parts; they are kept from the first time on.

        Several explanations that want them at the same time do parts of one search, which continues where one of them
        ends.
        """
        while self._mistakes is None:
            self._search = self._search or Mistakes.of(self.predictor)
            try:
                next(self._search)
            except StopIteration as end:
                self._mistakes = end.value
            except BaseException:
                self._search = None
                raise
            else:
                yield
        return self._mistakes

    def about(self) -> dict[str, Any]:
        """Return what a client must know to ask and to read the answers."""
        trained, kind = self.trained, self.trained.kind
        fields = trained.config.data["fields"] or {}
        return {
            "run": trained.located.run_dir.name, "checkpoint": trained.located.checkpoint.name, "kind": kind.name,
            "labels": _types(trained.labels) if isinstance(kind, SpanKind) else trained.labels,
            "scores": kind.has_probabilities,
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
        self._told = ""
        self._failed: Mark | None = None
        """the checkpoint that could not be loaded, the time until it is tried again, and when that is"""
        self._wait_s = self._again_s = 0.0
        self.served = self._load()

    def renew(self, count: Callable[[], None]) -> None:
        """Load the checkpoint again if it has changed; requests under way keep the one they began with.

        Calls `count` if it did, before the first answer of the new one. A checkpoint that cannot be loaded, such as one
        that is just being replaced, is tried again, each time after twice the wait: loading reads all of it. The reason
        is logged once.
        """
        mark: Mark | None = None
        try:
            mark = _mark(locate(self._config.run, self._config.checkpoint))
            if mark == self.served.mark or (mark == self._failed and time.monotonic() < self._again_s):
                return
            loaded = self._load()
        # Whatever is wrong with a newer checkpoint, the one that is served stays.
        except Exception as error:
            if mark is not None:
                self._wait_s = min(
                    LONGEST_WAIT_S, 2 * (self._wait_s if mark == self._failed else self._config.reload_s)
                )
                self._failed, self._again_s = mark, time.monotonic() + self._wait_s
            if (reason := f"{type(error).__name__}: {error}") != self._told:
                self._told = reason
                log.warning("reload: not now, the former checkpoint stays: %s", reason)
            return
        count()
        self.served, self._told, self._failed = loaded, "", None
        log.info("reload: %s", self.served.trained.located.checkpoint)

    def _load(self) -> Served:
        for _ in range(MOST_TRIES):
            located = locate(self._config.run, self._config.checkpoint)
            mark = _mark(located)
            predictor = Predictor(load_trained(located), self._device, batch_size=self._config.batch_size)
            # What was replaced while it was read may be half of one checkpoint and half of another.
            if _mark(located) == mark:
                break
        else:
            raise CheckpointError(f"{located.checkpoint} was replaced {MOST_TRIES} times while it was read; try again")
        # The first row takes much longer than any other; no client is to wait for that.
        predictor.try_out()
        return Served(predictor, mark)


def _mark(located: Located) -> Mark:
    path: Path = located.checkpoint / SCORE
    known = (path if path.is_file() else located.checkpoint / LABELS).stat()
    return str(located.checkpoint.resolve()), known.st_ino, known.st_mtime_ns
