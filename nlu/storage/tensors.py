"""Files of tensors that notice damage: safetensors with a checksum, which is compared when they are read.

The checksum is as fast as memory. A file of another program has none, and is read as it is.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nlu.storage.checksum import checksum

SAVED = "saved"
"""in the metadata of a file: its checksum, its part of a state and the step of the state. One key, since safetensors
writes several in random order, and the same tensors must give the same bytes"""


class Damaged(ValueError):
    """A file has other bytes than those that were saved."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], step: int | None = None) -> None:
    """Write tensors, which are contiguous, on the CPU and share no memory; the part that the file names and `step` are
    kept with them."""
    saved = [_checksum(tensors), path.stem, *([] if step is None else [str(step)])]
    save_file(dict(tensors), path, {SAVED: " ".join(saved)})


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors onto the CPU. Raises Damaged if they are not those that were saved."""
    tensors = load_file(path)
    saved = _metadata(path).get(SAVED)
    if saved is not None and saved.split()[0] != _checksum(tensors):
        raise Damaged(f"{path.name} does not match its checksum")
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


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    # In bytes, since numpy has no bfloat16.
    return checksum((name, tensors[name].detach().reshape(-1).view(torch.uint8).numpy()) for name in sorted(tensors))
