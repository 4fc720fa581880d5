"""Random numbers of a training step: a stream for each sequence, whatever is computed together with it.

So dropout masks depend neither on the number of ranks nor on how a step is divided into micro-batches. A stream is a
function of (seed, step, example, which of the example's sequences); layers take from it in the order in which they are
called. On an accelerator layers draw from torch's generator instead, whose masks are made inside of its kernels.

Axes: S sequences.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nlu.data.collate import Batch
from nlu.data.seeds import stable_seed

PER_WORD = 4
"""draws of 16 bits in a word of a generator"""


class Noise:
    """The streams of a micro-batch."""

    def __init__(self, seed: int, step: int, batch: Batch):
        """`batch`: on the host."""
        self.lengths = batch.lengths
        self._keys = stable_seed(seed, "dropout", step), batch.examples_B, batch.sequences_KB.numpy()
        self._generators: list[np.random.SFC64] | None = None

    def rows(self, count: int) -> list[int]:
        """Return how many of `count` rows belong to each sequence: all of its tokens, or one where there is a row for
        each sequence. Rows after those of the last sequence belong to none."""
        return [1] * len(self.lengths) if count == len(self.lengths) else self.lengths

    def bits(self, counts: Sequence[int], first: int = 0) -> np.ndarray:
        """Return random numbers of 16 bits, side by side: as many as `counts` says for each sequence from `first`."""
        generators = self._all()[first : first + len(counts)]
        words = [
            generator.random_raw(-(-count // PER_WORD)) for generator, count in zip(generators, counts, strict=True)
        ]
        if all(count % PER_WORD == 0 for count in counts):
            return np.concatenate(words).view(np.uint16)
        return np.concatenate([word.view(np.uint16)[:count] for word, count in zip(words, counts, strict=True)])

    def position(self) -> list[Any] | None:
        """Return where the streams are now, for `go_to`."""
        return None if self._generators is None else [generator.state for generator in self._generators]

    def go_to(self, position: list[Any] | None) -> None:
        """Take what follows from where the streams were at `position`."""
        if position is None:
            self._generators = None
            return
        for generator, state in zip(self._all(), position, strict=True):
            generator.state = state

    def _all(self) -> list[np.random.SFC64]:
        # Making them takes longer than drawing for a small layer, so a model without dropout does not.
        if self._generators is None:
            begin, examples_B, sequences_KB = self._keys
            self._generators = [None] * len(self.lengths)  # type: ignore[list-item]
            for text, sequences_B in enumerate(sequences_KB.tolist()):
                for example, sequence in zip(examples_B.tolist(), sequences_B, strict=True):
                    self._generators[sequence] = np.random.SFC64([begin, example, text])
        return self._generators


_active: Noise | None = None


def active() -> Noise | None:
    """Return the streams that layers draw from now; None where they draw from torch's generator."""
    return _active


@contextmanager
def drawing_from(noise: Noise | None) -> Iterator[None]:
    """Let layers draw from these streams within the block."""
    global _active
    before, _active = _active, noise
    try:
        yield
    finally:
        _active = before
