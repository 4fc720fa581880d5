"""A step whose loss or gradient is not finite, or whose loss is too large: its rows, and where that began.

Nothing here runs in a healthy step. Nothing was updated, so the passes of the step can be repeated.

Axes: B examples of a micro-batch.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from os.path import commonprefix
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.data.examples import Examples
from nlu.methods.method import Scale
from nlu.models.layers.recomputing import is_repetition
from nlu.optim.optimizer import OF_METHOD
from nlu.tasks.composite import task_of
from nlu.training.memory import divided, tried
from nlu.training.passes import Passes, Share

SHOWN_ROWS = 8
SHOWN_TEXTS = 3
SHOWN_CHARACTERS = 100
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""modules that compute nothing of their own"""


class NonFinite(UserError):
    """The loss or the gradient of a step is not finite. Equal on all ranks, with nothing updated."""


class AboveMaxLoss(UserError):
    """The loss of a step is above `trainer.max_loss`. Equal on all ranks, with nothing updated."""


def explain(
    stepper: Any, part: Examples, micro_batches: list[np.ndarray], number: int, epoch: int, scale: Scale,
    what: str, value: float, loss_scale: float | None,
) -> UserError:  # fmt: skip
    """Return the error of step `number`, in which `what`, the loss or the gradient norm, is `value`.

    Of a value that is not finite, it names the rows with their texts, the module, the term of the loss and the rank;
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
    rows = search.rows()
    sentences = [search.place(), *search.texts(rows)]
    stepper.passes.buffers.begin(number)
    at = "" if loss_scale is None else f" at a loss scale of {loss_scale:g}"
    return NonFinite(
        *sentences,
        summary=f"the {what} is {value}{at} at step {number}, {search.named(rows)}; {nothing}",
        remedy="in a new run, lower optimizer.lr, lengthen scheduler.warmup or set trainer.clip_norm; with "
        "precision=bf16 or fp16 try fp32; the same command with resume=auto trainer.detect_anomaly=true runs into it "
        "again and names the operation",
    )


@dataclass
class _Search:
    """The passes of a step, to be repeated. All ranks make each call, since a strategy may communicate in a pass."""

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
            most = int(max(ranks.all_on_host(float(len(examples_B)))))
            single: list[int] = []
            for row in range(most):
                # Some modules, such as batch norm, refuse a single row.
                with suppress(ValueError):
                    single += [] if self._is_finite(examples_B[row : row + 1], micro) else [row]
            if is_bad:
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
        elif share is not None:
            self.passes.backward(share, self.scale, self.number, micro)
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
        # A rank that has run out of rows repeats a placeholder, to stay in step with the others.
        (share,) = self.passes.shares(self.part, [examples_B], self.epoch)
        if share is None:
            return True
        self.passes.forget_gradients()
        sums = self.passes.backward(share, self.scale, self.number, micro)
        norm = torch.nn.utils.get_total_norm([each.grad for each in self.passes.trained if each.grad is not None])
        return not share.is_own or bool(torch.isfinite(sums.sum() + norm))

    def _watched(self, share: Share, micro: int) -> str:
        """Repeat a pass with hooks and return where its first number is not finite, to follow "first"."""
        passes = self.passes
        roots = {"": passes.model, **({} if passes.own is None else {OF_METHOD.rstrip("."): passes.own})}
        task: Any = task_of(passes.task, share.batch.member)
        loss = f"the loss ({type(getattr(task, 'loss', task)).__name__})"
        watch = _Watch(roots, loss, f"the method ({type(passes.method).__name__})")
        with watch.watching():
            sums = passes.backward(share, self.scale, self.number, micro)
        if bad := [name for name, one in watch.parameters.items() if not _is_finite(one)]:
            more = f" and {counted(len(bad) - 1, 'other parameter')}" if bad[1:] else ""
            return f"in the weights from before the step: {bad[0]}{more}"
        terms = [name for name, total in zip(self.scale, sums.tolist(), strict=True) if not math.isfinite(total)]
        term = f", term {', '.join(terms)}" if terms and len(self.scale) > 1 else ""
        # A loss that is finite, but not its gradient, was computed.
        if terms and watch.place in (None, f"in the backward pass of {loss}"):
            return f"in {loss}{term}"
        if watch.place is not None:
            return f"{watch.place}{term}"
        return "in no module when repeated: the norm of finite gradients overflows, or the pass is not reproducible"


@dataclass
class _Tensor:
    """A tensor whose gradient is watched: what returned it, from the inside out, and what it entered."""

    kept: Tensor
    """so that no other tensor gets its id"""
    entered: str | None = None
    returned: list[tuple[str, int]] = field(default_factory=list)
    """a module, and the number of the first call after it"""


class _Watch:
    """Hooks on all modules: the first number that is not finite was computed by a module, or by code between two."""

    def __init__(self, roots: Mapping[str, nn.Module], loss: str, method: str):
        """`roots`: the modules to watch, by the prefix of their names."""
        named = [(f"{prefix}.".lstrip("."), root) for prefix, root in roots.items()]
        self.modules = {(at + name).rstrip("."): one for at, root in named for name, one in root.named_modules()}
        self.parameters = {at + name: one for at, root in named for name, one in root.named_parameters()}
        self.place: str | None = None
        self._loss, self._method = loss, method
        self._calls_begun: list[str] = []
        self._ended_last: str | None = None
        self._tensors: dict[int, _Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the passes of the block."""
        with ExitStack() as stack:
            for name, module in self.modules.items():
                enter, leave = partial(self._enter, name), partial(self._leave, name)
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave).remove)
            for name, parameter in self.parameters.items():
                if parameter.requires_grad:
                    stack.callback(parameter.register_hook(partial(self._parameter, name)).remove)
            # Compiled code passes over hooks within it. Without any, the compiler need not be imported.
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_repetition():
            return None
        if self.place is None and not all(map(_is_finite, _tensors_in((args, kwargs)))):
            self.place = self._between("forward", self._ended_last, name)
        self._calls_begun.append(name)
        # A view for each call, so that the gradient of each path is seen by itself.
        viewed = partial(self._viewed, name)
        return tuple(map(viewed, args)), {key: viewed(value) for key, value in kwargs.items()}

    def _viewed(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad or not torch.is_grad_enabled():
            return value
        view = value.view_as(value)
        self._of(view).entered = name
        return view

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_repetition():
            return
        found = _tensors_in(output)
        if self.place is None and not all(map(_is_finite, found)):
            self.place = f"in the forward pass of {self._named(name)}"
        self._ended_last = name
        for tensor in found:
            if tensor.requires_grad:
                self._of(tensor).returned.append((name, len(self._calls_begun)))

    def _of(self, tensor: Tensor) -> _Tensor:
        if id(tensor) not in self._tensors:
            watched = self._tensors[id(tensor)] = _Tensor(tensor)
            tensor.register_hook(partial(self._gradient, watched))
        return self._tensors[id(tensor)]

    def _gradient(self, watched: _Tensor, gradient: Tensor) -> None:
        if self.place is not None or _is_finite(gradient):
            return
        if watched.returned:
            # A module gives its gradient to the inside, so it came from outside of the outermost one.
            name, after = watched.returned[-1]
            self.place = self._between(
                "backward", name, self._calls_begun[after] if after < len(self._calls_begun) else None
            )
        elif watched.entered is not None:
            self.place = f"in the backward pass of {self._named(watched.entered)}"

    def _parameter(self, name: str, gradient: Tensor) -> None:
        if self.place is None and not _is_finite(gradient):
            owner, _, own = name.rpartition(".")
            self.place = f"in the backward pass of {self._named(owner)}, in the gradient of {own}"

    def _between(self, phase: str, after: str | None, before: str | None) -> str:
        """Return the place of code that runs after one module and before another one."""
        if after is None or before is None:
            return f"in the {phase} pass of {self._loss if before is None else self._method}"
        inside = ".".join(commonprefix([after.split("."), before.split(".")]))
        while inside and (inside in (after, before) or isinstance(self.modules.get(inside), CONTAINERS)):
            inside = inside.rpartition(".")[0]
        first, second = (one.removeprefix(f"{inside}.") for one in (after, before))
        return f"in the {phase} pass of {self._named(inside)}, between {first} and {second}"

    def _named(self, name: str) -> str:
        return f"{name or 'the model'} ({type(self.modules[name]).__name__})"


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
    if len(rows) == len(every) > SHOWN_ROWS:
        return f"all {len(rows):,} rows"
    more = f" and {len(rows) - SHOWN_ROWS:,} more" if len(rows) > SHOWN_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN_ROWS]))}{more}"
