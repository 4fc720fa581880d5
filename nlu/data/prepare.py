"""Raw files to an opened data store: found by its fingerprint, here or in shared storage, or built."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from nlu.data.building import Builder, gc_frozen
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.findings import Finding
from nlu.data.first_rows import Sample
from nlu.data.folds import Fold
from nlu.data.layouts import LAYOUTS
from nlu.data.opening import Store, meta_of, open_sets, open_store
from nlu.data.reading import Reading, Texts, fields_of, layout_of, refuse_header_as_row, texts_for_vocabulary
from nlu.data.store import StoreDamaged
from nlu.data.store_plan import Plan
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer
from nlu.storage.cache import staging_folder
from nlu.storage.files import write_text
from nlu.storage.settle import is_whole, settle

log = logging.getLogger(__name__)

ProgressBar = Callable[[str], AbstractContextManager[Callable[[int], None]]]


def quiet(description: str) -> AbstractContextManager[Callable[[int], None]]:
    """Replace a progress bar without terminal."""
    return nullcontext(lambda rows: None)


def prepare(plan: Plan, progress: ProgressBar = quiet, fold: Fold | None = None, seed: int = 1) -> Store:
    """Open the store of a plan; build it first if it does not exist.

    `fold` is held out of the training rows as the dev set; `seed` draws the rows of data.rows_per_class. Two processes
    may build the same store at once; one of the two identical results is kept. A damaged store is built again. Raises
    DataError for anything in the files that cannot be used; no incomplete store is left behind.
    """

    # Reading rows has changed the target, so a second build needs a new one.
    def begin_again() -> None:
        plan.target = type(plan.target)(plan.files)

    store = _found_or_built(plan, lambda folder: open_store(folder, plan, fold, seed), begin_again, progress)
    train = store.sets["train"].stored
    _add_digests(store, plan, {name: "train" if part.stored is train else name for name, part in store.sets.items()})
    return store


def first_rows(plan: Plan, count: int, progress: ProgressBar = quiet) -> list[Sample]:
    """Return the first `count` rows of each set that has files, as they are in the store of the plan."""
    store = prepare(plan, progress)
    # Rows that are held out of train are in its stored set.
    names = [name for name in plan.sets if name in store.sets]
    for name in names:
        for finding in store.meta["sets"][name].get("findings", ()):
            log.warning("data: %s: %s", name, Finding(**finding))
    reading = plan.reading.by(store.tokenizer)
    return [
        Sample(
            name,
            store.sets[name].stored,
            count,
            Texts(reading, plan.sets[name], plan.layout),
            store.target,
            plan.layout,
            store.tokenizer,
        )
        for name in names
    ]


def prepare_scoring(
    files: Files,
    names: Sequence[str],
    target: Target,
    layout: str,
    tokenizer: Tokenizer,
    *,
    group_by: str | int | None = None,
    progress: ProgressBar = quiet,
) -> Store:
    """Open a store of only the sets in `names`, for weights that were trained for this target, layout and tokenizer.

    All rows of a set take part. Raises DataError as `prepare` does, also for a label that the target lacks.
    """
    sets = files.sets(names)
    target.read_as(files)
    roles = type(target).roles
    first = next(iter(sets.values()))
    fields = fields_of(files, first, roles)
    chosen = layout_of(fields, [LAYOUTS[layout].name], roles, files, first)
    if files.layout is None:
        chosen = LAYOUTS[layout]
    reading = Reading.of(files, fields, group_by)
    plan = Plan(files, sets, reading, chosen, target, tokenizer, None, is_trained=True)

    def open_it(folder: Path) -> Store:
        meta = meta_of(folder)
        parts = {}
        for name, stored in open_sets(folder, meta).items():
            texts = Texts(reading.by(tokenizer), sets[name], plan.layout)
            parts[name] = Examples(name, stored, np.arange(len(stored)), target, plan.layout, texts)
        return Store(folder, parts, target, plan.layout, tokenizer, meta)

    store = _found_or_built(plan, open_it, lambda: None, progress)
    _add_digests(store, plan, {name: name for name in sets})
    return store


def _found_or_built(
    plan: Plan, open_it: Callable[[Path], Store], begin_again: Callable[[], None], progress: ProgressBar
) -> Store:
    """Open the store of a plan; build it if it is absent or damaged."""
    folder = plan.folder()
    if is_whole(folder):
        log.info("data store %s: found", folder)
    # The cheapest source first: this machine, then the bucket, then building.
    elif plan.shared is None or not plan.shared.fetch(folder.name, folder):
        _build(folder, plan, progress)
    try:
        store = open_it(folder)
    except StoreDamaged as error:
        log.warning("data store: %s; it is built again", error)
        begin_again()
        _build(folder, plan, progress)
        store = open_it(folder)
    # Also a store that was found here: it may have been built before `stores` was set.
    if plan.shared is not None:
        plan.shared.push(folder.name, folder)
    return store


def _add_digests(store: Store, plan: Plan, origins: dict[str, str]) -> None:
    """Set the digest of each set: its content and the rows that take part. `origins` names the set of its files."""
    for name, part in store.sets.items():
        # Only of the files of this set: a new test file must not change the digest of train.
        shaped_by = plan.fingerprint({origins[name]: plan.sets[origins[name]]})
        store.digests[name] = hashlib.sha256(shaped_by.encode() + part.rows_N.tobytes()).hexdigest()[:24]


def _build(folder: Path, plan: Plan, progress: ProgressBar) -> None:
    refuse_headers(plan)
    with staging_folder() as staging, gc_frozen():
        new = staging / "store"
        # A vocabulary must be complete before the first row is encoded, so the training rows are read twice.
        new.mkdir()
        _look(plan)
        tokenizer = _tokenizer_of(plan, progress)
        builder = Builder(plan, tokenizer)
        for name in plan.sets:
            with progress(f"tokenizing {name}") as advance:
                builder.add_set(new / name, name, advance)
        tokenizer.save(new)
        write_meta(new, plan, builder)
        # `is_good` reads the store at this place, so one with a damaged shard is replaced although it is marked.
        settle(new, folder, is_good=is_good)
        log.info("data store %s: built", folder)


def _look(plan: Plan) -> None:
    """Show the target the first training rows, which may decide what its values mean and what the units are."""
    if plan.is_trained or not type(plan.target).looks:
        return
    reading = plan.reading.by(plan.tokenizer)
    plan.layout = plan.target.look(plan.layout, reading.first_values(plan.sets["train"], plan.layout))


def refuse_headers(plan: Plan) -> None:
    """Raise DataError for a file whose header would be read as a row."""
    labels = plan.target.names if plan.is_trained else plan.files.labels
    for sources in plan.sets.values():
        for source in sources:
            refuse_header_as_row(plan.reading, source, labels)


def _tokenizer_of(plan: Plan, progress: ProgressBar) -> Tokenizer:
    if plan.tokenizer is not None:
        return plan.tokenizer
    assert plan.tokenizing is not None, "a plan has a tokenizer or a way to build one"
    with progress("vocabulary") as advance:
        texts = texts_for_vocabulary(plan.reading, plan.sets["train"], plan.layout, advance)
        return plan.tokenizing.build(texts)


def write_meta(new: Path, plan: Plan, builder: Builder) -> None:
    """Write meta.json about the sets that are written."""
    meta = {
        "target": plan.target.meta(),
        "remap": plan.target.remap,
        "sets": {name: builder.counts[name] for name in plan.sets if name in builder.counts},
        "files": {name: [source.name for source in sources] for name, sources in plan.sets.items()},
        "max_len": plan.files.max_len,
        "layout": plan.layout.key,
        "fields": plan.reading.fields,
    }
    write_text(new / "meta.json", json.dumps(meta, ensure_ascii=False, indent=1))


def is_good(folder: Path) -> bool:
    """Return whether a store is complete and has the rows that were written."""
    try:
        if is_whole(folder):
            open_sets(folder, meta_of(folder))
            return True
    except StoreDamaged:
        pass
    return False
