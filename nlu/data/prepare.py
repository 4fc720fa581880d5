"""Raw files to an opened data store: built once, found again by the fingerprint of everything that shaped it."""

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.targets import TARGET
from nlu.config.targets import build as build_target
from nlu.data.building import LISTED_GROUPS, Builder
from nlu.data.dataset import Files, SourceFile
from nlu.data.duplicates import among, repeated
from nlu.data.examples import Examples
from nlu.data.folds import Fold, clusters_of, fold_numbers
from nlu.data.garbage import what_exists_is_not_collected
from nlu.data.layouts import LAYOUTS, Layout
from nlu.data.reading import Reading, Texts, fields_of, layout_of, refuse_header_as_row, texts_for_vocabulary
from nlu.data.store import FORMAT_VERSION, StoreDamaged, StoredSet
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer, WordPiece, load_tokenizer
from nlu.storage.cache import cache_dir, file_digest, staging_folder
from nlu.storage.settle import is_whole, settle

log = logging.getLogger(__name__)

KNOWN_CODE = ("nlu", "builtins", "typing", "abc")
ProgressBar = Callable[[str], AbstractContextManager[Callable[[int], None]]]


@dataclass
class Store:
    """An opened data store: examples of each set, what they are to give and the tokenizer that made it."""

    folder: Path
    sets: dict[str, Examples]
    target: Target
    layout: Layout
    tokenizer: Tokenizer
    meta: dict[str, Any]
    digests: dict[str, str] = field(default_factory=dict)
    """of each set: its content, what shaped it and which rows take part; the other sets have no share in it"""

    @property
    def labels(self) -> list[str]:
        """The names of the target's numbers."""
        return self.target.names


def quiet(description: str) -> AbstractContextManager[Callable[[int], None]]:
    """Stand in for a progress bar where nobody is looking."""
    return nullcontext(lambda rows: None)


@dataclass
class _Plan:
    """All that shapes a store, once its files are found."""

    files: Files
    sets: dict[str, list[SourceFile]]
    reading: Reading
    layout: Layout
    target: Target
    tokenizer: Tokenizer | None
    """null: built from the training texts"""
    tokenizing: WordPiece | None
    """null: nothing is built, since there is a tokenizer"""
    is_trained: bool = False
    """whether the target is closed, as weights were trained for it"""

    def fingerprint(self, sets: dict[str, list[SourceFile]]) -> str:
        """Return what identifies the content of some of the sets."""
        files, reading, target = self.files, self.reading, self.target
        shaped_by = {
            "format_version": FORMAT_VERSION,
            "sets": {name: [(file_digest(f.path), f.label) for f in sources] for name, sources in sets.items()},
            "reader": [reading.fields, files.format, files.header, files.on_bad_row, files.max_rows],
            "suffixes": [[f.path.suffix for f in sources] for sources in sets.values()],
            "group_by": reading.group_by,
            "target": [type(target).__module__, type(target).__qualname__, target.kind, str(target.column())],
            "labels": [files.labels, files.label_separator],
            "max_len": files.max_len,
            "layout": self.layout.name,
            "tokenizer": self.tokenizer.digest if self.tokenizer else self._settings(),
        }
        if self.is_trained:
            shaped_by["trained"] = target.meta()
        if own_code := _code_outside_nlu(type(target), type(self.tokenizing)):
            shaped_by["code"] = own_code
        return hashlib.sha256(json.dumps(shaped_by, sort_keys=True).encode()).hexdigest()[:24]

    def _settings(self) -> dict[str, object]:
        assert self.tokenizing is not None, "without a tokenizer there is what builds one"
        return self.tokenizing.settings()


