"""A store whose training rows are read by runs while they are written: the writer, and the store that a run opens.

`data.stream` changes neither the name nor the bytes of the store. What a run needs before the first row is written
first: the tokenizer and the sets that are scored. Once all parts are written, the last job makes the store of them.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.durations import Clock, Duration
from nlu.config.errors import DataError, UserError
from nlu.config.words import counted
from nlu.data.building import Builder, gc_frozen
from nlu.data.dataset import SourceFile
from nlu.data.examples import Examples
from nlu.data.growing import Growth, PartWriter
from nlu.data.growing_set import PAUSE_S, GrowingExamples, GrowingSet, Watch
from nlu.data.opening import Meta, Store, meta_of, open_sets
from nlu.data.order import Order
from nlu.data.plan import LISTED_GROUPS, Plan
from nlu.data.prepare import Part, ProgressBar, is_good, quiet, write_meta
from nlu.data.reading import Texts, refuse_header_as_row
from nlu.data.reusing import CUT, Reuse
from nlu.data.shards import StoreDamaged, mapped
from nlu.data.sharing import Chunks
from nlu.data.store import SetWriter, StoredSet
from nlu.data.tokenizing import load_tokenizer
from nlu.storage.cache import staging_folder
from nlu.storage.locks import Locked
from nlu.storage.settle import is_whole, settle

log = logging.getLogger(__name__)

LISTED_BAD_ROWS = 20


def require_streamed(plan: Plan) -> None:
    """Raise UserError for a plan that needs all training rows before the first step."""
    if not type(plan.target).streams:
        raise UserError(
            f"data.stream is true, but {type(plan.target).__name__} needs all training rows before the first step; set "
            "data.stream=false, or task=mlm"
        )
    if plan.tokenizer is None:
        raise UserError(
            "data.stream is true, but the vocabulary would be built from all training rows; set tokenizer.vocab to a "
            "file, or model.pretrained to weights that have one"
        )


def write_stream(plan: Plan, part: Part, command: str, progress: ProgressBar = quiet) -> bool:
    """Write one part of the training rows, shard by shard; returns whether the store is complete.

    `command` continues this after a kill. The first part also writes what runs need before; the part that is complete
    last makes the store. Raises DataError as `prepare` does, and UserError for a part that another process writes.
    """
    require_streamed(plan)
    folder, growth = plan.folder(), Growth(plan.folder().name, plan.shared)
    if is_whole(folder) or (plan.shared is not None and plan.shared.fetch(folder.name, folder)):
        # A job that was killed at its end, or that was not the last one on another machine, has left them.
        growth.clean()
        if growth.shared is not None:
            growth.shared.remove()
        return True
    shares = shared_out(plan.sets["train"], part.count)
    growth.begin(part.count)
    try:
        with growth.hold(part.number), gc_frozen():
            _write(plan, shares, part, growth, command, progress)
    except Locked:
        raise UserError(
            f"part {part.number} of {part.count} of the data store {folder.name} is being written by another process; "
            "it needs no second one"
        ) from None
    if growth.shared is not None and growth.shared.parts is not None and growth.shared.are_complete(part.count):
        growth.fetch(all_parts=True)
    if not growth.is_complete:
        return is_whole(folder)
    # Several jobs may have found that all parts are complete. The first one makes the store, and removes the parts.
    with growth.hold_join():
        if not is_whole(folder):
            _join(plan, growth, folder)
        # Before the parts are removed there, from which runs on other machines take their rows.
        if plan.shared is not None:
            plan.shared.push(folder.name, folder)
        growth.remove()
    return True


def shared_out(files: list[SourceFile], parts: int) -> list[list[SourceFile]]:
    """Cut the files into runs of neighbors of about equal size, one for each part.

    Raises UserError for fewer files than parts.
    """
    if len(files) < parts:
        raise UserError(
            f"data.parts is {parts}, but data.train has {counted(len(files), 'file')}, and with data.stream=true a "
            f"part has whole files; set data.parts={len(files)}, or split the files"
        )
    sizes_F = np.array([file.path.stat().st_size for file in files], np.float64)
    middles_F = np.cumsum(sizes_F) - sizes_F / 2
    # By the middle of each file, but never fewer files than parts are left, and at least one for each part.
    cuts = [0]
    for number in range(1, parts):
        wanted = int(np.searchsorted(middles_F, sizes_F.sum() * number / parts))
        cuts.append(min(max(wanted, cuts[-1] + 1), len(files) - (parts - number)))
    return [files[start:stop] for start, stop in zip(cuts, [*cuts[1:], len(files)], strict=True)]


def _write(
    plan: Plan, shares: list[list[SourceFile]], part: Part, growth: Growth, command: str, progress: ProgressBar
) -> None:
    """Write what is missing of a part, and before the first one what runs need before it."""
    plan.target.close()
    writer = None
    if not growth.continued(part.number).is_complete:
        writer = PartWriter(growth, part.number, plan.target.column(), command)

    @contextmanager
    def beating(what: str) -> Iterator[Callable[[int], None]]:
        with progress(what) as bar:

            def advance(rows: int) -> None:
                bar(rows)
                if writer is not None:
                    writer.beat()

            yield advance

    try:
        if part.number == 0:
            if not is_whole(growth.head):
                _write_head(plan, growth, beating)
            if growth.shared is not None:
                growth.shared.send_head(growth.head)
        if writer is not None:
            _write_part(plan, shares, part, growth, writer, beating)
    except DataError as error:
        if writer is not None:
            writer.fail(error)
        raise


def _write_head(plan: Plan, growth: Growth, progress: ProgressBar) -> None:
    """Write the tokenizer and all sets but train."""
    others = replace(plan, sets={name: sources for name, sources in plan.sets.items() if name != "train"})
    _refuse_headers(others)
    assert plan.tokenizer is not None, "streamed"
    with staging_folder() as staging:
        new = staging / "head"
        new.mkdir()
        builder = Builder(others, plan.tokenizer, _no_chunks(growth), plan.folder())
        for name in others.sets:
            with progress(f"tokenizing {name}") as advance:
                builder.add_set(new / name, name, advance)
        plan.tokenizer.save(new)
        write_meta(new, others, builder.counts, list(builder.groups), builder.reuse.meta(builder.file_rows))
        settle(new, growth.head)


def _write_part(
    plan: Plan, shares: list[list[SourceFile]], part: Part, growth: Growth, writer: PartWriter, progress: ProgressBar
) -> None:
    own = replace(plan, sets={"train": shares[part.number]})
    assert plan.tokenizer is not None, "streamed"
    _refuse_headers(own)
    builder = Builder(own, plan.tokenizer, _no_chunks(growth), plan.folder())
    what = "train" if part.count == 1 else f"part {part.number + 1} of {part.count} of train"
    with progress(f"tokenizing {what}") as advance:
        first_file = sum(map(len, shares[: part.number]))
        builder.add_set(writer.folder, "train", advance, (writer, first_file))
    writer.finish(builder.counts["train"], builder.file_rows["train"], list(builder.groups))
    log.info("data: %s: %s rows are written", what, f"{writer.rows:,}")


def _no_chunks(growth: Growth) -> Chunks:
    # Chunks of jobs that share the work by chunks have other numbers than those of a part.
    return Chunks(f"{growth.folder.name}-growing", None)


def _refuse_headers(plan: Plan) -> None:
    for sources in plan.sets.values():
        for source in sources:
            refuse_header_as_row(plan.reading, source, plan.files.labels)


def _join(plan: Plan, growth: Growth, folder: Path) -> None:
    """Make the store of complete parts, with the bytes of one that is built at once."""
    manifests = [one for one in growth.manifests() if one is not None]
    head = meta_of(growth.head)
    assert plan.tokenizer is not None, "streamed"
    with staging_folder() as staging:
        new = staging / "store"
        train = new / "train"
        parts = [growth.shards_of(number) for number in range(len(manifests))]
        if len(parts) == 1:
            _link(parts[0], train)
        else:
            writer = SetWriter(train, plan.target.column())
            for path in chain.from_iterable(sorted(part.glob("*.arrow")) for part in parts):
                writer.append(mapped(path))
            writer.close()
        rows = [sum(one.rows) for one in manifests]
        if not sum(rows):
            raise DataError("the set train is empty: its files hold no usable row; set data.train to files with rows")
        # The file of a single part has another name here, and must not be written again: a kill would damage both.
        if len(parts) > 1:
            cut = [
                np.unpackbits(np.load(one / CUT), count=count) for one, count in zip(parts, rows, strict=True) if count
            ]
            np.save(train / CUT, np.packbits(np.concatenate(cut).astype(bool)))
        counts: dict[str, Any] = {
            key: sum(one.counts[key] for one in manifests) for key in manifests[0].counts if key != "listed_bad_rows"
        }
        bad = chain.from_iterable(one.counts["listed_bad_rows"] for one in manifests)
        counts["listed_bad_rows"] = list(bad)[:LISTED_BAD_ROWS]
        file_rows = {"train": list(chain.from_iterable(one.file_rows for one in manifests))}
        for name in head["sets"]:
            _link(growth.head / name, new / name)
            file_rows[name] = [count for _, count in head["encoded"]["files"][name]]
        plan.tokenizer.save(new)
        groups = dict.fromkeys(chain(*(one.groups for one in manifests), head["groups"]))
        encoded = Reuse(plan, plan.tokenizer.digest, folder).meta(file_rows)
        write_meta(new, plan, {"train": counts, **head["sets"]}, list(groups)[:LISTED_GROUPS], encoded)
        settle(new, folder, is_good=is_good)
    log.info("data store %s: complete", folder)


def _link(folder: Path, new: Path) -> None:
    """Give the files of a folder a second name, which needs neither time nor space."""
    new.mkdir(parents=True)
    for path in folder.iterdir():
        try:
            os.link(path, new / path.name)
        except OSError:
            # Not every file system has links, and not every user may link the files of others.
            shutil.copyfile(path, new / path.name)


def has_begun(plan: Plan) -> bool:
    """Return whether a writer has written what `open_stream` needs, here or where stores are shared."""
    growth = Growth(plan.folder().name, plan.shared)
    growth.fetch()
    return is_whole(plan.folder()) or is_whole(growth.head)


def open_stream(plan: Plan) -> Store:
    """Open the store of a plan with the training rows that are there, as soon as the other sets are.

    The result does not depend on how many rows are there. Raises DataError if no process writes it.
    """
    require_streamed(plan)
    folder, growth = plan.folder(), Growth(plan.folder().name, plan.shared)

    def finished() -> Path | None:
        return folder / "train" if is_whole(folder) else None

    if finished() is None and plan.shared is not None:
        plan.shared.fetch(folder.name, folder)
    place, meta, scored = _scored_sets(folder, growth)
    target = type(plan.target).from_meta(meta["target"])
    tokenizer = plan.tokenizer or load_tokenizer(place, None)
    assert tokenizer is not None, "streamed"
    reading = plan.reading.by(tokenizer)
    origins = {name: Texts(reading, plan.sets[name], plan.layout) for name in plan.sets}
    train = GrowingSet(growth, finished)
    sets: dict[str, Examples] = {"train": GrowingExamples(train, target, plan.layout, origins["train"])}
    for name, stored in scored.items():
        sets[name] = Examples(name, stored, np.arange(len(stored)), target, plan.layout, origins[name])
    target.fit(train, sets["train"].rows_N, tokenizer)
    for name in scored:
        target.require_targets(name, sets[name].stored, sets[name].rows_N)
    meta["dropped_duplicates"] = 0
    store = Store(folder, sets, target, plan.layout, tokenizer, meta)
    for name, part in sets.items():
        rows = b"all rows" if name == "train" else part.rows_N.tobytes()
        shaped_by = plan.fingerprint({name: plan.sets[name]})
        store.digests[name] = hashlib.sha256(shaped_by.encode() + rows).hexdigest()[:24]
    return store


def _scored_sets(folder: Path, growth: Growth) -> tuple[Path, Meta, dict[str, StoredSet]]:
    """Wait for the sets that are scored; returns where they are, and what is written there of them."""
    watch = Watch(growth)
    while True:
        for place in filter(is_whole, (folder, growth.head)):
            try:
                meta = meta_of(place)
                meta["sets"] = {name: counts for name, counts in meta["sets"].items() if name != "train"}
                return place, meta, open_sets(place, meta)
            except StoreDamaged:
                # The head is removed when the store is complete.
                if is_whole(place) and (place == folder or not is_whole(folder)):
                    raise
        watch.wait_for("the sets that are scored, which nlu.preprocess writes first")
        time.sleep(PAUSE_S)


@dataclass(frozen=True)
class StreamClock(Clock):
    """The clock of a run that does not know how many examples an epoch has: every step counts as a whole one.

    The epoch of a step is the number of epochs before it, without a fraction. A duration cannot be in epochs.
    """

    order: Order

    def __init__(self, order: Order, examples_per_step: int):
        # 0: unknown
        super().__init__(0, examples_per_step)
        object.__setattr__(self, "order", order)

    def __post_init__(self) -> None:
        assert self.examples_per_step >= 1

    def examples(self, step: int) -> int:
        """Return the examples of `step` steps; the last step of an epoch may have had fewer."""
        return step * self.examples_per_step

    def epoch(self, step: int) -> float:
        """Return the number of epochs before the last of `step` steps, which were taken."""
        return float(self.order.epoch_of(step - 1)) if step else 0.0

    def steps(self, duration: Duration) -> int:
        """Return the smallest step, at least 1, at which `duration` is reached."""
        return (
            int(duration.amount)
            if duration.unit == "st"
            else max(1, ceil(self._in_examples(duration) / self.examples_per_step))
        )

    def least_examples(self, duration: Duration, times: int = 1) -> int:
        """Return the number of examples of `times` durations."""
        return times * int(duration.amount) * (self.examples_per_step if duration.unit == "st" else 1)

    def _in_examples(self, duration: Duration) -> Fraction:
        if duration.unit == "ep":
            raise UserError(
                f"{duration} counts epochs, whose length is unknown with data.stream=true; write steps, such as "
                "5000st, or examples (ex)"
            )
        return duration.exact
