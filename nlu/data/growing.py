"""Training while preprocessing runs: `nlu.preprocess data.stream=true` writes rows, and runs train on those there.

    CACHE/growing/FINGERPRINT/          the store while it is written: the sets that are scored first, then train
    CACHE/growing/FINGERPRINT/meta.json written before the first row of train
    CACHE/growing/FINGERPRINT.lock      held by the process that writes

The folder is renamed to its place among the stores when it is complete, so the store has the bytes of one that is built
at once. Rows are only added at the end, and a writer that was killed writes the same shards again.
"""

import hashlib
import logging
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM

import numpy as np
import pyarrow as pa

from nlu.config import stopping
from nlu.config.errors import DataError, UserError
from nlu.data.building import Builder, gc_frozen
from nlu.data.examples import Examples
from nlu.data.layouts import Layout
from nlu.data.opening import Store, meta_of, open_sets
from nlu.data.prepare import ProgressBar, is_good, quiet, refuse_headers, write_meta
from nlu.data.reading import Texts
from nlu.data.store import StoreDamaged, StoredSet, mapped
from nlu.data.store_plan import Plan
from nlu.data.targets import Target
from nlu.storage.cache import cache_dir
from nlu.storage.locks import Locked, hold_lock, is_locked
from nlu.storage.settle import is_whole, settle

log = logging.getLogger(__name__)

GONE_S = 600.0
"""after this time without a writer, a run ends"""
PAUSE_S = 1.0
"""between two looks at what was written"""
LOG_S = 60.0
Vote = Callable[[list[float]], list[float]]
"""returns the sum of each number over all processes of a run"""


class Growth:
    """Where a store is while it is written, and what a waiting process knows of its writer."""

    def __init__(self, plan: Plan):
        self.final = plan.folder()
        self.folder = cache_dir() / "growing" / self.final.name
        self.lock = self.folder.with_name(f"{self.folder.name}.lock")
        self._rows = -1
        self._seen_s = time.monotonic()
        self._logged_s = -math.inf

    @property
    def place(self) -> Path | None:
        """The folder that has the sets that are scored; None if it is not there yet."""
        if is_whole(self.final):
            return self.final
        return self.folder if (self.folder / "meta.json").is_file() else None

    def expect(self, what: str, rows: int = 0) -> None:
        """Log now and then what is waited for, given the number of rows that are there.

        Raises DataError if no process has written for GONE_S.
        """
        now_s, is_written = time.monotonic(), is_locked(self.lock)
        if is_written or rows != self._rows:
            self._rows, self._seen_s = rows, now_s
        command = "python -m nlu.preprocess data.stream=true with the data, task, model and tokenizer keys of this run"
        if now_s - self._seen_s >= GONE_S:
            raise DataError(
                f"waiting for {what}, but no process has written them for {GONE_S / 60:.0f} min; start {command}, and "
                "continue this run with resume=auto"
            )
        if now_s - self._logged_s >= LOG_S:
            self._logged_s = now_s
            log.info("waiting for %s%s", what, "" if is_written else f"; no process writes them: start {command}")


class GrowingExamples(Examples):
    """All training rows that were written so far."""

    is_growing = True

    def __init__(self, growth: Growth, vote: Vote, target: Target, layout: Layout, origin: Texts):
        super().__init__("train", StoredSet([]), np.zeros(0, np.int64), target, layout, origin)
        self.is_complete = False
        """whether there will be no more rows"""
        self._growth, self._vote = growth, vote
        self._shards: list[pa.RecordBatch] = []
        self._agreed: float = 0

    def wait(self, rows: int) -> None:
        """Wait until so many rows are there, or all are; every process of a run calls this with the same numbers.

        Raises Stopped in all of them if one is asked to stop meanwhile, DataError without a writer, and StoreDamaged
        for rows that cannot be read.
        """
        while rows > self._agreed:
            if len(self) < rows:
                self._look()
            is_missing = len(self) < rows and not self.is_complete
            # Each process sees rows, and hears of a signal, at a time of its own.
            missing, growing, asked = self._vote([float(is_missing), float(not self.is_complete), stopping.asked()])
            if not missing:
                self._agreed = rows if growing else math.inf
            elif asked:
                raise stopping.Stopped(stopping.received() or SIGTERM)
            else:
                if is_missing:
                    self._growth.expect(f"row {rows:,} of the set train: {len(self):,} are ready", len(self))
                time.sleep(PAUSE_S)

    def _look(self) -> None:
        """Take the rows that were written since the last look."""
        known = len(self._shards)
        while True:
            is_complete = is_whole(self._growth.final)
            folder = (self._growth.final if is_complete else self._growth.folder) / "train"
            try:
                while (path := folder / f"{len(self._shards):05d}.arrow").is_file():
                    self._shards.append(mapped(path))
                break
            except StoreDamaged:
                # The folder may have been renamed since.
                if is_complete or path.is_file():
                    raise
        self.is_complete = is_complete
        if len(self._shards) > known:
            self.stored = StoredSet(self._shards)
            self.rows_N, self.lengths_N = np.arange(len(self.stored)), self.stored.lengths_N