def _code_outside_nlu(*classes: type) -> list[str]:
    """Return the digests of the files of users' own classes; what nlu's read is told by FORMAT_VERSION."""
    modules = dict.fromkeys(base.__module__ for kind in classes for base in kind.__mro__)
    own = [sys.modules.get(name) for name in modules if name.partition(".")[0] not in KNOWN_CODE]
    files = [Path(file) for module in own if (file := getattr(module, "__file__", None))]
    return [file_digest(file) for file in files if file.is_file()]


def prepare(
    files: Files, tokenizing: WordPiece, target: str, layouts: Sequence[str], *, pretrained: Path | None,
    vocab: Path | None, progress: ProgressBar = quiet, group_by: str | int | None = None, fold: Fold | None = None,
    trusted: Sequence[str] = (),
) -> Store:  # fmt: skip
    """Open the store of these files, tokenizer, target and layout, building it first where it does not exist.

    `target` is the dotted name of a class, of nlu or of a `trusted` package; of the task's `layouts` the first is taken
    whose texts are among the fields. `group_by` is the column of the training rows that says which belong together;
    `fold` holds one fold of them out. Two processes may build the same store at once; one of the two identical results
    stays, and one that lost something is built again. Raises DataError for anything in the files that cannot be used,
    before any of it takes its place.
    """
    sets = files.sets()
    empty: Target = build_target({TARGET: target}, files, trusted=trusted)
    fields = fields_of(files, sets["train"], type(empty).roles)
    layout = LAYOUTS[layout_of(fields, layouts, type(empty).roles, files)]
    reading = Reading(fields, files.format, files.header, files.max_rows, group_by)
    plan = _Plan(files, sets, reading, layout, empty, tokenizing.given(vocab, pretrained), tokenizing)

    def open_it(folder: Path) -> Store:
        return open_store(folder, plan, fold)

    def begin_again() -> None:
        plan.target = build_target({TARGET: target}, files, trusted=trusted)

    store = _found_or_built(plan, open_it, begin_again, progress)
    train = store.sets["train"].stored
    _add_digests(store, plan, {name: "train" if part.stored is train else name for name, part in store.sets.items()})
    return store


def prepare_scoring(
    files: Files, names: Sequence[str], target: Target, layout: str, tokenizer: Tokenizer, *,
    group_by: str | int | None = None, progress: ProgressBar = quiet,
) -> Store:  # fmt: skip
    """Open the store of those sets alone, for weights that were trained for this target, layout and tokenizer.

    All rows of a set take part. Raises DataError as `prepare` does, also for a label that the target lacks.
    """
    sets = files.sets(names)
    target.read_as(files)
    roles = type(target).roles
    fields = fields_of(files, next(iter(sets.values())), roles)
    layout_of(fields, [layout], roles, files)
    reading = Reading(fields, files.format, files.header, files.max_rows, group_by)
    plan = _Plan(files, sets, reading, LAYOUTS[layout], target, tokenizer, None, is_trained=True)

    def open_it(folder: Path) -> Store:
        meta = _meta_of(folder)
        parts = {
            name: Examples(name, stored, np.arange(len(stored)), target, plan.layout,
                           Texts(reading, sets[name], plan.layout))
            for name, stored in _open_sets(folder, meta).items()
        }  # fmt: skip
        return Store(folder, parts, target, plan.layout, tokenizer, meta)

    store = _found_or_built(plan, open_it, lambda: None, progress)
    _add_digests(store, plan, {name: name for name in sets})
    return store


def _found_or_built(
    plan: _Plan, open_it: Callable[[Path], Store], begin_again: Callable[[], None], progress: ProgressBar
) -> Store:
    """Open the store of a plan, built where it is absent and built again where it lost something."""
    folder = cache_dir() / "stores" / plan.fingerprint(plan.sets)
    if is_whole(folder):
        log.info("data store %s: found", folder)
    else:
        _build(folder, plan, progress)
    try:
        return open_it(folder)
    except StoreDamaged as error:
        log.warning("data store: %s; it is built again", error)
        begin_again()
        _build(folder, plan, progress)
        return open_it(folder)


