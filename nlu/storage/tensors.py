"""Files of tensors that notice damage: safetensors with a checksum, which is compared when they are read.

A file of another program has none, and is read as it is. Axes: B bytes, W words of 8 bytes in a chunk, C chunks.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

SAVED = "saved"
"""in the metadata of a file: its checksum, its part of a state and the step of the state. One key, since safetensors
writes several in random order, and the same tensors must give the same bytes"""
WORDS = 4096
"""in a chunk: whole chunks are summed by torch, which is as fast as memory"""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], step: int | None = None) -> None:
    """Write tensors, which are contiguous, on the CPU and share no memory; the part that the file names and `step` are
    kept with them."""
    saved = [checksum(tensors), path.stem, *([] if step is None else [str(step)])]
    save_file(dict(tensors), path, {SAVED: " ".join(saved)})


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors onto the CPU. Raises ValueError if they are not those that were saved."""
    tensors = load_file(path)
    saved = _metadata(path).get(SAVED)
    if saved is not None and saved.split()[0] != checksum(tensors):
        raise ValueError(f"{path.name} has other bytes than those that were saved")
    return tensors


def origin_of(path: Path) -> tuple[str | None, str | None]:
    """Return the part and the step that were kept with the tensors of a file, None where there is none."""
    metadata = _metadata(path)
    _, part, step = [*metadata.get(SAVED, "").split(), None, None, None][:3]
    # Files of an earlier version have the step only.
    return part, metadata.get("step", step)


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as opened:
        return opened.metadata() or {}


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum of names and bytes: CRC-32 of the sums of chunks of 32 kB, and of what is no whole chunk.

    Any change within 8 bytes shows, and one of more bytes or of the order of chunks with a probability of 1 - 2^-32.
    """
    found = 0
    for name in sorted(tensors):
        bytes_B = tensors[name].detach().reshape(-1).view(torch.uint8)
        if bytes_B.data_ptr() % 8 or bytes_B.storage_offset() % 8:
            bytes_B = bytes_B.clone()
        whole = len(bytes_B) // (8 * WORDS) * 8 * WORDS
        sums_C = bytes_B[:whole].view(torch.int64).view(-1, WORDS).sum(dim=1)
        for part in (name.encode(), sums_C.numpy().tobytes(), bytes_B[whole:].numpy().tobytes()):
            found = zlib.crc32(part, found)
    return f"{found:08x}"