def write_stream(plan: Plan, progress: ProgressBar = quiet) -> None:
    """Build the store of a plan, unless it is there, where `open_stream` finds each shard as soon as it is written.

    Raises DataError as `prepare` does, and UserError if another process writes it.
    """
    growth, folder = Growth(plan), plan.folder()
    growth.folder.mkdir(parents=True, exist_ok=True)
    try:
        # A process that waits looks at this lock, and shares it for an instant.
        with hold_lock(growth.lock, wait_s=1, optional=True), gc_frozen():
            if not is_whole(folder) and not (plan.shared is not None and plan.shared.fetch(folder.name, folder)):
                _write(plan, growth.folder, progress)
                settle(growth.folder, folder, is_good=is_good)
                log.info("data store %s: built", folder)
            # What is left where the store came from elsewhere.
            shutil.rmtree(growth.folder, ignore_errors=True)
            growth.lock.unlink(missing_ok=True)
    except Locked:
        raise UserError(
            f"the data store {folder.name} is being written by another process; it needs no second one"
        ) from None


def _write(plan: Plan, new: Path, progress: ProgressBar) -> None:
    refuse_headers(plan)
    plan.target.close()
    assert plan.tokenizer is not None, "`stream_problems` requires a vocabulary"
    builder = Builder(plan, plan.tokenizer)
    for name in [*(name for name in plan.sets if name != "train"), "train"]:
        if name == "train":
            plan.tokenizer.save(new)
            write_meta(new, plan, builder)
        with progress(f"tokenizing {name}") as advance:
            builder.add_set(new / name, name, advance)
    write_meta(new, plan, builder)


def open_stream(plan: Plan, vote: Vote) -> Store:
    """Open the store of a plan as soon as it has the sets that are scored; its training rows may still be written.

    The result does not depend on how many rows are there. Raises DataError if no process writes it.
    """
    growth, folder = Growth(plan), plan.folder()
    if growth.place is None and plan.shared is not None:
        plan.shared.fetch(folder.name, folder)
    while (place := growth.place) is None:
        growth.expect("the sets that are scored, which nlu.preprocess writes first")
        time.sleep(PAUSE_S)
    try:
        return _opened(plan, growth, place, vote)
    except StoreDamaged:
        # The folder may have been renamed since.
        if place == folder or not is_whole(folder):
            raise
        return _opened(plan, growth, folder, vote)


def _opened(plan: Plan, growth: Growth, place: Path, vote: Vote) -> Store:
    meta = meta_of(place)
    meta["sets"] = {name: counts for name, counts in meta["sets"].items() if name != "train"}
    meta["dropped_duplicates"] = 0
    target = type(plan.target).from_meta(meta["target"])
    tokenizer = plan.tokenizer
    assert tokenizer is not None, "`stream_problems` requires a vocabulary"
    reading = plan.reading.by(tokenizer)
    origins = {name: Texts(reading, plan.sets[name], plan.layout) for name in plan.sets}
    train = GrowingExamples(growth, vote, target, plan.layout, origins["train"])
    sets: dict[str, Examples] = {"train": train}
    for name, stored in open_sets(place, meta).items():
        sets[name] = Examples(name, stored, np.arange(len(stored)), target, plan.layout, origins[name])
    target.fit(train.stored, train.rows_N, tokenizer)
    store = Store(growth.final, sets, target, plan.layout, tokenizer, meta)
    for name, part in sets.items():
        rows = b"all rows" if name == "train" else part.rows_N.tobytes()
        shaped_by = plan.fingerprint({name: plan.sets[name]})
        store.digests[name] = hashlib.sha256(shaped_by.encode() + rows).hexdigest()[:24]
    return store