def _add_digests(store: Store, plan: _Plan, origins: dict[str, str]) -> None:
    """Say of each set what identifies its rows; `origins` has the set whose files they lie in."""
    for name, part in store.sets.items():
        shaped_by = plan.fingerprint({origins[name]: plan.sets[origins[name]]})
        store.digests[name] = hashlib.sha256(shaped_by.encode() + part.rows_N.tobytes()).hexdigest()[:24]


def _build(folder: Path, plan: _Plan, progress: ProgressBar) -> None:
    files, keys = plan.files, {name: key for name, (key, _) in plan.files.sources().items()}
    for sources in plan.sets.values():
        for source in sources:
            refuse_header_as_row(plan.reading, source, files.labels)
    with staging_folder() as staging, what_exists_is_not_collected():
        new = staging / "store"
        new.mkdir()
        if (tokenizer := plan.tokenizer) is None:
            assert plan.tokenizing is not None, "without a tokenizer there is what builds one"
            with progress("vocabulary") as advance:
                texts = texts_for_vocabulary(plan.reading, plan.sets["train"], plan.layout, advance)
                tokenizer = plan.tokenizing.build(texts)
        builder = Builder(
            new, plan.reading, plan.layout, plan.target, tokenizer, max_len=files.max_len,
            skips_bad_rows=files.on_bad_row == "skip",
        )  # fmt: skip
        for name, sources in plan.sets.items():
            with progress(f"tokenizing {name}") as advance:
                # Folds are of training rows; whoever scores groups what is scored.
                with_group = plan.is_trained or name == "train"
                builder.add_set(name, keys[name], sources, advance, with_group=with_group)
        tokenizer.save(new)
        meta = {
            "target": plan.target.meta(), "remap": plan.target.remap, "sets": builder.counts,
            "files": {name: [str(source.path) for source in sources] for name, sources in plan.sets.items()},
            "max_len": files.max_len, "groups": list(builder.groups), "layout": plan.layout.name,
            "fields": plan.reading.fields,
        }  # fmt: skip
        (new / "meta.json").write_text(json.dumps(meta, ensure_ascii=False, indent=1), encoding="utf-8")
        settle(new, folder, is_good=_is_good)
        log.info("data store %s: built", folder)


def _is_good(folder: Path) -> bool:
    """Whether a store is complete and its shards are those that were written."""
    try:
        if is_whole(folder):
            _open_sets(folder, _meta_of(folder))
            return True
    except StoreDamaged:
        pass
    return False


