"""The checkpoint that is served, and its replacement by a newer one."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nlu.config.command_keys import Serve
from nlu.config.errors import CheckpointError
from nlu.inference.input_rows import alternatives_of
from nlu.inference.locate import LABELS, Located, locate
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained, load_trained
from nlu.metrics.kinds import SpanKind
from nlu.runs.checkpoint import SCORE
from nlu.training.ranks import choose_device

log = logging.getLogger(__name__)

MOST_TRIES = 3
LONGEST_WAIT_S = 600.0
"""the longest pause before a checkpoint that could not be loaded is tried again"""
Mark = tuple[str, int, int]
"""identifies a checkpoint: its path, and the inode and time of a file that each save replaces"""


@dataclass
class Served:
    """A checkpoint in memory. Only the thread of the model may use `predictor`."""

    predictor: Predictor
    mark: Mark

    @property
    def trained(self) -> Trained:
        return self.predictor.trained

    def about(self) -> dict[str, object]:
        """Return what a client must know to send requests and read the answers."""
        trained, kind = self.trained, self.trained.kind
        fields = trained.config.data.get("fields") or {}
        return {
            "run": trained.located.run_dir.name,
            "checkpoint": trained.located.checkpoint.name,
            "kind": kind.name,
            "labels": _types(trained.labels) if isinstance(kind, SpanKind) else trained.labels,
            "scores": kind.has_probabilities,
            "fields": [list(roles) for roles in alternatives_of(trained)],
            "columns": {role: name for role, name in fields.items() if isinstance(name, str)},
            "max_len": trained.lengths.max_len,
            "compares": trained.layout.name == "sides",
            "long": trained.lengths.long,
        }


def _types(tags: list[str]) -> list[str]:
    return [tag[2:] for tag in tags if tag.startswith("B-")]


class Newest:
    """The newest checkpoint that the configuration names."""

    def __init__(self, config: Serve, run: str, share: Callable[[Predictor], None] | None = None):
        """Load it. `run`: which of the configuration's runs; `share`: lets each of its checkpoints hold the weights of
        another run. Raises UserError if it does not exist."""
        self._config, self._run, self.share = config, run, share
        self._device = choose_device(config.device, 0, keys="")
        self._logged = ""
        """the last reason why loading failed"""
        self._failed: Mark | None = None
        """the checkpoint that could not be loaded"""
        self._wait_s = self._again_s = 0.0
        """the pause before it is tried again, and the end of that pause"""
        self.served = self._load()

    def renew(self, count: Callable[[], None]) -> None:
        """Load the checkpoint again if it has changed. Current requests finish with the old one.

        Calls `count` after loading, before the first answer of the new checkpoint. A checkpoint that cannot be loaded,
        such as one that is just being replaced, is tried again after a pause that doubles each time, because loading
        reads the whole checkpoint. The reason is logged once.
        """
        mark: Mark | None = None
        try:
            mark = _mark(locate(self._run, self._config.checkpoint))
            if mark == self.served.mark or (mark == self._failed and time.monotonic() < self._again_s):
                return
            loaded = self._load()
        # If a newer checkpoint fails in any way, the old one is served further.
        except Exception as error:
            if mark is not None:
                self._wait_s = min(
                    LONGEST_WAIT_S, 2 * (self._wait_s if mark == self._failed else self._config.reload_s)
                )
                self._failed, self._again_s = mark, time.monotonic() + self._wait_s
            if (reason := f"{type(error).__name__}: {error}") != self._logged:
                self._logged = reason
                log.warning("reload: the newer checkpoint cannot be loaded yet, the old one stays: %s", reason)
            return
        # Requests that are running keep the object they began with, so replacing it needs no lock: assigning an
        # attribute is atomic.
        count()
        self.served, self._logged, self._failed = loaded, "", None
        log.info("reload: %s", self.served.trained.located.checkpoint)

    def _load(self) -> Served:
        for _ in range(MOST_TRIES):
            located = locate(self._run, self._config.checkpoint).of_head(self._config.head_name)
            mark = _mark(located)
            trained = load_trained(located, precision=self._config.precision, long=self._config.long)
            predictor = Predictor(
                trained, self._device, batch_size=self._config.batch_size, owns=True, compile=self._config.compile
            )
            # If a checkpoint is replaced while it is read, the result may mix both.
            if _mark(located) == mark:
                break
        else:
            raise CheckpointError(f"{located.checkpoint} was replaced {MOST_TRIES} times while it was read; try again")
        if self.share is not None:
            self.share(predictor)
        # The first prediction is much slower than later ones, so it is done before any client waits.
        predictor.try_out()
        return Served(predictor, mark)


def _mark(located: Located) -> Mark:
    path: Path = located.checkpoint / SCORE
    # score.json is in best checkpoints only; `last` has labels.json. Each save writes a new file, so their inode
    # changes.
    known = (path if path.is_file() else located.checkpoint / LABELS).stat()
    return str(located.checkpoint.resolve()), known.st_ino, known.st_mtime_ns
