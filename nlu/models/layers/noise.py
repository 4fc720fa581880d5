"""Random numbers of a training step: a stream for each sequence, independent of the rest of the batch.

So dropout masks depend neither on the number of ranks nor on the division of a step into micro-batches. A stream is a
function of (seed, step, example, index of the sequence in its example); layers draw from it in the order of their
calls. On an accelerator layers draw from torch's generator instead, inside of torch's kernels.

Axes: S sequences.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor

from nlu.data.collate import Batch
from nlu.data.seeds import GOLDEN, mixed, stable_seed

PER_WORD = 4
"""random numbers of 16 bits in a word of the generator"""


class Streams(Protocol):
    """Code that draws from SFC64 generators, one for each row of three words that seed it (`seeds_of`)."""

    def bits(self, counts: Sequence[int], first: int = 0) -> np.ndarray:
        """Return random numbers of 16 bits, as `Noise.bits`."""

    def position(self) -> Any:
        """Return the state of the streams, for `go_to`."""

    def go_to(self, position: Any) -> None:
        """Restore a state that `position` returned."""


class Noise:
    """The streams of a micro-batch."""

    def __init__(self, seed: int, step: int, batch: Batch):
        """`batch`: on the host."""
        self.lengths = batch.lengths
        self._keys = stable_seed(seed, "dropout", step), batch.examples_B, batch.sequences_KB.numpy()
        self._drawn_by: Callable[[np.ndarray], Streams] = _Generators
        self._streams: Streams | None = None

    def draw_by(self, code: Callable[[np.ndarray], Streams]) -> None:
        """Let other code draw the same numbers, unless something was drawn already."""
        self._drawn_by = code

    def rows(self, count: int) -> list[int]:
        """Return the number of rows of each sequence, for `count` rows in all: one each if there are as many rows as
        sequences, else one for each token. Further rows belong to no sequence."""
        return [1] * len(self.lengths) if count == len(self.lengths) else self.lengths

    def rows_at(self, places_U: Tensor) -> list[int]:
        """Return the number of rows of each sequence, for one row for each of the tokens at `places_U`, in ascending
        order."""
        ends_S = np.cumsum(self.lengths)
        # right: a token at the end of one sequence is the first of the next.
        sequence_U = np.searchsorted(ends_S, places_U.numpy(), side="right")
        return np.bincount(sequence_U, minlength=len(ends_S)).tolist()

    def uniform(self, rows: Sequence[int], width: int) -> np.ndarray:
        """Return numbers in [-1, 1), multiples of 2**-15, `width` of them for each row; (R, width), float32."""
        bits = self.bits([count * width for count in rows]).reshape(-1, width)
        return bits.astype(np.float32) * np.float32(2.0**-15) - 1

    def bits(self, counts: Sequence[int], first: int = 0) -> np.ndarray:
        """Return random numbers of 16 bits, one sequence after another: `counts` of them for each sequence from
        `first`."""
        return self._all().bits(counts, first)

    def position(self) -> Any:
        """Return the state of the streams, for `go_to`."""
        return None if self._streams is None else self._streams.position()

    def go_to(self, position: Any) -> None:
        """Restore a state that `position` returned."""
        if position is None:
            self._streams = None
        else:
            self._all().go_to(position)

    def _all(self) -> Streams:
        # Created lazily, because a model without dropout draws nothing.
        if self._streams is None:
            begin, examples_B, sequences_KB = self._keys
            example_S, text_S = (np.empty(len(self.lengths), np.uint64) for _ in range(2))
            for text, sequences_B in enumerate(sequences_KB):
                example_S[sequences_B], text_S[sequences_B] = examples_B, text
            self._streams = self._drawn_by(seeds_of(begin, example_S, text_S))
        return self._streams


class _Generators:
    """NumPy's generators."""

    def __init__(self, seeds_S3: np.ndarray):
        self._generators = [
            np.random.SFC64(_Given(words))  # type: ignore[arg-type]  # its annotation leaves out ISeedSequence
            for words in seeds_S3
        ]

    def bits(self, counts: Sequence[int], first: int = 0) -> np.ndarray:
        generators = self._generators[first : first + len(counts)]
        words = [
            generator.random_raw(-(-count // PER_WORD)) for generator, count in zip(generators, counts, strict=True)
        ]
        # Then all words can be joined without copying each part.
        if all(count % PER_WORD == 0 for count in counts):
            return np.concatenate(words).view(np.uint16)
        return np.concatenate([word.view(np.uint16)[:count] for word, count in zip(words, counts, strict=True)])

    def position(self) -> list[Any]:
        return [generator.state for generator in self._generators]

    def go_to(self, position: list[Any]) -> None:
        for generator, state in zip(self._generators, position, strict=True):
            generator.state = state


def seeds_of(begin: int, example_S: np.ndarray, text_S: np.ndarray) -> np.ndarray:
    """Return the three words that seed the generator of each sequence; (S, 3).

    They are outputs of SplitMix64 (Steele et al. 2014, https://doi.org/10.1145/2660193.2660195), whose states are
    hashes of the keys.
    """
    # Nested, so that each key changes all bits before the next one is added; a sum of keys would give equal streams to
    # different examples.
    state_S = mixed(mixed(mixed(np.array([begin], np.uint64)) ^ example_S) ^ text_S)
    return mixed(state_S[:, None] + np.arange(1, 4, dtype=np.uint64) * GOLDEN)


class _Given(ISeedSequence):
    """Seeds a generator with given words; NumPy's SeedSequence takes ten times as long, which is noticeable in a small
    model."""

    def __init__(self, words: np.ndarray):
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        """Return the words."""
        assert n_words == len(self._words) and dtype is np.uint64
        return self._words


_active: Noise | None = None


def active() -> Noise | None:
    """Return the streams from which layers draw now; None: torch's generator."""
    return _active


@contextmanager
def drawing_from(noise: Noise | None) -> Iterator[None]:
    """Make layers draw from these streams inside the block."""
    global _active
    before, _active = _active, noise
    try:
        yield
    finally:
        _active = before
