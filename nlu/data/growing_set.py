"""The training rows that were written so far, as a run reads them: see `nlu.data.growing`.

Axes: B rows that are asked for.
"""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nlu.config.errors import DataError
from nlu.data.arrays import starts_of
from nlu.data.examples import Examples
from nlu.data.growing import BEAT_S, Growth
from nlu.data.layouts import Layout
from nlu.data.reading import Texts
from nlu.data.shards import StoreDamaged, mapped
from nlu.data.store import StoredSet
from nlu.data.targets import Target

log = logging.getLogger(__name__)

GONE_S = 600.0
"""after this time without a sign of a writer, a run ends"""
PAUSE_S = 1.0
"""between two looks at what was written"""
LOG_S = 60.0
BEGINS = "python -m nlu.preprocess and the data, task, model and tokenizer keys of this run"
REMEDY = "correct them and start nlu.preprocess again, or set data.on_bad_row=skip in it and in this run"


class GrowingSet(StoredSet):
    """The rows that were written so far. Memory grows with the shards, and not with the rows.

    It is what an `Order` takes its windows from (`nlu.data.order.Manifest`).
    """

    def __init__(self, growth: Growth, finished: Callable[[], Path | None]):
        """`finished` returns the folder of the training rows in the finished store; None: it is not there yet."""
        self._growth, self._finished, self._watch = growth, finished, Watch(growth)
        self._final = {}
        self._paths: list[Path] = []
        self._take([])
        self.is_complete = False
        """whether there will be no more rows"""
        self.lengths_N: Any = _Lengths(self)
        self.refresh()

    def __len__(self) -> int:
        return self.rows

    def lengths(self, start: int, stop: int) -> np.ndarray:
        """Return the number of tokens of rows that are there; int32."""
        return self.counts("tokens", np.arange(start, stop)).astype(np.int32)

    def refresh(self) -> None:
        """Look for more rows. Raises StoreDamaged for shards that cannot be read."""
        while not self.is_complete:
            self._growth.fetch()
            paths, is_complete = self._written()
            # A second writer of a part, on another machine, may be behind the first one.
            if not is_complete and paths == self._paths[: len(paths)]:
                return
            known = len(self._paths) if paths[: len(self._paths)] == self._paths else 0
            try:
                batches = self._batches[:known] + [mapped(path) for path in paths[known:]]
            except StoreDamaged:
                # The job that finished last has put the rows into the store, and removed them here.
                if (folder := self._finished()) is None or paths[known].parent == folder:
                    raise
                continue
            self._paths, self.is_complete = paths, is_complete
            self._take(batches)
            # Where no job writes, none removes what was fetched.
            if is_complete and self._growth.shared is not None and self._finished() is not None:
                self._growth.clean()
            return

    def _written(self) -> tuple[list[Path], bool]:
        """Return the shards whose rows have their final numbers, in order, and whether they are all."""
        # Rows are there before they are removed from where they were written, so this is asked first and last.
        paths: list[Path] = []
        if self._finished() is None:
            manifests = self._growth.manifests()
            for part, manifest in enumerate(manifests):
                shards = 0 if manifest is None else len(manifest.rows)
                paths += [self._growth.shards_of(part) / f"{number:05d}.arrow" for number in range(shards)]
                if manifest is None or not manifest.is_complete:
                    break
            else:
                if manifests:
                    return paths, True
        if (folder := self._finished()) is not None:
            return sorted(folder.glob("*.arrow")), True
        return paths, False

    def _take(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches
        self._starts_S = starts_of(np.array(list(map(len, batches)), np.int64))
        self.rows = sum(map(len, batches))

    def wait(self, rows: int) -> None:
        """Wait until this number of rows is there, or all are. Raises DataError as `Watch.wait_for` does."""
        while not self.is_complete and self.rows < rows:
            self.expect(rows)
            time.sleep(PAUSE_S)
            self.refresh()

    def expect(self, rows: int) -> None:
        """Log now and then that rows are waited for. Raises DataError as `Watch.wait_for` does."""
        self._watch.wait_for(f"row {rows:,} of the set train: {self.rows:,} are ready")


class Watch:
    """What a waiting process knows of the writers."""

    def __init__(self, growth: Growth):
        self._growth = growth
        self._seen: list[object] = []
        self._seen_s = time.monotonic()
        self._logged_s = -math.inf

    def wait_for(self, what: str) -> None:
        """Log now and then what is waited for.

        Raises DataError for rows that a writer cannot use, and if there was no sign of a writer for GONE_S.
        """
        self._growth.fetch()
        manifests, now_s = self._growth.manifests(), time.monotonic()
        seen: list[object] = [
            *(None if one is None else (one.beat, len(one.rows)) for one in manifests),
            dict(self._growth.beats),
        ]
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        pending = [one for one in manifests if one is not None and not one.is_complete]
        if problems := [problem for one in pending for problem in one.problems]:
            raise DataError(*problems, summary=f"waiting for {what}, but nlu.preprocess has ended", remedy=REMEDY)
        command = next((one.command for one in pending if one.command), BEGINS)
        silent_s = now_s - self._seen_s
        if silent_s >= GONE_S:
            raise DataError(
                f"waiting for {what}, but nothing was written for {silent_s / 60:.0f} min; continue with {command}, "
                "and then this run with resume=auto"
            )
        if now_s - self._logged_s >= LOG_S:
            self._logged_s = now_s
            hint = "" if silent_s < 3 * BEAT_S and manifests else f"; no process writes: {command}"
            log.info("waiting for %s%s", what, hint)


class _Lengths:
    """The number of tokens of each row, computed for the rows that are asked for."""

    def __init__(self, stored: StoredSet):
        self._stored = stored

    def __getitem__(self, rows_B: "np.ndarray | _Same") -> "np.ndarray | _Lengths":
        if isinstance(rows_B, _Same):
            return self
        return self._stored.counts("tokens", rows_B).astype(np.int32)


class _Same:
    """The row of each example: its own number."""

    def __getitem__(self, examples_B: np.ndarray) -> np.ndarray:
        return examples_B


class GrowingExamples(Examples):
    """All rows of a growing set. Only examples that are there can be asked for."""

    is_growing = True

    def __init__(self, stored: GrowingSet, target: Target, layout: Layout, origin: Texts):
        same: Any = _Same()
        super().__init__("train", stored, same, target, layout, origin)

    def __len__(self) -> int:
        """Return how many are there now."""
        return len(self.stored)