def _meta_of(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreDamaged(f"{folder / 'meta.json'} cannot be read ({error})") from None


def _open_sets(folder: Path, meta: dict[str, Any]) -> dict[str, StoredSet]:
    # Only the rows of train were written before the names were in order.
    return {
        name: StoredSet.open(folder / name, counts["rows"], meta["remap"] if name == "train" else None)
        for name, counts in meta["sets"].items()
    }


def open_store(folder: Path, plan: _Plan, fold: Fold | None = None) -> Store:
    """Open a complete store, drop duplicates and split off a dev set as its files or the fold say.

    A fold takes the place of every dev set: what it holds out of the training rows is `dev`, the declared ones are
    left out. Without one, the split goes by a hash of the text, so that equal texts land on the same side, whatever
    the seed. Raises StoreDamaged where something is missing.
    """
    files, meta = plan.files, _meta_of(folder)
    names = list(files.sources())
    if fold is not None and (left_out := [name for name in names if name not in ("train", "test")]):
        log.info("data: the held-out rows are dev; data.dev (%s) is left out", ", ".join(left_out))
        names = [name for name in names if name not in left_out]
    meta["sets"] = {name: meta["sets"][name] for name in names}
    stored = _open_sets(folder, meta)
    target = type(plan.target).from_meta(meta["target"])
    train_rows_N = (
        _first_of_equals(stored["train"], target) if files.drop_duplicates else np.arange(len(stored["train"]))
    )
    meta["dropped_duplicates"] = len(stored["train"]) - len(train_rows_N)
    rows = {name: np.arange(len(part)) for name, part in stored.items()}
    rows["train"] = train_rows_N
    is_dev_N = None
    if fold is not None:
        is_dev_N = _held_out(stored["train"], train_rows_N, target, fold, plan.reading.group_by, meta["groups"])
    elif files.dev is None and files.dev_fraction:
        is_dev_N = stored["train"].text_hash_N[train_rows_N] % 1_000_003 / 1_000_003 < files.dev_fraction
    origins = {name: Texts(plan.reading, plan.sets[name], plan.layout) for name in stored}
    if is_dev_N is not None:
        rows["dev"], rows["train"] = train_rows_N[is_dev_N], train_rows_N[~is_dev_N]
        stored["dev"], origins["dev"] = stored["train"], origins["train"]
    ordered = sorted(rows, key=lambda name: (name != "train") + (name == "test"))
    sets = {name: Examples(name, stored[name], rows[name], target, plan.layout, origins[name]) for name in ordered}
    if empty := [name for name, part in sets.items() if not len(part)]:
        raise DataError(
            f"the set {empty[0]} is empty after splitting {len(train_rows_N)} rows with data.dev_fraction="
            f"{files.dev_fraction}; set data.dev to a file or change data.dev_fraction"
        )
    target.fit(stored["train"], rows["train"])
    tokenizer = plan.tokenizer or load_tokenizer(folder, None)
    assert tokenizer is not None
    return Store(folder, sets, target, plan.layout, tokenizer, meta)


def _held_out(
    stored: StoredSet, rows_N: np.ndarray, target: Target, fold: Fold, group_by: str | int | None, groups: list[str]
) -> np.ndarray:
    """Return which of the training rows the fold holds out. Raises UserError where there are more folds than clusters.

    Rows are stratified as their target says; of tagged rows nothing is known, they are spread by number alone.
    """
    cluster_N = clusters_of(stored.text_hash_N[rows_N], None if group_by is None else stored.group_N[rows_N])
    if (available := int(cluster_N.max()) + 1) < fold.count:
        shown = ", ".join(groups) + (", ..." if len(groups) == LISTED_GROUPS else "")
        what = f"different texts in {len(rows_N)} rows"
        if group_by is not None:
            what = f"groups of folds.group_by={group_by} that share no text: {shown}"
        raise UserError(
            f"folds.count is {fold.count}, but the training set has {available} {what}; set it to <= {available}"
        )
    strata, counts_N = target.strata(stored, rows_N)
    rows_C = np.bincount(strata)
    # Strata that have names are numbered like them.
    if rows_C.size > 1 and (few := [name for name, n in zip(target.names, rows_C, strict=False) if 0 < n < fold.count]):
        log.warning("data: fewer rows than the %d folds have the labels %s; some folds hold none of them out",
                    fold.count, ", ".join(few))  # fmt: skip
    return fold_numbers(cluster_N, strata, counts_N, count=fold.count, seed=fold.seed) == fold.number


def _first_of_equals(stored: StoredSet, target: Target) -> np.ndarray:
    """Return the rows that are the first with their text and target, in file order."""
    hash_N = stored.text_hash_N
    twice_N = np.flatnonzero(among(hash_N, repeated(np.sort(hash_N))))
    hash_N, target_N = hash_N[twice_N], target.identities(stored, twice_N)
    order_N = np.lexsort((twice_N, target_N, hash_N))
    hash_N, target_N = hash_N[order_N], target_N[order_N]
    equal = (hash_N[1:] == hash_N[:-1]) & (target_N[1:] == target_N[:-1])
    is_first_N = np.ones(len(stored), bool)
    is_first_N[twice_N[order_N[1:][equal]]] = False
    return np.flatnonzero(is_first_N)
