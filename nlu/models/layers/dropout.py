"""Dropout whose masks, on a CPU, depend on the example and not on its batch; and layers that compute themselves again.

Srivastava et al. 2014 (https://jmlr.org/papers/v15/srivastava14a.html). In a training step each sequence has a stream
of random numbers, a function of (seed, step, example, index of the sequence in its example), from which layers draw in
the order of their calls. So masks depend neither on ranks nor on micro-batches nor on padding. Outside of a step, and
on an accelerator, where drawing on the host would cost more than all else, torch's own dropout is used.

The models of transformers draw from torch's generator, which is seeded for each micro-batch of a rank.

Gradient checkpointing (Chen et al. 2016, https://arxiv.org/abs/1604.06174) keeps only the inputs of layers, and
computes the tensors inside again in the backward pass. torch restores its own random numbers and autocast; these
streams, and modes of torch that the first pass was in, are restored here, so the gradient has the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nlu.config.errors import UserError
from nlu.data.collate import Batch, Filling
from nlu.data.seeds import GOLDEN, mixed, stable_seed

STEPS = 2**16
"""probabilities are rounded to a multiple of 1 / STEPS"""

Modes = Callable[[], AbstractContextManager[object]]
"""returns the context of the modes in which a layer is computed"""


class Noise:
    """The streams of a micro-batch, which is on the host."""

    def __init__(self, seed: int, step: int, batch: Batch):
        self.lengths = batch.lengths
        example_S, text_S = batch.identities_S()
        # SplitMix64 (Steele et al. 2014, https://doi.org/10.1145/2660193.2660195) from nested hashes of the keys: a sum
        # of keys would give equal streams to different examples.
        begin = np.array([stable_seed(seed, "dropout", step)], np.uint64)
        state_S = mixed(mixed(mixed(begin) ^ example_S) ^ text_S)
        seeds_S3 = mixed(state_S[:, None] + np.arange(1, 4, dtype=np.uint64) * GOLDEN)
        self._generators = [np.random.SFC64(_Given(words)) for words in seeds_S3]  # type: ignore[arg-type]

    def rows(self, count: int) -> list[int]:
        """Return the number of rows of each sequence, for `count` rows in all: one each if there are as many rows as
        sequences, else one for each token. Further rows belong to no sequence."""
        return [1] * len(self.lengths) if count == len(self.lengths) else self.lengths

    def rows_at(self, places_U: Tensor) -> list[int]:
        """Return the number of rows of each sequence, for one row for each of the tokens at `places_U`, ascending."""
        ends_S = np.cumsum(self.lengths)
        # right: a token at the end of one sequence is the first of the next.
        sequence_U = np.searchsorted(ends_S, places_U.numpy(), side="right")
        return np.bincount(sequence_U, minlength=len(ends_S)).tolist()

    def uniform(self, rows: Sequence[int], width: int) -> np.ndarray:
        """Return numbers in [-1, 1), multiples of 2**-15, `width` of them for each row; (R, width), float32."""
        bits = self.bits([count * width for count in rows]).reshape(-1, width)
        return bits.astype(np.float32) * np.float32(2.0**-15) - 1

    def bits(self, counts: Sequence[int], first: int = 0) -> np.ndarray:
        """Return random numbers of 16 bits: `counts` of them for each sequence from `first`, one after another."""
        drawn = zip(self._generators[first : first + len(counts)], counts, strict=True)
        # A word of a generator has four numbers.
        return np.concatenate([each.random_raw(-(-count // 4)).view(np.uint16)[:count] for each, count in drawn])

    def position(self) -> object:
        """Return the state of the streams, for `go_to`."""
        return [generator.state for generator in self._generators]

    def go_to(self, position: Any) -> None:
        """Restore a state that `position` returned."""
        for generator, state in zip(self._generators, position, strict=True):
            generator.state = state


class _Given(ISeedSequence):
    """Seeds a generator with given words; NumPy's SeedSequence takes ten times as long."""

    def __init__(self, words: np.ndarray):
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        assert n_words == len(self._words) and dtype is np.uint64
        return self._words


class TokenKeys:
    """The random numbers of the passes of a compiled step over a filled batch, computed on its device: functions of
    (seed, step, pass, example, sequence, position, layer, place), so that they depend on no batch, rank or filling."""

    def __init__(self, seed: int, step: int, filling: Filling):
        self._begin, self._passes = stable_seed(seed, "dropout", step) % 2**31, 0
        self._identity_T = filling.identity_T

    def next_pass(self) -> Tensor:
        """Return a number for each token in the pass that follows; (T,), int32."""
        self._passes += 1
        return hashed(hashed(self._identity_T ^ self._begin) + self._passes)


def layer_keys(batch: Batch, layer: int, training: bool) -> Tensor | None:
    """Return a number for each token in a layer of a compiled training step, else None; (T,), int32."""
    keys_T = batch.filling.keys_T if batch.filling is not None and training else None
    return None if keys_T is None else hashed(keys_T + layer)


