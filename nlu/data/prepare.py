"""Raw files to an opened data store: found by its fingerprint, here or where it is shared, or built."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nlu.config.targets import TARGET
from nlu.config.targets import build as build_target
from nlu.data.building import Builder
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.folds import Fold
from nlu.data.garbage import what_exists_is_not_collected
from nlu.data.layouts import LAYOUTS
from nlu.data.opening import Store, meta_of, open_sets, open_store
from nlu.data.parts import Chunks
from nlu.data.plan import Plan, plan_of
from nlu.data.reading import Reading, Texts, fields_of, layout_of, refuse_header_as_row, texts_for_vocabulary
from nlu.data.store import StoreDamaged
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer, WordPiece
from nlu.storage.cache import staging_folder
from nlu.storage.settle import is_whole, settle

log = logging.getLogger(__name__)

ProgressBar = Callable[[str], AbstractContextManager[Callable[[int], None]]]


def quiet(description: str) -> AbstractContextManager[Callable[[int], None]]:
    """Stand in for a progress bar where nobody is looking."""
    return nullcontext(lambda rows: None)


@dataclass(frozen=True)
class Part:
    """One of `count` parts of a store, counted from 0."""

    number: int
    count: int


def prepare(
    files: Files, tokenizing: WordPiece, target: str, layouts: Sequence[str], *, pretrained: Path | None,
    vocab: Path | None, progress: ProgressBar = quiet, group_by: str | int | None = None, fold: Fold | None = None,
    trusted: Sequence[str] = (), shared: str | None = None,
) -> Store:  # fmt: skip
    """Open the store of these files, tokenizer, target and layout, building it first where it does not exist.

    `shared` is where it is looked for before, and put after that: `nlu.data.shared`.

    `target` is the dotted name of a class, of nlu or of a `trusted` package; of the task's `layouts` the first is taken
    whose texts are among the fields. `group_by` is the column of the training rows that says which belong together;
    `fold` holds one fold of them out. Two processes may build the same store at once; one of the two identical results
    stays, and one that lost something is built again. Raises DataError for anything in the files that cannot be used,
    before any of it takes its place.
    """
    plan = plan_of(files, tokenizing, target, layouts, pretrained, vocab, group_by, trusted, shared)

    def open_it(folder: Path) -> Store:
        return open_store(folder, plan, fold)

    def begin_again() -> None:
        plan.target = build_target({TARGET: target}, files, trusted=trusted)

    store = _found_or_built(plan, open_it, begin_again, progress)
    train = store.sets["train"].stored
    _add_digests(store, plan, {name: "train" if part.stored is train else name for name, part in store.sets.items()})
    return store


def prepare_part(
    files: Files, tokenizing: WordPiece, target: str, layouts: Sequence[str], part: Part, *, pretrained: Path | None,
    vocab: Path | None, progress: ProgressBar = quiet, group_by: str | int | None = None,
    trusted: Sequence[str] = (), shared: str | None = None,
) -> bool:  # fmt: skip
    """Encode a part of what `prepare` builds, for it to join; returns whether no part is missing any more."""
    plan = plan_of(files, tokenizing, target, layouts, pretrained, vocab, group_by, trusted, shared)
    return _encode_part(plan, part, progress)


def prepare_scoring(
    files: Files, names: Sequence[str], target: Target, layout: str, tokenizer: Tokenizer, *,
    group_by: str | int | None = None, progress: ProgressBar = quiet,
) -> Store:  # fmt: skip
    """Open the store of only those sets, for weights that were trained for this target, layout and tokenizer.

    All rows of a set take part. Raises DataError as `prepare` does, also for a label that the target lacks.
    """
    sets = files.sets(names)
    target.read_as(files)
    roles = type(target).roles
    first = next(iter(sets.values()))
    fields = fields_of(files, first, roles)
    layout_of(fields, [layout], roles, files, first)
    reading = Reading(fields, files.format, files.header, files.max_rows, group_by, files.dialect)
    plan = Plan(files, sets, reading, LAYOUTS[layout], target, tokenizer, None, is_trained=True)

    def open_it(folder: Path) -> Store:
        meta = meta_of(folder)
        parts = {
            name: Examples(name, stored, np.arange(len(stored)), target, plan.layout,
                           Texts(reading, sets[name], plan.layout))
            for name, stored in open_sets(folder, meta).items()
        }  # fmt: skip
        return Store(folder, parts, target, plan.layout, tokenizer, meta)

    store = _found_or_built(plan, open_it, lambda: None, progress)
    _add_digests(store, plan, {name: name for name in sets})
    return store


def _found_or_built(
    plan: Plan, open_it: Callable[[Path], Store], begin_again: Callable[[], None], progress: ProgressBar
) -> Store:
    """Open the store of a plan, built where it is absent and built again where it lost something."""
    folder = plan.folder()
    if is_whole(folder):
        log.info("data store %s: found", folder)
    elif plan.shared is None or not plan.shared.fetch(folder.name, folder):
        _build(folder, plan, progress)
    if plan.shared is not None:
        plan.shared.push(folder.name, folder)
    try:
        return open_it(folder)
    except StoreDamaged as error:
        log.warning("data store: %s; it is built again", error)
        begin_again()
        _build(folder, plan, progress)
        return open_it(folder)


def _chunks_of(plan: Plan, name: str) -> Chunks:
    return Chunks(name, plan.shared.store if plan.shared else None)


def _encode_part(plan: Plan, part: Part, progress: ProgressBar) -> bool:
    """Encode a part of a store that is nowhere yet; returns whether it can be opened or joined now."""
    folder = plan.folder()
    if is_whole(folder) or (plan.shared is not None and plan.shared.fetch(folder.name, folder)):
        return True
    chunks = _chunks_of(plan, folder.name)
    with what_exists_is_not_collected():
        builder = _builder(folder, plan, _tokenizer_of(plan, progress), chunks)
        wanted = []
        for name, sources in plan.sets.items():
            with progress(f"tokenizing part {part.number + 1} of {part.count} of {name}") as advance:
                numbers = builder.encode_part(
                    name, sources, advance, part.number, part.count, with_group=plan.is_trained or name == "train"
                )
                wanted += [(name, number) for number in numbers]
    there = _chunks_of(plan, folder.name)
    missing = sum(not there.has(name, number) for name, number in wanted)
    log.info("part %d of %d: encoded; %d of %d chunks are missing", part.number, part.count, missing, len(wanted))
    return not missing


def _add_digests(store: Store, plan: Plan, origins: dict[str, str]) -> None:
    """Say of each set what identifies its rows; `origins` has the set whose files they lie in."""
    for name, part in store.sets.items():
        shaped_by = plan.fingerprint({origins[name]: plan.sets[origins[name]]})
        store.digests[name] = hashlib.sha256(shaped_by.encode() + part.rows_N.tobytes()).hexdigest()[:24]


def _build(folder: Path, plan: Plan, progress: ProgressBar) -> None:
    files, keys = plan.files, {name: key for name, (key, _) in plan.files.sources().items()}
    for sources in plan.sets.values():
        for source in sources:
            refuse_header_as_row(plan.reading, source, files.labels)
    with staging_folder() as staging, what_exists_is_not_collected():
        new = staging / "store"
        new.mkdir()
        tokenizer = _tokenizer_of(plan, progress)
        chunks = _chunks_of(plan, folder.name)
        builder = _builder(new, plan, tokenizer, chunks)
        for name, sources in plan.sets.items():
            with progress(f"tokenizing {name}") as advance:
                # Folds are of training rows; whoever scores groups what is scored.
                with_group = plan.is_trained or name == "train"
                builder.add_set(name, keys[name], sources, advance, with_group=with_group)
        tokenizer.save(new)
        meta = {
            "target": plan.target.meta(), "remap": plan.target.remap, "sets": builder.counts,
            "files": {name: [source.name for source in sources] for name, sources in plan.sets.items()},
            "max_len": files.max_len, "groups": list(builder.groups), "layout": plan.layout.name,
            "fields": plan.reading.fields,
        }  # fmt: skip
        (new / "meta.json").write_text(json.dumps(meta, ensure_ascii=False, indent=1), encoding="utf-8")
        settle(new, folder, is_good=_is_good)
        log.info("data store %s: %s", folder, "joined of its parts" if chunks else "built")
    chunks.clear()


def _tokenizer_of(plan: Plan, progress: ProgressBar) -> Tokenizer:
    if plan.tokenizer is not None:
        return plan.tokenizer
    assert plan.tokenizing is not None, "without a tokenizer there is what builds one"
    with progress("vocabulary") as advance:
        texts = texts_for_vocabulary(plan.reading, plan.sets["train"], plan.layout, advance)
        return plan.tokenizing.build(texts)


def _builder(folder: Path, plan: Plan, tokenizer: Tokenizer, chunks: Chunks) -> Builder:
    return Builder(
        folder, plan.reading, plan.layout, plan.target, tokenizer, max_len=plan.files.max_len,
        skips_bad_rows=plan.files.on_bad_row == "skip", chunks=chunks,
    )  # fmt: skip


def _is_good(folder: Path) -> bool:
    """Whether a store is complete and its shards are those that were written."""
    try:
        if is_whole(folder):
            open_sets(folder, meta_of(folder))
            return True
    except StoreDamaged:
        pass
    return False
