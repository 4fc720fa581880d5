"""Masked words as target: some tokens of an example are hidden, and the target of each is the token that was there.

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3.1; whole words as in their later models
(https://github.com/google-research/bert); n-grams as in Lan et al. 2020 (https://arxiv.org/abs/1909.11942), 4.1.

Axes: B examples of a batch, S sequences (one for each example), T their tokens, F tokens that may be masked, W words of
these, G n-grams of words, U masked tokens, V words of the vocabulary.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.errors import DataError, UserError
from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.arrays import occurrences, ranges
from nlu.data.dataset import Files
from nlu.data.layouts import Packed
from nlu.data.pieces import begins_word
from nlu.data.seeds import uniforms
from nlu.data.store import StoredSet, chunks_of
from nlu.data.targets.base import Gathered, Problem, Target, Values
from nlu.data.tokenizing import SPECIALS, Tokenizer

MASKS = ("[MASK]", "<mask>")
"""the names of the token that hides another one, in vocabularies of BERT and of SentencePiece"""
UNUSED = re.compile(r"\[unused\d+\]")
"""tokens of BERT's vocabularies that no text has"""


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen, and what takes their place. The keys of `task=mlm` and `task=structbert` explain the
    fields."""

    fraction: float = 0.15
    whole_words: bool = True
    max_ngram: int = 1
    keep: float = 0.1
    replace: float = 0.1
    frequency_power: float = 0.0
    shuffle_fraction: float = 0.0


@dataclass
class Drawn:
    """The random numbers of a batch: a function of the key, the row of each example and a place in it."""

    rows: Gathered
    row_T: np.ndarray
    position_T: np.ndarray

    def at(self, purpose: str, places: np.ndarray) -> np.ndarray:
        """Return a number in [0, 1) for each of these places in T."""
        seed, epoch = self.rows.key
        # The row of the store, and not the number in its set: a sample of a set has the masks of the whole set.
        return uniforms(seed, purpose, epoch, example_T=self.row_T[places], place_T=self.position_T[places])


@takes(schemas.MaskedWords)
class MaskedWords(Target):
    """A share of the tokens of each example, other ones in each epoch, and the same whenever a set is scored.

    The n-grams of an example are taken in a random order. One of n tokens is masked if c + u n < share * tokens, where
    c is the number of tokens taken before it and u a random number of the example, so that the expected number of
    masked tokens is exactly this share. Special tokens, [UNK] and tokens that no text has are neither masked nor put in
    the place of others.
    """

    def __init__(self, files: Files):
        """Nothing is read from rows except their texts."""
        self.masking = Masking()
        self._set(0, 0, [], [], None)

    def _set(
        self, vocab_size: int, mask_id: int, fixed: list[list[int]], parts: list[list[int]], counts: list[int] | None
    ) -> None:
        self._vocab_size, self._mask_id, self._fixed, self._parts, self._counts = (
            vocab_size,
            mask_id,
            fixed,
            parts,
            counts,
        )
        self._train: tuple[StoredSet, np.ndarray] | None = None

    def read(self, values: Values) -> tuple[object, Problem | None]:
        return None, None

    def column(self) -> pa.DataType | None:
        return None

    @property
    def num_outputs(self) -> int:
        return self._vocab_size

    def fit(self, stored: StoredSet, rows_N: np.ndarray, tokenizer: Tokenizer) -> None:
        """Take from the vocabulary what a word is. Raises UserError for a vocabulary without a token that masks, and
        for one without a token that can be masked."""
        number_of = tokenizer.vocabulary
        mask_id = next((number_of[name] for name in MASKS if name in number_of), None)
        if mask_id is None:
            raise UserError(
                f"task=mlm hides tokens behind {' or '.join(MASKS)}, but the vocabulary has neither; set "
                "tokenizer.vocab to one that has, or leave it out to build one from the rows"
            )
        fixed = {tokenizer.unknown_id, mask_id, *tokenizer.special_ids}
        fixed |= {number for name, number in number_of.items() if name in SPECIALS or UNUSED.fullmatch(name)}
        if fixed.issuperset(number_of.values()):
            raise UserError(
                f"the vocabulary has no token that can be masked: all of its {len(number_of)} are special or unused; "
                "set data.train to more text or tokenizer.min_count lower to learn a larger one, or tokenizer.vocab to "
                "a file"
            )
        parts = {number for name, number in number_of.items() if not begins_word(name, number_of)} - fixed
        self._set(tokenizer.vocab_size, mask_id, _runs(fixed), _runs(parts), None)
        self._train = stored, rows_N

    def require_targets(self, name: str, stored: StoredSet, rows_N: np.ndarray) -> None:
        # The first chunk of nearly every set has such a token, so hardly anything is read.
        if any((~self._is_fixed_V[stored.tokens(chunk)]).any() for chunk in chunks_of(rows_N)):
            return
        key = name if name in ("train", "test") else "dev"
        raise DataError(
            f"the set {name} has no token that can be masked: all are [UNK] or special; set data.{key} to texts whose "
            "words are in the vocabulary, or tokenizer.vocab to a vocabulary that has them"
        )

    def choose(self, masking: Masking) -> None:
        """Mask in this way. Called by the task, before any batch is collated."""
        self.masking = masking
        if not masking.frequency_power or self._train is None:
            return
        stored, rows_N = self._train
        self._counts = occurrences(map(stored.tokens, chunks_of(rows_N)), self._vocab_size).tolist()

    def meta(self) -> dict[str, object]:
        return {
            "masking": asdict(self.masking),
            "vocab_size": self._vocab_size,
            "mask_id": self._mask_id,
            "fixed": self._fixed,
            "parts": self._parts,
            "counts": self._counts,
        }

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = cls.__new__(cls)
        target.masking = Masking(**meta["masking"])
        target._set(*(meta[name] for name in ("vocab_size", "mask_id", "fixed", "parts", "counts")))
        return target

    @cached_property
    def _is_fixed_V(self) -> np.ndarray:
        return _flags(self._fixed, self._vocab_size)

    @cached_property
    def _is_part_V(self) -> np.ndarray:
        """Whether a token continues a word."""
        return _flags(self._parts, self._vocab_size)

    @cached_property
    def _replacements(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that may take the place of another one, and the sums of their weights up to each."""
        free = np.flatnonzero(~self._is_fixed_V)
        weights = np.ones(len(free))
        if self._counts is not None and self.masking.frequency_power:
            weights = np.asarray(self._counts, np.float64)[free] ** self.masking.frequency_power
        return free, np.cumsum(weights)

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Mask tokens in place. Returns `labels`, (U,), int64: the tokens that were there; `packed.units_U` has their
        places."""
        return self._hide(rows, self._given_words(rows))

    def _given_words(self, rows: Gathered) -> np.ndarray | None:
        """Return whether each token of the batch begins a word, (T,), bool; None: the pieces of words tell."""
        first, counts_B = rows.stored.words(rows.rows_B)
        # A store of a corpus whose words are known has them.
        if not counts_B.any():
            return None
        begins_T = np.zeros(len(rows.packed.tokens_T), bool)
        begins_T[first + np.repeat(rows.packed.starts_S, counts_B)] = True
        return begins_T

    def _hide(self, rows: Gathered, given_T: np.ndarray | None) -> dict[str, Tensor]:
        """Do what `collate` does with the words of `_given_words`; rows and sequences are in the same order."""
        packed, masking = rows.packed, self.masking
        assert len(packed.sequences_KB) == 1, "an example is one sequence"
        tokens_T, lengths_S = packed.tokens_T, packed.lengths_S
        drawn = Drawn(rows, np.repeat(rows.rows_B, lengths_S), packed.positions_T)
        example_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
        places_F, begins_F = self._words(packed, given_T)
        grams_G, sizes_G = self._grams(places_F, begins_F, example_T, drawn)
        # By example, and there in random order.
        order_G = np.lexsort((drawn.at("mask order", grams_G), example_T[grams_G]))
        example_G = example_T[grams_G[order_G]]
        tokens_S = np.bincount(example_G, weights=sizes_G[order_G], minlength=len(lengths_S))
        before_G = np.cumsum(sizes_G[order_G]) - sizes_G[order_G] - (np.cumsum(tokens_S) - tokens_S)[example_G]
        rounding_S = drawn.at("mask share", packed.starts_S)
        is_taken_G = np.empty(len(order_G), bool)
        is_taken_G[order_G] = (
            before_G + rounding_S[example_G] * sizes_G[order_G] < (masking.fraction * tokens_S)[example_G]
        )
        units_U = places_F[np.repeat(is_taken_G, sizes_G)]
        labels_U = tokens_T[units_U].astype(np.int64)
        share_U = drawn.at("mask kind", units_U)
        is_replaced_U = (share_U >= masking.keep) & (share_U < masking.keep + masking.replace)
        tokens_T[units_U[share_U >= masking.keep + masking.replace]] = self._mask_id
        tokens_T[units_U[is_replaced_U]] = self._random_words(drawn.at("mask word", units_U[is_replaced_U]))
        packed.units_U = units_U
        packed.unit_counts_B = np.bincount(example_T[units_U], minlength=len(lengths_S)).astype(np.int64)
        return {"labels": torch.from_numpy(labels_U)}

    def _words(self, packed: Packed, given_T: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the places in T of the tokens that may be masked, and whether each begins a word; (F,) each."""
        is_free_T = ~self._is_fixed_V[packed.tokens_T]
        begins_T = np.ones(len(is_free_T), bool)
        if self.masking.whole_words:
            begins_T = ~self._is_part_V[packed.tokens_T] if given_T is None else given_T.copy()
            # What follows a token that may not be masked begins a word, also where max_len cut off its beginning.
            begins_T[1:] |= ~is_free_T[:-1]
            begins_T[packed.starts_S] = True
        return np.flatnonzero(is_free_T), begins_T[is_free_T]

    def _grams(
        self, places_F: np.ndarray, begins_F: np.ndarray, example_T: np.ndarray, drawn: Drawn
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the place in T of the first token of each n-gram, and its number of tokens; (G,) each."""
        first_W = np.flatnonzero(begins_F)
        if (most := self.masking.max_ngram) > 1:
            # Shorter n-grams are more frequent: n has a probability proportional to 1 / n.
            bounds = np.cumsum(1 / np.arange(1, most + 1))
            words_W = 1 + np.searchsorted(bounds, drawn.at("mask n-gram", places_F[first_W]) * bounds[-1], side="right")
            # Words of one n-gram are neighbors: none is across a token that may not be masked.
            end_W = _ends_of_runs(places_F, first_W, example_T)
            lengths, ends = words_W.tolist(), end_W.tolist()
            begun, word = [], 0
            while word < len(lengths):
                begun.append(word)
                word = min(word + lengths[word], ends[word])
            first_W = first_W[np.asarray(begun, np.int64)]
        return places_F[first_W], np.diff(first_W, append=len(places_F))

    def _random_words(self, drawn_U: np.ndarray) -> np.ndarray:
        tokens, sums = self._replacements
        return tokens[np.minimum(np.searchsorted(sums, drawn_U * sums[-1], side="right"), len(tokens) - 1)]

    def about(self) -> dict[str, object]:
        return {"masking": asdict(self.masking)}


def _ends_of_runs(places_F: np.ndarray, first_W: np.ndarray, example_T: np.ndarray) -> np.ndarray:
    """Return, for each word, the number of the word behind its run of neighboring tokens of one example; (W,)."""
    breaks_F = np.ones(len(places_F), bool)
    if len(places_F):
        is_next_F = np.diff(places_F) == 1
        breaks_F[1:] = ~is_next_F | (example_T[places_F[1:]] != example_T[places_F[:-1]])
    run_W = np.cumsum(breaks_F)[first_W]
    counts = np.bincount(run_W, minlength=1)
    return np.cumsum(counts)[run_W]


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as ascending ranges [start, stop), which are few where special tokens or pieces are neighbors."""
    sorted_N = np.array(sorted(numbers), np.int64)
    if not len(sorted_N):
        return []
    cuts = np.flatnonzero(np.diff(sorted_N) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(sorted_N, cuts)]


def _flags(runs: list[list[int]], size: int) -> np.ndarray:
    found = np.zeros(size, bool)
    if runs:
        bounds = np.asarray(runs)
        found[ranges(bounds[:, 0], bounds[:, 1] - bounds[:, 0])] = True
    return found
