"""Open a complete store: which of its rows take part, and in which set."""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.sentences import counted
from nlu.data.arrays import among, repeated
from nlu.data.examples import Examples, rows_of_each_class
from nlu.data.folds import Fold, fold_numbers, kept_together, rarest_labels
from nlu.data.layouts import LAYOUTS, Layout, Pair
from nlu.data.reading import Texts
from nlu.data.store import StoreDamaged, StoredSet
from nlu.data.store_plan import Plan
from nlu.data.targets import Relevance, Target
from nlu.data.tokenizing import Tokenizer, Vocabulary, load_tokenizer

log = logging.getLogger(__name__)


class Meta(TypedDict, total=False):
    """The content of meta.json. The store of a mixture has only `max_len`."""

    target: dict[str, Any]
    """the arguments of its `from_meta`"""
    remap: list[int] | None
    """the final number for each number that the targets of train were written with"""
    sets: dict[str, dict[str, Any]]
    """the counts of each set, as `Builder.counts`"""
    files: dict[str, list[str]]
    max_len: int
    layout: str
    fields: dict[str, str | int | list[str | int]]
    dropped_duplicates: int
    """only of an open store, in which it is computed"""


@dataclass
class Store:
    """An opened data store: the examples of each set, their target, and the tokenizer that made it."""

    folder: Path
    sets: dict[str, Examples]
    target: Target
    layout: Layout
    tokenizer: Tokenizer
    meta: Meta
    digests: dict[str, str] = field(default_factory=dict)
    """of each set, of its content, what shaped it and which rows take part; independent of the other sets"""
    folds: list[Examples] = field(default_factory=list)
    """what each fold holds out, if dev is what one of them does"""

    @property
    def labels(self) -> list[str]:
        """The names of the target's numbers."""
        return self.target.names

    def role(self, name: str) -> str:
        """Return what a set is for: train, dev (to be scored while training) or test."""
        return name if name in ("train", "test") else "dev"

    def of_role(self, role: str) -> dict[str, Examples]:
        """Return the sets with this role, in order."""
        return {name: part for name, part in self.sets.items() if self.role(name) == role}


def meta_of(folder: Path) -> Meta:
    try:
        return json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreDamaged(f"{folder / 'meta.json'} cannot be read ({error})") from None


def open_sets(folder: Path, meta: Meta) -> dict[str, StoredSet]:
    # Only the rows of train were written before the names were in order.
    return {
        name: StoredSet.open(folder / name, counts["rows"], meta["remap"] if name == "train" else None)
        for name, counts in meta["sets"].items()
    }


