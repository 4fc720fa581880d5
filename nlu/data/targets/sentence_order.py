"""Masked words and the order of sentences as target: two halves of a block, and which of them comes first.

StructBERT, Wang et al. 2019 (https://arxiv.org/abs/1908.04577): the sentence structural objective, and the word
structural objective, where groups of three tokens are shuffled and the tokens that were there are predicted.

Axes: B examples of a batch, R rows of the store that they need, P parts of a sequence, T tokens of all sequences,
U predicted tokens, G groups of three tokens, D documents.
"""

from itertools import permutations
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.arrays import ranges, starts_of
from nlu.data.corpus import Corpus, Piece
from nlu.data.dataset import Files
from nlu.data.layouts import Packed
from nlu.data.seeds import uniforms
from nlu.data.store import StoredSet
from nlu.data.targets.base import Gathered, Problem, Values
from nlu.data.targets.masked import Drawn, MaskedWords
from nlu.data.tokenizing import Tokenizer

NEXT, PREVIOUS, OTHER = range(3)
SHUFFLED = 3
"""tokens of a group that is shuffled"""
ORDERS = np.array(list(permutations(range(SHUFFLED))))


@takes(schemas.SentenceOrder)
class SentenceOrder(MaskedWords):
    """The halves of a block in their order (next), the second before the first one (previous), or halves of two
    documents (other); a third of the examples each.

    Both halves of a pair of two documents are as often first as second halves, so that neither tells the class by
    itself. Class and halves are a function of seed, epoch and row. Where a set has a single document, only the other
    two classes occur. The stored value of a row is the number of its document in its file.
    """

    def __init__(self, files: Files):
        """Raise UserError for data without documents."""
        super().__init__(files)
        self.read_as(files)
        self._set_pairs(files.max_len, ((), (), ()))

    def _set_pairs(self, max_len: int, template: Any) -> None:
        self._max_len = max_len
        self._before, self._between, self._after = (np.array(tokens, np.int32) for tokens in template)
        self._starts: dict[StoredSet, np.ndarray] = {}

    def read_as(self, files: Files) -> None:
        if not isinstance(files, Corpus):
            raise UserError("task=structbert needs documents, whose sentences have an order; set data=corpus")
        files.make_halves()

    def read(self, values: Values) -> tuple[object, Problem | None]:
        block = values["text"]
        # The text of a sentence, while a vocabulary is built.
        return (block.document if isinstance(block, Piece) else 0), None

    def column(self) -> pa.DataType | None:
        return pa.int32()

    @property
    def class_names(self) -> list[str]:
        """The classes of pairs."""
        return ["next", "previous", "other"]

    def fit(self, stored: StoredSet, rows_N: np.ndarray, tokenizer: Tokenizer) -> None:
        super().fit(stored, rows_N, tokenizer)
        pair = tokenizer.pair
        self._set_pairs(self._max_len, (pair.before, pair.between, pair.after))

    def meta(self) -> dict[str, object]:
        template = [part.tolist() for part in (self._before, self._between, self._after)]
        return {**super().meta(), "max_len": self._max_len, "template": template, "class_names": self.class_names}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = super().from_meta(meta)
        target._set_pairs(meta["max_len"], meta["template"])
        return target

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Pair halves, mask words and shuffle groups of tokens.

        Returns `labels`, (U,), int64: the tokens that were there; `is_shuffled`, (U,), bool: whether a predicted token
        was shuffled, and not masked; `classes`, (B,), int64, of `class_names`.
        """
        classes_B, begins_T = self._paired(rows)
        whole_T = rows.packed.tokens_T.copy()
        self._hide(rows, begins_T)
        is_shuffled_U = self._shuffled(rows)
        assert rows.packed.units_U is not None
        labels_U = whole_T[rows.packed.units_U].astype(np.int64)
        return {
            "labels": torch.from_numpy(labels_U),
            "is_shuffled": torch.from_numpy(is_shuffled_U),
            "classes": torch.from_numpy(classes_B),
        }

    def _paired(self, rows: Gathered) -> tuple[np.ndarray, np.ndarray | None]:
        """Replace the sequences by pairs of halves, and put the batch in the order of their lengths.

        Returns the class of each example and where given words begin, as `_given_words`.
        """
        stored, rows_B = rows.stored, rows.rows_B
        classes_B, others_B = self._classes(rows)
        is_other_B = classes_B == OTHER
        # Each example has its row, and after all of these come the rows of other documents.
        rows_R = np.concatenate([rows_B, others_B[is_other_B]])
        partner_B = np.arange(len(rows_B))
        partner_B[is_other_B] = len(rows_B) + np.arange(is_other_B.sum())
        first_B, second_B = (classes_B == PREVIOUS).astype(int), (classes_B == NEXT).astype(int)
        first_B[is_other_B] = self._draw("pair first", rows)[is_other_B] < 0.5
        second_B[is_other_B] = self._draw("pair second", rows)[is_other_B] < 0.5
        starts_R2, lengths_R2 = self._halves(stored, rows_R)
        own_B = np.arange(len(rows_B))
        most_B = self._max_len - self._size - lengths_R2[own_B, first_B]
        second_lengths_B = np.minimum(lengths_R2[partner_B, second_B], most_B)
        # A sequence is made of five parts of one flat array: the special tokens, and behind them the rows.
        special = [self._before, self._between, self._after]
        offsets = starts_of(np.array([len(part) for part in special]))
        starts_BP = np.empty((len(rows_B), 5), np.int64)
        lengths_BP = np.empty_like(starts_BP)
        starts_BP[:, ::2], lengths_BP[:, ::2] = offsets, [len(part) for part in special]
        starts_BP[:, 1] = self._size + starts_R2[own_B, first_B]
        starts_BP[:, 3] = self._size + starts_R2[partner_B, second_B]
        lengths_BP[:, 1], lengths_BP[:, 3] = lengths_R2[own_B, first_B], second_lengths_B
        order_B = np.argsort(lengths_BP.sum(1), kind="stable")
        rows.rows_B, rows.examples_B, lengths_BP = rows_B[order_B], rows.examples_B[order_B], lengths_BP[order_B]
        source_T = ranges(starts_BP[order_B].reshape(-1), lengths_BP.reshape(-1))
        lengths_S = lengths_BP.sum(1)
        is_second_T = np.repeat(np.tile([0, 0, 0, 1, 1], len(rows_B)), lengths_BP.reshape(-1)).astype(bool)
        rows.packed = Packed(
            lengths_S,
            starts_of(lengths_S),
            np.concatenate([*special, stored.tokens(rows_R)])[source_T],
            is_second_T,
            ranges(np.zeros_like(lengths_S), lengths_S),
            own_B[None],
        )
        words, counts_R = stored.words(rows_R)
        if not counts_R.any():
            return classes_B[order_B], None
        begins = np.zeros(self._size + int(stored.lengths_N[rows_R].sum()), bool)
        begins[self._size + words + np.repeat(starts_of(stored.lengths_N[rows_R]), counts_R)] = True
        return classes_B[order_B], begins[source_T]

    @property
    def _size(self) -> int:
        """The number of special tokens of a pair."""
        return len(self._before) + len(self._between) + len(self._after)

    def _halves(self, stored: StoredSet, rows_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the start of both halves in the tokens of all rows, and their lengths; (R, 2) each."""
        lengths_R, boundary_R = stored.lengths_N[rows_R].astype(np.int64), stored.boundaries(rows_R).astype(np.int64)
        begin_R = starts_of(lengths_R)
        starts_R2 = np.stack([begin_R + len(self._before), begin_R + boundary_R], axis=1)
        ends_R2 = np.stack([begin_R + boundary_R - len(self._between), begin_R + lengths_R - len(self._after)], axis=1)
        return starts_R2, ends_R2 - starts_R2

    def _classes(self, rows: Gathered) -> tuple[np.ndarray, np.ndarray]:
        """Return the class of each example, and a row of another document of its set for those with the class OTHER."""
        starts_D = self._documents(rows.stored)
        document_B = np.searchsorted(starts_D, rows.rows_B, side="right") - 1
        ends_D = np.append(starts_D[1:], len(rows.stored))
        # The rows of a document are neighbors, in the store and therefore in the set.
        known_N = np.arange(len(rows.stored)) if rows.rows_of_set is None else rows.rows_of_set
        begin_B = np.searchsorted(known_N, starts_D[document_B])
        own_B = np.searchsorted(known_N, ends_D[document_B]) - begin_B
        others_B = len(known_N) - own_B
        count_B = np.where(others_B > 0, 3, 2)
        classes_B = np.minimum((self._draw("pair class", rows) * count_B).astype(np.int64), count_B - 1)
        place_B = np.minimum((self._draw("pair row", rows) * others_B).astype(np.int64), np.maximum(others_B - 1, 0))
        place_B += own_B * (place_B >= begin_B)
        return classes_B, known_N[np.minimum(place_B, len(known_N) - 1)]

    def _documents(self, stored: StoredSet) -> np.ndarray:
        """Return the first row of each document; (D,), ascending."""
        if stored not in self._starts:
            rows_N = np.arange(len(stored))
            numbers_N, files_N = stored.scalars("target", rows_N), stored.scalars("file", rows_N)
            changes = (np.diff(numbers_N) != 0) | (np.diff(files_N) != 0)
            self._starts[stored] = np.concatenate([[0], 1 + np.flatnonzero(changes)])
        return self._starts[stored]

    def _draw(self, purpose: str, rows: Gathered) -> np.ndarray:
        """Return a number in [0, 1) for each example; (B,)."""
        seed, epoch = rows.key
        return uniforms(seed, purpose, epoch, example_T=rows.rows_B, place_T=np.zeros(len(rows.rows_B), np.int64))

    def _shuffled(self, rows: Gathered) -> np.ndarray:
        """Shuffle some groups of three neighbors that are not masked, and add them to the units of the batch.

        Neighbors that may be masked and are not form groups from the first on. Returns whether each unit was shuffled,
        (U,), bool.
        """
        packed = rows.packed
        assert packed.units_U is not None
        tokens_T = packed.tokens_T
        example_T = np.repeat(np.arange(len(packed.lengths_S)), packed.lengths_S)
        is_free_T = ~self._is_fixed_V[tokens_T]
        is_free_T[packed.units_U] = False
        # A run ends where an example does too: special tokens are not free.
        places = np.flatnonzero(is_free_T)
        begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        sizes = np.diff(begins, append=len(places))
        within, lengths = np.arange(len(places)) - np.repeat(begins, sizes), np.repeat(sizes, sizes)
        first_G = places[(within % SHUFFLED == 0) & (within + SHUFFLED <= lengths)]
        drawn = Drawn(rows, rows.rows_B[example_T], packed.positions_T)
        first_G = first_G[drawn.at("shuffle", first_G) < self.masking.shuffle_fraction]
        drawn_G = drawn.at("shuffle order", first_G) * len(ORDERS)
        places_G3 = first_G[:, None] + np.arange(SHUFFLED)
        tokens_T[places_G3] = tokens_T[first_G[:, None] + ORDERS[drawn_G.astype(np.int64)]]
        is_shuffled_T = np.zeros(len(tokens_T), bool)
        is_shuffled_T[places_G3] = True
        units_U = np.sort(np.concatenate([packed.units_U, places_G3.reshape(-1)]))
        packed.units_U = units_U
        packed.unit_counts_B = np.bincount(example_T[units_U], minlength=len(packed.lengths_S)).astype(np.int64)
        return is_shuffled_T[units_U]
