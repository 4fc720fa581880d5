"""Where every random number comes from: (seed, purpose, ...) through a stable hash, never a running generator.

| purpose | further keys | same on all ranks |
|---|---|---|
| init | | yes |
| folds | | yes |
| order | epoch; with windows also the window | yes |
| windows | epoch | yes |
| dropout | rank, step, micro-batch | no |
"""

import hashlib

import numpy as np


def stable_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """Return 63 bits that depend on nothing but the arguments; the same on every machine and Python version."""
    text = "\x1f".join([str(seed), purpose, *map(str, keys)])
    return bytes_hash(text.encode())


def generator(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """Return a generator seeded by `stable_seed` of the arguments."""
    return np.random.Generator(np.random.Philox(stable_seed(seed, purpose, *keys)))


def text_hash(text: str) -> int:
    """Return 63 bits that identify a text; used for duplicates, overlaps and splitting by text."""
    return bytes_hash(text.encode())


def bytes_hash(content: bytes) -> int:
    """Return 63 bits that identify a content."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1