def open_store(folder: Path, plan: Plan, fold: Fold | None = None, seed: int = 1) -> Store:
    """Open a complete store, drop duplicates, and split off a dev set if the plan or the fold says so.

    A fold replaces every dev set: the training rows that it holds out are `dev`, and the declared ones are left out.
    Without a fold, labels and the hash of each cluster of rows decide, so the split does not depend on the seed, which
    draws the training rows of data.rows_per_class. Raises StoreDamaged if something is missing.
    """
    files, meta = plan.files, meta_of(folder)
    names = list(files.sources())
    if fold is not None and (left_out := [name for name in names if name not in ("train", "test")]):
        log.info("data: the held-out rows are dev; data.dev (%s) is left out", ", ".join(left_out))
        names = [name for name in names if name not in left_out]
    # Without the sets that are left out, so that their files are not even mapped.
    meta["sets"] = {name: meta["sets"][name] for name in names}
    stored = open_sets(folder, meta)
    if files.layout is None:
        plan.layout = LAYOUTS[meta["layout"]]
    target = type(plan.target).from_meta(meta["target"])
    if plan.reading.has_lists and isinstance(target, Relevance):
        plan.layout = plan.layout.of_queries()
    # Duplicates are dropped before splitting, so that dev_fraction counts the rows that remain.
    train_rows_N = (
        _first_of_equals(stored["train"], target) if files.drop_duplicates else np.arange(len(stored["train"]))
    )
    meta["dropped_duplicates"] = len(stored["train"]) - len(train_rows_N)
    rows = {name: np.arange(len(part)) for name, part in stored.items()}
    rows["train"] = train_rows_N
    is_dev_N = fold_N = None
    if fold is not None:
        fold_N = _fold_numbers(stored["train"], train_rows_N, target, fold, plan.reading.group_by, plan.layout)
        is_dev_N = fold_N == fold.number
    elif files.dev is None and files.dev_fraction:
        is_dev_N = _split_off(stored["train"], train_rows_N, target, files.dev_fraction, plan.reading.group_by)
    # A vocabulary that is built is that of the store, whose tokens are the first ones.
    reading = plan.reading.by(plan.tokenizer or load_tokenizer(folder, None))
    origins = {name: Texts(reading, plan.sets[name], plan.layout) for name in stored}
    # Two views of the same stored rows: nothing is copied.
    if is_dev_N is not None:
        rows["dev"], rows["train"] = train_rows_N[is_dev_N], train_rows_N[~is_dev_N]
        stored["dev"], origins["dev"] = stored["train"], origins["train"]
    if files.rows_per_class is not None:
        rows["train"] = rows_of_each_class(stored["train"], rows["train"], target, files.rows_per_class, seed)
    # train, then the evaluation sets in their own order, then test; `sorted` is stable.
    ordered = sorted(rows, key=lambda name: (name != "train") + (name == "test"))
    sets = {name: Examples(name, stored[name], rows[name], target, plan.layout, origins[name]) for name in ordered}
    if empty := [name for name, part in sets.items() if not len(part)]:
        by_group = "" if plan.reading.group_by is None else f" by folds.group_by={plan.reading.group_by}"
        raise DataError(
            f"the set {empty[0]} is empty after splitting {counted(len(train_rows_N), 'row')} with data.dev_fraction="
            f"{files.dev_fraction}{by_group}; set data.dev to a file or change data.dev_fraction"
        )
    tokenizer = plan.tokenizer or _vocabulary_of(sets["train"], folder, plan.tokenizing, stored.values())
    # After splitting: statistics of a target must not see rows that are scored.
    target.fit(stored["train"], rows["train"], tokenizer)
    for name, part in sets.items():
        target.require_targets(name, part.stored, part.rows_N)
    folds = [
        Examples(
            f"fold {number}", stored["train"], train_rows_N[fold_N == number], target, plan.layout, origins["train"]
        )
        for number in (range(fold.count) if fold is not None else ())
    ]
    return Store(folder, sets, target, plan.layout, tokenizer, meta, folds=folds)


def _vocabulary_of(
    train: Examples, folder: Path, tokenizing: Vocabulary | None, all_stored: Iterable[StoredSet]
) -> Tokenizer:
    """Return the tokenizer of the words that are trained on, and let all sets return its numbers.

    A store is written with the words of all training rows, so that folds share it. Words that occur only in held-out
    rows must not be in the vocabulary.
    """
    built = load_tokenizer(folder, None)
    if built is None:
        raise StoreDamaged(f"{folder} has no tokenizer.json")
    assert tokenizing is not None, "without a tokenizer there is what builds one"
    # Only rows that are trained on count. The numbers of V are those of the built vocabulary.
    counts_V = train.token_counts(built.vocab_size)
    tokenizer, numbers_V = tokenizing.restrict(built, counts_V)
    for stored in all_stored:
        stored.renumber("tokens", numbers_V)
    return tokenizer


