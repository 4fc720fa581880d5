"""The streams of `nlu.models.layers.noise` by code in C, which draws from eight of them at once: the same numbers.

Axes: S streams.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np

from nlu.models.layers import noise
from nlu.models.layers.compiled.library import load


@cache
def library() -> ctypes.CDLL:
    """Return the code, built if necessary; raises UserError as `load` does."""
    return load("random_streams")


class CompiledStreams:
    """SFC64 generators with these seeds, (S, 3): a choice of `Noise.draw_by`."""

    def __init__(self, seeds_S3: np.ndarray):
        self._states_S4 = np.zeros((len(seeds_S3), 4), np.uint64)
        self._states_S4[:, :3] = seeds_S3
        library().nlu_streams_begin(_address(self._states_S4), ctypes.c_int64(len(seeds_S3)))

    def bits(self, counts: Sequence[int], first: int = 0) -> np.ndarray:
        """Return random numbers of 16 bits, one stream after another: `counts` of them for each one from `first`."""
        counts_S = np.array(counts, np.int64)
        states_S4 = self._states_S4[first : first + len(counts_S)]
        assert len(states_S4) == len(counts_S), "more streams than sequences"
        out = np.empty(int(counts_S.sum()), np.uint16)
        library().nlu_streams_draw(
            _address(states_S4), ctypes.c_int64(len(counts_S)), _address(counts_S), _address(out)
        )
        return out

    def position(self) -> np.ndarray:
        """Return the state of the streams, for `go_to`."""
        return self._states_S4.copy()

    def go_to(self, position: np.ndarray) -> None:
        """Restore a state that `position` returned."""
        self._states_S4[:] = position


def draw_in_c() -> None:
    """Let code in C draw the random numbers of this step, unless some were drawn already."""
    if (streams := noise.active()) is not None:
        streams.draw_by(CompiledStreams)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