def hashed(bits: Tensor) -> Tensor:
    """Return a hash of each number, int32: lowbias32 of C. Wellons (https://nullprogram.com/blog/2018/07/31/)."""
    # Shifts of int32 keep the sign, which the masks cut off; products wrap around.
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return bits ^ (bits >> 16 & 0xFFFF)


def dropped(input: Tensor, probability: float, keys: Tensor, columns: Tensor | None = None) -> Tensor:
    """Return the input with elements zeroed by `keys`, int32, one for each row along the last axis.

    `columns`: the numbers of columns, int32; None: from 0.
    """
    if columns is None:
        columns = torch.arange(input.shape[-1], dtype=torch.int32, device=input.device)
    # Numbers of columns are spread over all bits, since keys of neighbours may differ in the last ones only.
    bits = hashed(keys[..., None] ^ hashed(columns))
    return torch.where((bits & STEPS - 1) >= round(probability * STEPS), input / (1 - probability), 0.0)


_active: Noise | TokenKeys | None = None


def active() -> Noise | None:
    """Return the streams from which layers draw now; None: torch's generator, or the keys of a compiled step."""
    return _active if isinstance(_active, Noise) else None


def next_pass() -> Tensor | None:
    """Return the `TokenKeys` of the pass that follows in a compiled step, else None."""
    return _active.next_pass() if isinstance(_active, TokenKeys) else None


@contextmanager
def drawing_from(noise: Noise | TokenKeys | None) -> Iterator[None]:
    """Make layers draw from these streams inside the block."""
    global _active
    before, _active = _active, noise
    try:
        yield
    finally:
        _active = before


class Dropout(nn.Module):
    """Zero elements with `probability` in training and scale the others by 1 / (1 - probability)."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, input: Tensor, rows: Sequence[int] | None = None, keys: Tensor | None = None) -> Tensor:
        """`rows`: the number of input rows of each sequence; None: a row for each token, or one for each sequence;
        `keys`: those of the rows in a compiled step."""
        if not (self.training and self.probability):
            return input
        return dropout(input, self.probability, rows) if keys is None else dropped(input, self.probability, keys)


def dropout(input: Tensor, probability: float, rows: Sequence[int] | None = None, first: int = 0) -> Tensor:
    """Return the input with elements zeroed at random.

    Its first axis has `rows` rows for each sequence, starting with the sequence `first`; None is as in `Dropout`. Rows
    after those of the last sequence are kept, but scaled.
    """
    if not probability:
        return input
    if (noise := active()) is None or input.device.type != "cpu":
        return F.dropout(input, probability)
    width = input.numel() // max(1, len(input))
    bits = noise.bits([each * width for each in rows or noise.rows(len(input))], first)
    # The largest number keeps an element.
    bits = np.pad(bits, (0, input.numel() - len(bits)), constant_values=STEPS - 1)
    return input * _mask(bits, probability, input.dtype).view(input.shape)


def _mask(bits: np.ndarray, probability: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of dropout, 0 or 1 / (1 - probability), for random numbers of 16 bits."""
    kept = bits >= round(probability * STEPS)
    # Multiplying the bits of a float by 0 or 1 is many times faster than converting or selecting.
    signed, unsigned = (torch.int32, np.uint32) if dtype == torch.float32 else (torch.int16, np.uint16)
    factor = torch.tensor(1 / (1 - probability), dtype=dtype).view(signed).item()
    return torch.from_numpy(np.multiply(kept, unsigned(factor), dtype=unsigned)).view(dtype)


def recomputed(layer: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Return `layer(*inputs)`, which is called again in the backward pass with the same random numbers."""
    result: Tensor = checkpoint(layer, *inputs, use_reentrant=False, context_fn=contexts)
    return result


def contexts(modes: Modes = nullcontext) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return the context of a first call, which begins now, and that of its repetitions, as torch's `context_fn`."""
    return nullcontext(), _Again(modes)


class _Again:
    """The streams as they are when this object is made. It can be entered several times, one after another."""

    def __init__(self, modes: Modes):
        self._modes, self._streams = modes, active()
        self._position = self._streams.position() if self._streams else None
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        stack = ExitStack()
        stack.enter_context(drawing_from(self._streams))
        if (streams := self._streams) is not None:
            here = streams.position()
            stack.callback(lambda: streams.go_to(here))
            streams.go_to(self._position)
        stack.enter_context(self._modes())
        self._entered.append(stack)

    def __exit__(self, *of_error: object) -> None:
        # torch ends a repetition by an exception once it has all tensors.
        self._entered.pop().close()


def recompute_layers(inner: Any, context_fn: Callable[[], object]) -> None:
    """Make the layers of a model of transformers compute themselves again, with the contexts that this returns.

    Raises UserError if its architecture does not provide for that.
    """
    # Versions before 5.24 only have the second name.
    enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False, "context_fn": context_fn})
    except ValueError:
        raise UserError(
            f"model.gradient_checkpointing is true, but transformers cannot compute the layers of "
            f"{inner.config.model_type} again; set it to false"
        ) from None
