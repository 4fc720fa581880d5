"""The first module of a pass whose numbers are not finite, found by hooks on all modules.

Each hook looks at the numbers that enter or leave a module, in the order in which they are computed. The first ones
that are not finite belong to the module that has just computed them, or to code between two modules. In the backward
pass the gradient of a module's input is seen before other paths are added to it, since the module gets a view of it.
"""

import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.models.layers.recomputing import is_repetition
from nlu.models.layers.torch_private import version_of

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""modules that compute nothing of their own"""


@dataclass(eq=False)
class Call:
    """One call of a module in a pass, with the largest magnitudes of what it got and gave; None if not seen."""

    name: str
    """dotted; "" for the model itself"""
    module: nn.Module
    parent: "Call | None"
    """the call within which it was made; None outside of all modules"""
    times: int
    """how often the module was called before, plus 1"""
    dtype: str = ""
    """number format of its output"""
    input: float | None = None
    output: float | None = None
    output_gradient: float | None = None
    input_gradient: float | None = None


@dataclass(frozen=True)
class Place:
    """Where numbers became non-finite first."""

    phase: str
    """forward or backward"""
    module: str | None
    """dotted name; None: outside of the model, in the loss or in the method"""
    type: str | None = None
    """name of its class"""
    parameter: str | None = None
    """set if the first one was the gradient of a parameter, by its name in the model"""
    after: str | None = None
    """set for code of the module between two modules that it calls: the first of them"""
    before: str | None = None
    times: int = 1
    """the number of the call in this pass, since a module may be called several times"""
    outside: str = ""
    """loss or method if `module` is None"""


@dataclass(eq=False)
class _Watched:
    """A tensor whose gradient is watched."""

    tensor: "weakref.ref[Tensor]"
    version: int | None
    calls: list[Call]
    """the calls that returned it, from the inside out"""
    entered: Call | None
    """the call that it entered; None for a tensor that was only returned"""


class Watch:
    """What the hooks have seen of the passes of a micro-batch; made by `watching`."""

    def __init__(self, roots: Mapping[str, nn.Module]):
        """`roots`: the modules to watch, by the prefix of their names."""
        self.calls: list[Call] = []
        """in the order in which they began"""
        self.place: Place | None = None
        """None while everything was finite"""
        self.at: Call | None = None
        """the call at or after which `place` is; None outside of all"""
        self.modules: dict[str, nn.Module] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        for prefix, root in roots.items():
            join = f"{prefix}.".lstrip(".")
            self.modules.update({(join + name).rstrip("."): module for name, module in root.named_modules()})
            self.parameters.update({join + name: parameter for name, parameter in root.named_parameters()})
        self.gradients: list[str] = []
        """the parameters whose gradient is not finite, in the order of the backward pass"""
        self._stack: list[Call] = []
        self._counts: dict[str, int] = {}
        self._watched: dict[int, _Watched] = {}

    def hook(self) -> Iterator[Any]:
        """Register all hooks, and yield a handle for each, with which it is removed."""
        for name, module in self.modules.items():
            if not isinstance(module, torch.jit.ScriptModule):
                yield module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
                yield module.register_forward_hook(partial(self._leave, name), with_kwargs=True)
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                yield parameter.register_hook(partial(self._parameter_gradient, name))

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_repetition():
            return None
        parent = self._stack[-1] if self._stack else None
        self._counts[name] = self._counts.get(name, 0) + 1
        call = Call(name, module, parent, self._counts[name])
        call.input, is_bad = _largest_of(tensors_in((args, kwargs)))
        if is_bad and self.place is None:
            self._set(self._between("forward", self._last_before(parent), call), call)
        self.calls.append(call)
        self._stack.append(call)
        # A view for each call, so that the gradient of each path is seen by itself.
        return changed((args, kwargs), partial(self._view, call)) if torch.is_grad_enabled() else None

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_repetition():
            return
        # A module that has raised an error, which its parent caught, did not leave.
        while (call := self._stack.pop()).module is not module:
            pass
        found = list(tensors_in(output))
        call.dtype = str(found[0].dtype).removeprefix("torch.") if found else ""
        call.output, is_bad = _largest_of(iter(found))
        if is_bad and self.place is None:
            self._set(self._at("forward", call), call)
        for tensor in found:
            if tensor.requires_grad:
                self._watch_output(tensor, call)

    def _view(self, call: Call, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad or not tensor.is_floating_point() or tensor.layout != torch.strided:
            return tensor
        view = tensor.view_as(tensor)
        self._watch(view, _Watched(weakref.ref(view), version_of(view), [], call))
        return view

    def _watch_output(self, tensor: Tensor, call: Call) -> None:
        known = self._watched.get(id(tensor))
        # An operation in place gives the same tensor another gradient.
        if known is not None and known.tensor() is tensor and known.version == version_of(tensor):
            known.calls.append(call)
            return
        self._watch(tensor, _Watched(weakref.ref(tensor), version_of(tensor), [call], None))

    def _watch(self, tensor: Tensor, watched: _Watched) -> None:
        self._watched[id(tensor)] = watched
        tensor.register_hook(partial(self._gradient, watched))

    def _gradient(self, watched: _Watched, gradient: Tensor) -> None:
        largest = _magnitude(gradient)
        for call in watched.calls:
            call.output_gradient = _larger(call.output_gradient, largest)
        if (entered := watched.entered) is not None:
            entered.input_gradient = _larger(entered.input_gradient, largest)
        if math.isfinite(largest) or self.place is not None:
            return
        if watched.calls:
            # A module gives its gradient to the inside, so it came from outside of the outermost call.
            last = watched.calls[-1]
            self._set(self._between("backward", last, self._first_after(last)), last)
        elif entered is not None:
            self._set(self._at("backward", entered), entered)

    def _parameter_gradient(self, name: str, gradient: Tensor) -> None:
        if is_finite(gradient):
            return
        self.gradients.append(name)
        if self.place is not None:
            return
        owner = name.rpartition(".")[0]
        module = self.modules[owner]
        call = next((call for call in reversed(self.calls) if call.name == owner), None)
        times = 1 if call is None else call.times
        self._set(Place("backward", owner, type(module).__name__, name, times=times), call)

    def _set(self, place: Place, call: Call | None) -> None:
        self.place, self.at = place, call

    def _at(self, phase: str, call: Call) -> Place:
        return Place(phase, call.name, type(call.module).__name__, times=call.times)

    def _between(self, phase: str, after: Call | None, before: Call | None) -> Place:
        """Return the place of code that runs after one call and before another one, both with the same parent."""
        inside = next(call.parent for call in (after, before) if call is not None)
        names = [call.name for call in (after, before) if call is not None]
        if inside is None and (after is None or before is None or "" in names):
            # Nothing of the model comes before or after it.
            is_loss = before is None or (after is not None and after.name == "" and phase == "backward")
            return Place(phase, None, outside="loss" if is_loss else "method")
        name = "" if inside is None else inside.name
        if len(names) == 2:
            # The model calls methods of its encoder, which are not seen: the module that contains both is nearer.
            shared = _shared(*names)
            while shared and (shared in names or isinstance(self.modules.get(shared), CONTAINERS)):
                shared = shared.rpartition(".")[0]
            name = shared if _is_within(shared, name) else name
        return Place(
            phase,
            name,
            type(self.modules[name]).__name__,
            after=None if after is None else _within(after.name, name),
            before=None if before is None else _within(before.name, name),
            times=1 if inside is None else inside.times,
        )

    def _last_before(self, parent: Call | None) -> Call | None:
        return next((call for call in reversed(self.calls) if call.parent is parent), None)

    def _first_after(self, known: Call) -> Call | None:
        # Compared by identity, since calls with equal numbers are different calls.
        later = iter(self.calls)
        for call in later:
            if call is known:
                break
        return next((call for call in later if call.parent is known.parent), None)

    def around(self, most: int) -> list[Call]:
        """Return calls of modules without children, and the one at fault, in order: `most` on each side of it."""
        leaves = [call for call in self.calls if call is self.at or not any(True for _ in call.module.children())]
        if self.at is None:
            return leaves[-most:]
        place = next(number for number, call in enumerate(leaves) if call is self.at)
        return leaves[max(0, place - most) : place + most + 1]


@contextmanager
def watching(roots: Mapping[str, nn.Module]) -> Iterator[Watch]:
    """Watch the passes of the block, which must not run in another thread; the result is complete after the block."""
    watch = Watch(roots)
    handles = []
    try:
        for handle in watch.hook():
            handles.append(handle)
        with _not_compiled():
            yield watch
    finally:
        for handle in handles:
            handle.remove()


def _not_compiled() -> AbstractContextManager[Any]:
    """Return a context in which compiled modules run as written, since compiled code passes over hooks within it."""
    # A process that has compiled nothing need not import the compiler.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite; of a sharded one, those of this rank."""
    return math.isfinite(_magnitude(tensor))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the floating tensors in lists, tuples, mappings and dataclasses. A batch is passed over."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.layout == torch.strided:
            yield value
    elif isinstance(value, Mapping):
        yield from (tensor for each in value.values() for tensor in tensors_in(each))
    elif isinstance(value, list | tuple):
        yield from (tensor for each in value for tensor in tensors_in(each))
    elif is_dataclass(value) and not isinstance(value, type | Batch):
        yield from (tensor for item in fields(value) for tensor in tensors_in(getattr(value, item.name, None)))


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a value in which `change` has replaced the tensors that `tensors_in` yields.

    What has no such tensor stays the same object, so that a module may still write into it.
    """
    if isinstance(value, Tensor):
        return change(value)
    if not any(True for _ in tensors_in(value)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        other = copy(value)
        for item in fields(value):
            if hasattr(value, item.name):
                # Also of a frozen one: it is the copy that changes.
                object.__setattr__(other, item.name, changed(getattr(value, item.name), change))
        return other
    if isinstance(value, tuple):
        found = [changed(each, change) for each in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    if isinstance(value, list):
        return [changed(each, change) for each in value]
    if type(value) is dict:
        return {key: changed(each, change) for key, each in value.items()}
    return value


def _largest_of(tensors: Iterator[Tensor]) -> tuple[float | None, bool]:
    largest, is_bad = None, False
    for tensor in tensors:
        own, own_is_bad = _largest(tensor)
        largest, is_bad = _larger(largest, own), is_bad or own_is_bad
    return largest, is_bad


def _largest(tensor: Tensor) -> tuple[float, bool]:
    """Return the largest magnitude, and whether a number is at fault: minus infinity in a mask, a constant, is not."""
    largest = _magnitude(tensor)
    if math.isfinite(largest) or tensor.requires_grad:
        return largest, not math.isfinite(largest)
    return largest, bool((tensor.isnan() | (tensor == math.inf)).any())


def _magnitude(tensor: Tensor) -> float:
    values = tensor.detach()
    if hasattr(values, "to_local"):
        values = values.to_local()
    if not values.numel():
        return 0.0
    # There is no maximum of the formats of 8 bits. NaN is the maximum of numbers with NaN.
    return float((values if values.dtype.itemsize > 1 else values.float()).abs().max())


def _larger(first: float | None, second: float) -> float:
    return second if first is None or math.isnan(second) or second > first else first


def _shared(first: str, second: str) -> str:
    pairs = zip(first.split("."), second.split("."), strict=False)
    parts = []
    for own, other in pairs:
        if own != other:
            break
        parts.append(own)
    return ".".join(parts)


def _is_within(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith(f"{outer}.")


def _within(name: str, outer: str) -> str:
    """Return the name of a module as seen from one that contains it."""
    return name.removeprefix(f"{outer}.") if outer else name
