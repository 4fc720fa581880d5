"""Rows of the store to one packed batch: tokens side by side, no padding.

Axes: B examples of the batch, S sequences, each of tokens that attend to one another, K sequences of an example (1, or
2 where the texts of a pair are encoded apart; the windows of a long text do not count), T tokens of all sequences
together, U units of all of them: the tokens that are labelled, in tagging and in predicting masked words.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nlu.data.arrays import ranges
from nlu.data.examples import Examples
from nlu.data.targets import SCORING, Gathered
from nlu.data.targets.base import Key


@dataclass
class Filling:
    """What a batch that is filled up to a shape (`nlu.data.shapes`) knows of it, as tensors.

    Axes: T, S and N, rows of the loss, with filling; L the longest sequence of the shape.
    """

    slots_SL: Tensor
    """place in T of each token of each sequence; behind its end any place"""
    lengths_S: Tensor
    """tokens of each sequence; 0 for filling"""
    slot_T: Tensor
    """place in S * L of each token; -1 for filling"""
    is_real_N: Tensor
    """which rows of the loss, examples or units, are no filling"""
    identity_T: Tensor
    """a hash of the token's example, sequence and position, int32"""
    rows: int
    """rows of the loss that are no filling; stays on the host"""
    keys_T: Tensor | None = None
    """a random number for each token in a pass of a training step, int32; None: nothing is dropped"""

    def to(self, device: torch.device) -> "Filling":
        """Return the same with its tensors on the device, copied without waiting."""
        return Filling(**{name: _moved(value, device) for name, value in vars(self).items()})


@dataclass
class Batch:
    """A packed batch; sequences stand in order of length, so that equal lengths are neighbours."""

    examples_B: np.ndarray
    """index of each example in its set; stays on the host"""
    lengths: list[int]
    """tokens of each sequence, ascending; stays on the host, so that shapes cost no device sync"""
    tokens_T: Tensor
    segments_T: Tensor
    """0, or 1 in the second text of a pair that is one sequence"""
    positions_T: Tensor
    """place of each token in its own sequence"""
    starts_S: Tensor
    """place in T of each sequence's first token"""
    sequences_KB: Tensor
    """place in S of each sequence of each example, which may share one; with `windows_B` (1, S), example by example"""
    targets: dict[str, Tensor] = field(default_factory=dict)
    """the targets of the examples by name; their axes are those of the target's class"""
    units_U: Tensor | None = None
    """place in T of each unit that is labelled: the first token of a tagged word, or a token that the target chose"""
    unit_counts_B: np.ndarray | None = None
    """units of each example that fit; stays on the host"""
    key: Key = SCORING
    """(seed, epoch) of a training batch, else SCORING; with `examples_B` it decides the batch's random numbers"""
    unit_ends_U: np.ndarray | None = None
    """(U, 2): the first and the last character of each unit of a text; null where rows are lists of units; stays on the
    host"""
    member: str = ""
    """the set of a mixture that its examples belong to; empty in a run with one set"""
    windows_B: np.ndarray | None = None
    """windows of each example, each a sequence; None: each example is whole; stays on the host"""
    filling: Filling | None = None
    """None: the batch has no filling"""
    texts_KB: Tensor | None = None
    """of stored pairs in two sequences: a hash of each text, equal for equal texts on either side, whatever stands
    before them"""
    shared_B: np.ndarray | None = None
    """a hash of the first text of each example, if examples share the sequence of equal ones; stays on the host"""

    def __len__(self) -> int:
        return len(self.examples_B)

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens_T)

    @property
    def num_units(self) -> int:
        return 0 if self.units_U is None else len(self.units_U)

    def origin_S(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the place in B of each sequence's example, and the number of the sequence in its example; (S,)."""
        example_S, number_S = (np.empty(self.num_sequences, np.int64) for _ in range(2))
        places_KB = self.sequences_KB.cpu().numpy()
        if self.windows_B is not None:
            example_S[places_KB[0]] = np.repeat(np.arange(len(self)), self.windows_B)
            number_S[places_KB[0]] = ranges(np.zeros_like(self.windows_B), self.windows_B)
        else:
            example_S[places_KB], number_S[places_KB] = np.arange(len(self)), np.arange(len(places_KB))[:, None]
        return example_S, number_S

    def identities_S(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what decides the random numbers of each sequence in any batch: its example, of a sequence that
        examples share a hash of its text, and the number of the sequence in its example; (S,), uint64."""
        place_S, number_S = self.origin_S()
        example_S = self.examples_B[place_S].astype(np.uint64)
        if self.shared_B is not None:
            example_S = np.where(number_S == 0, self.shared_B[place_S].astype(np.uint64), example_S)
        return example_S, number_S.astype(np.uint64)

    def to(self, device: torch.device) -> Self:
        """Return the batch with its tensors on the device, copied without waiting."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {item.name: _moved(getattr(self, item.name), device) for item in fields(self)}
        moved["targets"] = {name: to_device(value, device) for name, value in self.targets.items()}
        return type(self)(**moved)

    def wait_for(self, copied: torch.cuda.Event) -> None:
        """Let the current stream use the batch, which another one copied to the device before it reached the event."""
        stream = torch.cuda.current_stream(self.tokens_T.device)
        stream.wait_event(copied)
        of_filling = () if self.filling is None else vars(self.filling).values()
        for value in (*vars(self).values(), *self.targets.values(), *of_filling):
            if isinstance(value, Tensor):
                # Otherwise a later copy could overwrite what this stream still reads.
                value.record_stream(stream)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Filling):
        return value.to(device)
    return to_device(value, device) if isinstance(value, Tensor) else value


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for it."""
    # A copy runs beside the computation only from pinned memory.
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def gather(part: Examples, examples_B: np.ndarray, key: Key = SCORING) -> Gathered:
    """Return the stored rows of examples, in order of length, with their sequences."""
    # Stable, so that the order of a batch is a function of its examples and not of the sorting method.
    examples_B = examples_B[np.argsort(part.lengths_N[examples_B], kind="stable")]
    rows_B = part.rows_N[examples_B]
    # `pack` relies on the order of lengths.
    return Gathered(part.stored, rows_B, examples_B, key, part.layout.pack(part.stored, rows_B), part.rows_of_set)


def collate(part: Examples, examples_B: np.ndarray, key: Key = SCORING) -> Batch:
    """Gather examples of a set into a packed batch, in order of length.

    `key` is (seed, epoch) in training. Without it the batch is one to be scored.
    """
    rows = gather(part, examples_B, key)
    # The target comes first: it may put other tokens in the place of those that were stored, and order examples anew.
    targets, packed = part.target.collate(rows), rows.packed
    return Batch(
        rows.examples_B,
        packed.lengths_S.tolist(),
        torch.from_numpy(packed.tokens_T.astype(np.int64)),
        torch.from_numpy(packed.segments_T.astype(np.int64)),
        torch.from_numpy(packed.positions_T),
        torch.from_numpy(packed.starts_S),
        torch.from_numpy(packed.sequences_KB),
        targets,
        None if packed.units_U is None else torch.from_numpy(packed.units_U),
        packed.unit_counts_B,
        key,
        packed.unit_ends_U,
        part.member,
        packed.windows_B,
        texts_KB=None if packed.texts_KB is None else torch.from_numpy(packed.texts_KB),
        shared_B=packed.shared_B,
    )