def _split_off(
    stored: StoredSet, rows_N: np.ndarray, target: Target, fraction: float, group_by: str | int | None
) -> np.ndarray:
    """Return which of the training rows are the dev set: the same share of each label, at least one cluster.

    In the order of their hashes, every (1 / fraction)-th cluster of a label is held out. The smallest hash of rows that
    stay together decides: of their texts, in pairs of their first texts, with groups of their groups. So neither the
    order of the rows nor the seed matters.
    """
    hash_N = (stored.first_N if group_by is None else stored.group_N)[rows_N]
    # A cluster counts for the rarest of its labels, whose rows are the hardest to spread.
    rarest_N = rarest_labels(*target.strata(stored, rows_N))

    def is_dev(cluster_N: np.ndarray) -> np.ndarray:
        rows_K = np.bincount(cluster_N)
        hash_K, rarest_K = np.full((2, len(rows_K)), np.iinfo(np.int64).max)
        np.minimum.at(hash_K, cluster_N, hash_N)
        np.minimum.at(rarest_K, cluster_N, rarest_N)
        order_K = np.lexsort((hash_K, np.log2(rows_K).astype(int), rarest_K))
        first = max(0.5, 1 - fraction * len(rows_K))
        is_dev_K = np.zeros(len(rows_K), bool)
        is_dev_K[order_K] = np.diff(np.floor(fraction * np.arange(len(rows_K) + 1) + first)) > 0
        is_dev_N: np.ndarray = is_dev_K[cluster_N]
        return is_dev_N

    def fits(cluster_N: np.ndarray) -> bool:
        return 0 < is_dev(cluster_N).sum() < len(cluster_N)

    return is_dev(kept_together(*_what_connects(stored, rows_N, group_by), fits))


def _what_connects(
    stored: StoredSet, rows_N: np.ndarray, group_by: str | int | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return the hashes of the first text of each row and, if rows have them, of the second text and of the group."""
    second_N = None if stored.second_N is None else stored.second_N[rows_N]
    return stored.first_N[rows_N], second_N, None if group_by is None else stored.group_N[rows_N]


def _fold_numbers(
    stored: StoredSet,
    rows_N: np.ndarray,
    target: Target,
    fold: Fold,
    group_by: str | int | None,
    layout: Layout,
) -> np.ndarray:
    """Return the number of the fold that holds each of the training rows out. Raises UserError for more folds than
    clusters.

    The target gives the strata of rows. Tagged rows are all in one stratum, so only their number is spread.
    """
    cluster_N = kept_together(
        *_what_connects(stored, rows_N, group_by), lambda cluster_N: cluster_N.max() + 1 >= fold.count
    )
    if (available := int(cluster_N.max()) + 1) < fold.count:
        noun = "different first text" if isinstance(layout, Pair) else "different text"
        what = f"{counted(available, noun)} in {counted(len(rows_N), 'row')}"
        if group_by is not None:
            what = f"{available} groups of folds.group_by={group_by} that share no text"
        raise UserError(f"folds.count is {fold.count}, but the training set has {what}; set it to <= {available}")
    strata, counts_N = target.strata(stored, rows_N)
    rows_C = np.bincount(strata)
    # Strata that have names are numbered like them.
    if rows_C.size > 1 and (few := [name for name, n in zip(target.names, rows_C, strict=False) if 0 < n < fold.count]):
        log.warning(
            "data: fewer rows than the %d folds have the labels %s; some folds hold none of them out",
            fold.count,
            ", ".join(few),
        )
    return fold_numbers(cluster_N, strata, counts_N, count=fold.count, seed=fold.seed)


def _first_of_equals(stored: StoredSet, target: Target) -> np.ndarray:
    """Return the rows that are the first with their text and target, in file order."""
    # Only rows whose text occurs twice are compared, so targets of all other rows are not read.
    hash_N = stored.text_hash_N
    twice_N = np.flatnonzero(among(hash_N, repeated(np.sort(hash_N))))
    hash_N, target_N = hash_N[twice_N], target.identities(stored, twice_N)
    # lexsort sorts by its last key first: text, then target, then place in the file.
    order_N = np.lexsort((twice_N, target_N, hash_N))
    hash_N, target_N = hash_N[order_N], target_N[order_N]
    equal = (hash_N[1:] == hash_N[:-1]) & (target_N[1:] == target_N[:-1])
    is_first_N = np.ones(len(stored), bool)
    is_first_N[twice_N[order_N[1:][equal]]] = False
    return np.flatnonzero(is_first_N)
