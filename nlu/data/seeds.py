"""Where every random number comes from: (seed, purpose, ...) through a stable hash, never a running generator.

Axes: T places of examples.

| purpose | further keys | same on all ranks |
|---|---|---|
| init | | yes |
| method | | yes |
| folds | | yes |
| order | epoch; with windows also the window | yes |
| lengths | | yes |
| batches | epoch | yes |
| windows | epoch | yes |
| mixture | round | yes |
| eval_rows | row, or hash of a group | yes |
| mask order, share, kind, word, n-gram | epoch, row of the store, place | yes |
| pair class, first, second, row | epoch, row of the store | yes |
| shuffle, shuffle order | epoch, row of the store, place | yes |
| dropout, CPU | step, example, which of its sequences | yes |
| dropout, compiled step | step, pass, example, which of its sequences, place, layer | yes |
| dropout, accelerator; torch's generator | rank, step, micro-batch | no |
"""

import hashlib
from collections.abc import Iterable

import numpy as np


def stable_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """Return 63 bits that depend on nothing but the arguments; the same on every machine and Python version."""
    text = "\x1f".join([str(seed), purpose, *map(str, keys)])
    return bytes_hash(text.encode())


def generator(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """Return a generator seeded by `stable_seed` of the arguments."""
    # Philox is made for many independent streams, one for each purpose.
    return np.random.Generator(np.random.Philox(stable_seed(seed, purpose, *keys)))


def uniforms(seed: int, purpose: str, *keys: int | str, example_T: np.ndarray, place_T: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each place of each example; (T,), float64.

    Each is a function of the seed, purpose, keys, the number of its example and its place there, so it is the same in
    any batch. It is output number `place` of the generator SplitMix64 (Steele et al. 2014,
    https://doi.org/10.1145/2660193.2660195), seeded by a hash of all else.
    """
    # One state for each place: the numbers depend neither on the batch nor on the order of calls.
    begin = np.array([stable_seed(seed, purpose, *keys)], np.uint64)
    state_T = mixed(mixed(begin) ^ example_T.astype(np.uint64)) + (place_T.astype(np.uint64) + _ONE) * GOLDEN
    # 53 bits, which is what a float64 in [0, 1) holds exactly.
    return (mixed(state_T) >> np.uint64(11)).astype(np.float64) * 2.0**-53


_ONE, GOLDEN = np.uint64(1), np.uint64(0x9E3779B97F4A7C15)


def mixed(bits: np.ndarray) -> np.ndarray:
    """Return the output of SplitMix64 for a state; arrays of uint64 wrap around."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def text_hash(text: str) -> int:
    """Return 63 bits that identify a text; used for duplicates, overlaps and splitting by text."""
    return bytes_hash(text.encode())


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """Return the `text_hash` of each text, (N,), int64."""
    digests = b"".join([hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts])
    return (np.frombuffer(digests, "<u8") >> np.uint64(1)).astype(np.int64)


def bytes_hash(content: bytes) -> int:
    """Return 63 bits that identify a content."""
    # Without the sign bit: hashes are stored in int64.
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1
