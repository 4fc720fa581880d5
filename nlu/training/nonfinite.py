"""A step whose loss or gradient is not finite, or whose loss is too large: its rows, and where that began.

The search runs only after such a step. Nothing was updated, so the passes of the step can be repeated. With
`trainer.detect_anomaly`, torch watches every step instead, and its error names the operation whose gradient is NaN.

Axes: B examples of a micro-batch.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.sentences import listed
from nlu.data.examples import Examples
from nlu.methods.method import Scale
from nlu.optim.optimizer import named_parameters
from nlu.tasks.composite import task_of
from nlu.training.memory import divided, tried
from nlu.training.passes import Passes, Share

SHOWN_ROWS = 8
SHOWN_TEXTS = 3
SHOWN_CHARACTERS = 100


class NonFinite(UserError):
    """The loss or the gradient of a step is not finite. Equal on all ranks, with nothing updated."""


class AboveMaxLoss(UserError):
    """The loss of a step is above `trainer.max_loss`. Equal on all ranks, with nothing updated."""


def explain(
    stepper: Any, part: Examples, micro_batches: list[np.ndarray], number: int, epoch: int, scale: Scale,
    what: str, value: float, loss_scale: float | None,
) -> UserError:  # fmt: skip
    """Return the error of step `number`, in which `what`, the loss or the gradient norm, is `value`.

    Of a value that is not finite, it names the rows with their texts, the module or operation, and the rank;
    a loss that is finite is above `trainer.max_loss`, and only the rows are named. `stepper` is that of the run, with
    the weights from before the step, `micro_batches` holds the examples of this rank, `scale` the factors that the
    passes used. All ranks must call it. Gradients are lost.
    """
    nothing = "nothing was updated"
    # What passes change besides gradients is put back, since the state may still be saved.
    stepper.passes.buffers.begin(number)
    # In the same pieces, for which memory is enough.
    search = _Search(stepper.passes, part, divided(micro_batches, stepper.pieces), number, epoch, scale)
    if math.isfinite(value):
        return AboveMaxLoss(
            f"the loss is {value:g} at step {number}, {search.named([])}, above trainer.max_loss, "
            f"{stepper.max_loss:g}; {nothing}; in a new run, lower optimizer.lr, lengthen scheduler.warmup, set "
            "trainer.clip_norm, or set trainer.max_loss higher"
        )
    compiled = stepper.passes.compiled
    with compiled.eagerly() if compiled else nullcontext():
        rows = search.rows()
        sentences = [search.place(), *search.texts(rows)]
    stepper.passes.buffers.begin(number)
    at = "" if loss_scale is None else f" at a loss scale of {loss_scale:g}"
    return NonFinite(
        *sentences,
        summary=f"the {what} is {value}{at} at step {number}, {search.named(rows)}; {nothing}",
        remedy="in a new run, lower optimizer.lr, lengthen scheduler.warmup or set trainer.clip_norm; with "
        "precision=bf16 or fp16 try fp32; trainer.detect_anomaly=true names the operation of a gradient that is NaN",
    )


@dataclass
class _Search:
    """The passes of a step, to be repeated. All ranks make each call."""

    passes: Passes
    part: Examples
    micro_batches: list[np.ndarray]
    """the examples of this rank"""
    number: int
    epoch: int
    scale: Scale
    first: tuple[int, int] | None = None
    """the first micro-batch that is not finite, and the first rank with such rows in it; None if only the sum is not"""

    def rows(self) -> list[int]:
        """Return the examples of this rank whose loss or gradient is not finite, and set `first`.

        The step is repeated by micro-batches, and by single rows for a micro-batch that is not finite.
        """
        ranks = self.passes.ranks
        found: list[int] = []
        for micro, examples_B in enumerate(self.micro_batches):
            is_bad = not self._is_finite(examples_B, micro)
            flags = ranks.all_on_host(float(is_bad))
            # Decided by all ranks together.
            if not any(flags):
                continue
            self.first = self.first or (micro, flags.index(1.0))
            if is_bad:
                single: list[int] = []
                for row in range(len(examples_B)):
                    # Some modules, such as batch norm, refuse a single row.
                    with suppress(ValueError):
                        single += [] if self._is_finite(examples_B[row : row + 1], micro) else [row]
                # None may be at fault by itself.
                found += examples_B[single].tolist() or examples_B.tolist()
        return found

    def place(self) -> str:
        """Return where the first number is not finite, in words; equal on all ranks."""
        if self.first is None:
            return "every micro-batch is finite by itself; only their sum is not"
        (micro, rank), ranks = self.first, self.passes.ranks
        (share,) = self.passes.shares(self.part, [self.micro_batches[micro]], self.epoch)
        said: str | None = None
        if share is not None and ranks.rank == rank:
            # Watching takes a little more memory than the pass.
            said = tried(partial(self._watched, share, micro)) or "at a place that is not known, since memory ran out"
        self.passes.forget_gradients()
        (found,) = [one for one in ranks.gather_to_first(said) or [""] if one is not None]
        return f"first {ranks.from_first(found)}{f', on rank {rank}' if ranks.world_size > 1 else ''}"

    def named(self, rows: list[int]) -> str:
        """Return these rows of all ranks by their numbers in the file; all rows of the step if there are none."""
        own, ranks = (self._numbers(rows), self._numbers(np.concatenate(self.micro_batches))), self.passes.ranks
        gathered = ranks.gather_to_first(own) or []
        found, every = (sorted(number for one in gathered for number in one[kind]) for kind in (0, 1))
        return f"{ranks.from_first(named(found, every))} of {self.part.name}"

    def texts(self, rows: list[int]) -> list[str]:
        """Return a sentence with the text of each of the first rows of all ranks, read from the files again."""
        shown_B, ranks = np.unique(np.array(rows, np.int64))[:SHOWN_TEXTS], self.passes.ranks
        values = self.part.some(shown_B).texts() if len(shown_B) else []
        own = [
            (number, " ".join(" | ".join(map(_text, row.values())).split())[:SHOWN_CHARACTERS])
            for number, row in zip(self._numbers(shown_B), values, strict=True)
            if row is not None
        ]
        several = sorted(one for each in ranks.gather_to_first(own) or [] for one in each)[:SHOWN_TEXTS]
        return list(ranks.from_first([f'row {number} of {self.part.name}: "{text}"' for number, text in several]))

    def _numbers(self, examples: Any) -> list[int]:
        found: list[int] = self.part.stored.scalars("number", self.part.rows_N[np.asarray(examples, np.int64)]).tolist()
        return found

    def _is_finite(self, examples_B: np.ndarray, micro: int) -> bool:
        """Whether these examples of a micro-batch give a finite loss and gradient; True without examples."""
        # Of several ranks, one without rows has a placeholder.
        (share,) = self.passes.shares(self.part, [examples_B], self.epoch)
        if share is None:
            return True
        self.passes.forget_gradients()
        sums = self.passes.backward(share, self.scale, self.number, micro)
        self.passes.sums.give()
        norm = torch.nn.utils.get_total_norm([each.grad for each in self.passes.trained if each.grad is not None])
        return not share.is_own or bool(torch.isfinite(sums.sum() + norm))

    def _watched(self, share: Share, micro: int) -> str:
        """Repeat a pass with hooks on all modules, and return where its first number is not finite, to follow "first".

        Of the operations of the backward pass, only `trainer.detect_anomaly` knows which one failed.
        """
        passes = self.passes
        parameters = dict(named_parameters(passes.model, passes.own))
        if bad := [name for name, one in parameters.items() if not _is_finite(one)]:
            return f"in the weights from before the step: {listed(bad, 1)}"
        sums = passes.backward(share, self.scale, self.number, micro).tolist()
        terms = [name for name, total in zip(self.scale, sums, strict=True) if not math.isfinite(total)]
        term = f", term {', '.join(terms)}" if terms and len(sums) > 1 else ""
        task = task_of(passes.task, share.batch.member)
        passes.forget_gradients()
        try:
            with _watching(passes.model):
                passes.backward(share, self.scale, self.number, micro)
                passes.sums.give()
        except _FoundError as found:
            return f"in the forward pass of {found}{term}"
        if terms:
            return f"in the loss ({type(getattr(task, 'loss', task)).__name__}){term}"
        # Gradients come from the end of the model, so its last parameters get theirs first.
        if bad := [name for name, one in parameters.items() if one.grad is not None and not _is_finite(one.grad)]:
            return f"in the backward pass, in the gradient of {listed(bad[::-1], 1)}"
        return "in no module when repeated: the norm of finite gradients overflows, or the pass is not reproducible"


class _FoundError(Exception):
    """A module whose result is not finite."""


@contextmanager
def _watching(model: nn.Module) -> Iterator[None]:
    """Raise _FoundError with the first module that returns a number that is not finite in the block."""

    def look(name: str, module: nn.Module, given: object, output: object) -> None:
        if not all(map(_is_finite, _tensors_in(output))):
            before = "" if all(map(_is_finite, _tensors_in(given))) else "code before "
            raise _FoundError(f"{before}{name or 'the model'} ({type(module).__name__})")

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_hook(partial(look, name)).remove)
        yield


def _tensors_in(value: Any) -> list[Tensor]:
    """Return the floating tensors in lists, tuples and mappings."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() and value.layout == torch.strided else []
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for each in parts for tensor in _tensors_in(each)]


def _is_finite(tensor: Tensor) -> bool:
    """Whether no number is at fault; minus infinity in a mask, a constant, is not."""
    # Detached, since the operations of a check must not enter the graph.
    values = tensor.detach()
    found = values.isfinite() if tensor.requires_grad else ~values.isnan() & (values != math.inf)
    return bool(found.all())


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def named(found: list[int], every: list[int]) -> str:
    """Return the found rows among every row of a step, in words, both sorted; every row if none was found."""
    rows = found or every
    return f"row{'s' * (len(rows) > 1)} {listed([*map(str, rows)], SHOWN_ROWS)}"


@contextmanager
def detecting(number: int) -> Iterator[None]:
    """Stop the backward passes of step `number` in the block at the first operation that returns NaN.

    Raises UserError with its name; torch warns with the traceback of the call that ran it. Numbers do not change.
    """
    try:
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            yield
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        raise UserError(
            f"the gradient becomes NaN in the backward pass of step {number}, and nothing was updated: {error} The "
            "traceback above is that of the call in the forward pass"
        ) from error
