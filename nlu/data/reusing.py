"""Encoded rows of earlier stores, so that a corpus that grows by a file encodes only this file.

Every store says in meta.json how each of its files was encoded: a key of the file's content, of how it is read, of the
layout and of max_len, and the digest of the tokenizer. Where a new store has a file with the same key and tokenizer,
its rows are read again, because targets, groups and bad rows may differ, but their tokens are copied. The new store has
the same bytes as one that is built without the earlier one, and is complete without it.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.words import counted
from nlu.data.layouts import Values
from nlu.data.plan import Plan
from nlu.data.reader import Row
from nlu.data.seeds import text_hashes
from nlu.data.shards import StoreDamaged
from nlu.data.store import EncodedRows, StoredSet
from nlu.storage.cache import cache_dir
from nlu.storage.settle import is_whole

log = logging.getLogger(__name__)

CUT = "cut.npy"
"""of each set of a store: whether each row was cut to max_len, in bits"""
Good = list[tuple[int, Row, Any]]
"""index of the file, the row and its target"""


@dataclass
class _Earlier:
    """The rows of one file in an earlier store; `number_N` are their numbers in the file."""

    stored: StoredSet
    start: int
    number_N: np.ndarray
    is_cut_N: np.ndarray

    def rows(self, numbers: Sequence[int], hashes: Sequence[int]) -> EncodedRows | None:
        """Return the rows with these numbers and hashes of texts; None unless all of them are there."""
        wanted_B = np.asarray(numbers)
        places_B = np.searchsorted(self.number_N, wanted_B)
        if (places_B >= len(self.number_N)).any() or (self.number_N[places_B] != wanted_B).any():
            return None
        rows_B = self.start + places_B
        if (self.stored.text_hash_N[rows_B] != np.asarray(hashes)).any():
            return None
        tokens, lengths_B = self.stored.lists("tokens", rows_B)
        words, word_counts_B = self.stored.words(rows_B)
        found = EncodedRows(
            tokens, lengths_B, self.stored.boundaries(rows_B), self.is_cut_N[places_B], words, word_counts_B
        )
        if self.stored.has("places"):
            found.places, found.place_counts_N = self.stored.lists("places", rows_B)
        return found


class Reuse:
    """The files of a plan that earlier stores of this machine have encoded, and the note that a new store leaves."""

    def __init__(self, plan: Plan, digest: str, folder: Path):
        """`digest` of the tokenizer; `folder` of the new store, which itself is not searched."""
        self._plan = plan
        self._digest = digest
        self.keys = {name: [plan.key_of_encoding(file) for file in files] for name, files in plan.sets.items()}
        self._places, has_other_words = _search(set(sum(self.keys.values(), [])), digest, folder)
        self._current: tuple[str, _Earlier | None] | None = None
        self.rows = 0
        """rows that were taken from earlier stores"""
        if has_other_words and plan.tokenizer is None:
            log.info(
                "data: files of an earlier store are encoded again, since the vocabulary is built from the training "
                "rows and has changed; set tokenizer.vocab to encode only new files"
            )

    def encode(self, name: str, good: Good, encode: Callable[[list[dict[str, Any]]], EncodedRows]) -> EncodedRows:
        """Return usable rows of a set from earlier stores where they have them, and else as `encode` does."""
        if not self._places:
            return encode([row.values for _, row, _ in good])
        parts = []
        for file, some in groupby(good, key=itemgetter(0)):
            rows = [row for _, row, _ in some]
            values = [row.values for row in rows]
            found = None
            if (earlier := self._earlier(self.keys[name][file])) is not None:
                found = earlier.rows([row.number for row in rows], self._hashes(values))
            self.rows += 0 if found is None else len(rows)
            parts.append(encode(values) if found is None else found)
        return EncodedRows.joined(parts)

    def _hashes(self, rows: Sequence[Values]) -> Sequence[int]:
        return text_hashes(self._plan.layout.identity(values) for values in rows).tolist()

    def _earlier(self, key: str) -> _Earlier | None:
        """Return a file's rows in an earlier store; None if no store has them or it can no longer be opened."""
        if self._current is None or self._current[0] != key:
            self._current = key, _opened(self._places[key]) if key in self._places else None
        return self._current[1]

    def meta(self, file_rows: dict[str, list[int]]) -> dict[str, Any]:
        """Return what meta.json says of how the files were encoded, given the rows of each file."""
        files = {name: list(zip(keys, file_rows[name], strict=True)) for name, keys in self.keys.items()}
        return {"tokenizer": self._digest, "files": files}

    def log(self, total: int) -> None:
        """Log how many of `total` rows were not encoded."""
        if self.rows:
            log.info("data: %s of %s have their tokens from earlier stores", f"{self.rows:,}", counted(total, "row"))


@dataclass(frozen=True)
class _Place:
    """Where a file's rows are: a set of a store, its number of rows, and those of them that are the file's."""

    folder: Path
    total: int
    start: int
    count: int


def _search(keys: set[str], digest: str, own: Path) -> tuple[dict[str, _Place], bool]:
    """Return where earlier stores have these files, and whether some have one with another tokenizer."""
    places: dict[str, _Place] = {}
    others = False
    for folder, encoded in _stores(own):
        for name, files in encoded["files"].items():
            start, total = 0, sum(count for _, count in files)
            for key, count in files:
                if key in keys and encoded["tokenizer"] == digest:
                    places.setdefault(key, _Place(folder / name, total, start, count))
                others |= key in keys and encoded["tokenizer"] != digest
                start += count
    return places, others and not places


def _stores(own: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the complete stores of this machine that say how they were encoded."""
    for path in sorted((cache_dir() / "stores").glob("*/meta.json")):
        try:
            encoded = json.loads(path.read_text(encoding="utf-8")).get("encoded")
        except (OSError, ValueError):
            # Another process is deleting it.
            continue
        if encoded is not None and path.parent != own and is_whole(path.parent):
            yield path.parent, encoded


def _opened(place: _Place) -> _Earlier | None:
    try:
        stored = StoredSet.open(place.folder, place.total)
        rows_B = np.arange(place.start, place.start + place.count)
        is_cut_N = np.unpackbits(np.load(place.folder / CUT), count=place.total).astype(bool)
        return _Earlier(stored, place.start, stored.scalars("number", rows_B), is_cut_N[rows_B])
    except (StoreDamaged, OSError, ValueError) as error:
        log.debug("%s is not reused: %s", place.folder, error)
        return None
