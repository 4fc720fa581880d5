"""A checksum of arrays, as fast as memory, to notice damage of files. Axes: B bytes, C chunks."""

import zlib
from collections.abc import Iterable

import numpy as np

WORDS = 4096
"""of 8 bytes in a chunk"""


def checksum(parts: Iterable[tuple[str, np.ndarray]]) -> str:
    """Return a checksum of names and arrays, in their order: CRC-32 of the sums of chunks of 32 kB, and of what is no
    whole chunk.

    Any change within 8 bytes shows, and one of more bytes or of the order of chunks with a probability of 1 - 2^-32.
    """
    found = 0
    for name, array in parts:
        bytes_B = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        whole = len(bytes_B) // (8 * WORDS) * 8 * WORDS
        sums_C = bytes_B[:whole].view(np.int64).reshape(-1, WORDS).sum(axis=1)
        for part in (name.encode(), sums_C.tobytes(), bytes_B[whole:].tobytes()):
            found = zlib.crc32(part, found)
    return f"{found:08x}"
