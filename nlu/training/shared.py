"""Ranks of one machine that hold weights, moments and averages once, in memory that all of them see.

Each rank computes the gradient of its rows, and writes it into the shared memory. Then each rank sums its part of all
gradients, in the order of ranks, and updates its part of the weights. So nothing is sent, and an update is divided
among the ranks instead of being repeated by each. The idea is that of ZeRO (Rajbhandari et al. 2020,
https://arxiv.org/abs/1910.02054, stage 2); here the parts lie in common memory, and nothing has to be gathered.

The memory has a line of numbers for each kind of tensor: gradients of each rank, weights, both moments, averages.
Parameters have the same place in all of them, those of a group of the optimizer beside one another, so that a rank
updates many of them in one call.

Axes: W ranks, P parameters.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.models.layers.reused import ReusedMemory, ReusedTable
from nlu.optim.fused import FusedAdamW, update_in_place
from nlu.training.parallel import Replicated
from nlu.training.ranks import Ranks
from nlu.training.shared_memory import floats_in
from nlu.training.shared_rows import PAGE, SharedRows, bytes_for, is_large, sum_of_squares

log = logging.getLogger(__name__)

ALIGNED = 16
"""numbers of a line of a cache, at whose multiples parameters and parts begin"""
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class _Place:
    """A parameter in the shared memory."""

    parameter: nn.Parameter
    group: dict[str, Any]
    """of the optimizer"""
    start: int
    """its first number in each line"""
    gradient: Tensor
    """of this rank"""
    summed: Tensor
    """the gradient of all ranks"""
    moments: dict[str, Tensor]

    @property
    def end(self) -> int:
        return self.start + self.parameter.numel()


@dataclass
class _Lines:
    """The shared memory, and the part of it that this rank sums and updates."""

    places: list[_Place]
    gradients: list[Tensor]
    """the line of each rank; sums are in that of rank 0"""
    weights: Tensor
    moments: dict[str, Tensor]
    average: Tensor | None
    start: int
    end: int
    optimizer: torch.optim.Optimizer
    tables: dict[int, SharedRows]
    """large tables, by the index of their place"""
    summed: list[Tensor] = field(default_factory=list)
    """the gradients of the last step"""
    has_gradient_WP: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), bool))

    @property
    def has_any_P(self) -> np.ndarray:
        """Whether a rank had a gradient for the parameter in the last step."""
        return np.asarray(self.has_gradient_WP.any(0))

    def runs(self, keys: Sequence[object]) -> Iterator[tuple[int, int, int]]:
        """Yield the stretches of this rank's part whose parameters have equal keys, as (first parameter, start, end);
        those of the key None are left out."""
        open_run: tuple[int, int, int] | None = None
        for number, (place, key) in enumerate(zip(self.places, keys, strict=True)):
            start, end = max(place.start, self.start), min(place.end, self.end)
            if start >= end:
                continue
            if open_run is not None and key is not None and keys[open_run[0]] == key:
                # With the few unused numbers between two parameters, which stay 0.
                open_run = open_run[0], open_run[1], end
                continue
            if open_run is not None:
                yield open_run
            open_run = None if key is None else (number, start, end)
        if open_run is not None:
            yield open_run


class Shared(Replicated):
    """Ranks on the CPUs of one machine share all that they train; any others sum gradients as `Replicated`.

    They also do so with weights in fp16, or with another optimizer than AdamW, whose update of a number might depend on
    others.
    """

    def __init__(self, ranks: Ranks):
        """No options."""
        super().__init__(ranks)
        self._lines: _Lines | None = None
        self._room = ranks.room

    def share(
        self,
        trained: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        average: dict[str, Tensor] | None,
        memories: Mapping[str, ReusedMemory],
    ) -> None:
        if reason := self._reason_against(trained, optimizer):
            log.info("parallel=shared sums gradients as parallel=replicated: %s", reason)
            return
        room, groups = self._room, {id(one): group for group in optimizer.param_groups for one in group["params"]}
        assert room is not None, "checked above"
        order = list(map(id, optimizer.param_groups))
        # Stable, so within a group they are in the order of the model.
        named = sorted(trained.items(), key=lambda each: order.index(id(groups[id(each[1])])))
        starts, end = [], 0
        for _, parameter in named:
            starts.append(end)
            end += _up(parameter.numel(), ALIGNED)
        count, lines = _up(max(1, end), PAGE), room.world_size + 3 + (average is not None)
        # After the lines, the rows of large tables.
        large = {
            number: bytes_for(each, room.world_size)
            for number, (name, each) in enumerate(named) if is_large(each, memories.get(name))
        }  # fmt: skip
        offsets = dict(zip(large, accumulate(large.values(), initial=4 * count * lines), strict=False))
        memory = room.share(4 * count * lines + sum(large.values()))
        if memory is None:
            log.info("parallel=shared sums gradients as parallel=replicated: the memory for it cannot be had")
            return

        def line(number: int) -> Tensor:
            return floats_in(memory, number * count, count)

        def view(number: int, start: int, like: Tensor) -> Tensor:
            return floats_in(memory, number * count + start, like.numel()).view(like.shape)

        weights, first, second, averages = range(room.world_size, room.world_size + 4)
        places = [
            _Place(
                parameter, groups[id(parameter)], start, view(self.ranks.rank, start, parameter),
                view(0, start, parameter),
                {key: view(number, start, parameter) for key, number in zip(MOMENTS, (first, second), strict=True)},
            )
            for (_, parameter), start in zip(named, starts, strict=True)
        ]  # fmt: skip
        tables = {}
        for number, ((name, parameter), place) in enumerate(zip(named, places, strict=True)):
            own = memories.get(name)
            if own is not None:
                # Gradients are written where they are summed.
                own.use(place.gradient)
            if number in offsets and isinstance(own, ReusedTable):
                tables[number] = SharedRows(
                    parameter, place.start, own, memory, offsets[number], (room.rank, room.world_size)
                )
        # Parts of equal length that begin at lines of the cache.
        part = _up(-(-end // room.world_size), ALIGNED)
        begin = min(end, part * room.rank)
        self._lines = _Lines(
            places, [line(number) for number in range(room.world_size)], line(weights),
            {"exp_avg": line(first), "exp_avg_sq": line(second)}, None if average is None else line(averages), begin,
            min(end, begin + part), optimizer, tables,
        )  # fmt: skip
        with torch.no_grad():
            for (name, parameter), place in zip(named, places, strict=True):
                moved: list[tuple[Tensor, Tensor]] = [(parameter, view(weights, place.start, parameter))]
                if average is not None and name in average:
                    moved.append((average[name], view(averages, place.start, parameter)))
                    average[name] = moved[-1][1]
                for before, after in moved:
                    # All ranks hold the same numbers.
                    if self.ranks.is_first:
                        after.copy_(before)
                parameter.data = moved[0][1]
                parameter.register_post_accumulate_grad_hook(_Placing(place))
        torch.autograd.graph.increment_version(list(trained.values()))
        room.meet()
        self._adopt_state()

    def _reason_against(self, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> str | None:
        """Return why these parameters cannot be shared, equal on all ranks; None if they can."""
        if self._room is None:
            return "the ranks do not all compute on the CPUs of one machine, or cannot share memory there"
        if any(each.dtype != torch.float32 or not each.is_contiguous() for each in trained.values()):
            return "not all weights are in fp32"
        groups = optimizer.param_groups
        if type(optimizer) is not FusedAdamW or any(group["amsgrad"] or group["maximize"] for group in groups):
            return f"the optimizer is {type(optimizer).__name__}, and only AdamW is divided among ranks"
        held = [id(each) for group in groups for each in group["params"]]
        if sorted(held) != sorted(map(id, trained.values())):
            return "the optimizer has other parameters than those that are trained"
        return None

    def _adopt_state(self) -> None:
        """Move the optimizer's moments into the shared memory."""
        assert self._lines is not None and self._room is not None
        for place in self._lines.places:
            state: dict[str, Any] = self._lines.optimizer.state.get(place.parameter) or {}
            for key, there in place.moments.items():
                if state and state[key] is not there:
                    if self.ranks.is_first:
                        there.copy_(state[key])
                    state[key] = there
        self._room.meet()

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor, number: int) -> Tensor:
        """As that of `Replicated`; afterwards the gradients of all ranks are the same memory, which is complete when
        `norm` or `update` returns."""
        lines = self._lines
        if lines is None:
            return super().reduce(parameters, totals, number)
        assert self._room is not None
        for place in lines.places:
            gradient = place.parameter.grad
            # A method may have set a gradient without a backward pass.
            if gradient is not None and not _is_at(place.gradient, gradient):
                place.gradient.copy_(gradient)
        for table in lines.tables.values():
            table.offer()
        own = [float(place.parameter.grad is not None) for place in lines.places]
        with self.ranks.exchanging():
            found_WN = self._room.all([*own, *totals.tolist()])
        for table in lines.tables.values():
            table.look()
        lines.has_gradient_WP = found_WN[:, : len(own)] > 0
        self._sum(lines, lines.has_gradient_WP)
        lines.summed = []
        for place, has_any in zip(lines.places, lines.has_any_P, strict=True):
            place.parameter.grad = place.summed if has_any else None
            if has_any:
                lines.summed.append(place.summed)
        summed_N = found_WN[0, len(own) :].copy()
        for own_N in found_WN[1:, len(own) :]:
            summed_N += own_N
        return torch.from_numpy(summed_N).to(totals.dtype)

    @staticmethod
    def _sum(lines: _Lines, has_gradient_WP: np.ndarray) -> None:
        """Sum this rank's part of all gradients into the line of rank 0."""
        keys: list[object] = [tuple(each_W) if each_W.any() else None for each_W in has_gradient_WP.T]
        tables = {number: table for number, table in lines.tables.items() if table.is_known}
        # Each in a run of its own.
        for number in tables:
            keys[number] = number
        for first, start, end in lines.runs(keys):
            if first in tables:
                tables[first].sum(lines.gradients, start, end)
                continue
            total = lines.gradients[0][start:end]
            ranks = np.flatnonzero(has_gradient_WP[:, first])
            if ranks[0]:
                total.copy_(lines.gradients[ranks[0]][start:end])
            for rank in ranks[1:]:
                total += lines.gradients[rank][start:end]

    def norm(self, gradients: list[Tensor]) -> Tensor:
        lines = self._lines
        if lines is None or len(gradients) != len(lines.summed) or not lines.summed:
            return super().norm(gradients)
        if any(
            one is not other for one, other in zip(sorted(gradients, key=id), sorted(lines.summed, key=id), strict=True)
        ):
            return super().norm(gradients)
        keys = [True if has_any else None for has_any in lines.has_any_P]
        known = [table for table in lines.tables.values() if table.is_known]
        own = sum(
            sum_of_squares(lines.gradients[0][start:end], [table.pages(start, end) for table in known])
            for _, start, end in lines.runs(keys)
        )
        (squared,) = self.ranks.sum_on_host([own])
        # Of NaN, the root is NaN.
        return torch.tensor(squared, dtype=torch.float64).sqrt().float()

    @torch.no_grad()
    def update(
        self, optimizer: torch.optim.Optimizer, gradients: list[Tensor], divisor: Tensor, failed: Tensor | None
    ) -> None:
        lines = self._lines
        if lines is None:
            return super().update(optimizer, gradients, divisor, failed)
        assert self._room is not None and failed is None, "on a CPU a step fails before its update"
        # Nobody looks at the weights before the update any more.
        with self.ranks.exchanging():
            self._room.meet()
        keys: list[object] = []
        for place, has_any in zip(lines.places, lines.has_any_P, strict=True):
            if not has_any:
                keys.append(None)
                continue
            state = optimizer.state[place.parameter]
            if not state:
                self._begin(lines, place, state)
            keys.append((id(place.group), state["step"].item()))
        for first, start, end in lines.runs(keys):
            place = lines.places[first]
            moments = [lines.moments[key][start:end] for key in MOMENTS]
            step = optimizer.state[place.parameter]["step"].clone()
            gradient = lines.gradients[0][start:end]
            update_in_place(place.group, lines.weights[start:end], gradient, moments[0], moments[1], step, divisor)
        with_gradient = [place for place, key in zip(lines.places, keys, strict=True) if key is not None]
        if with_gradient:
            torch._foreach_add_([optimizer.state[place.parameter]["step"] for place in with_gradient], 1)

    def _begin(self, lines: _Lines, place: _Place, state: dict[str, Any]) -> None:
        """Give a parameter the state of an optimizer that has not updated it yet."""
        start, end = max(place.start, lines.start), min(place.end, lines.end)
        for key in MOMENTS:
            # A state that was given up may have been there.
            if start < end:
                lines.moments[key][start:end].zero_()
        state |= {"step": torch.zeros((), dtype=torch.float32), **place.moments}

    def follow(self, average: list[Tensor], weights: list[Tensor], amount: float | Tensor) -> None:
        lines = self._lines
        if lines is None:
            return super().follow(average, weights, amount)
        assert lines.average is not None
        own = slice(lines.start, lines.end)
        lines.average[own].lerp_(lines.weights[own], amount)

    def settle(self) -> None:
        if self._lines is not None:
            self.ranks.barrier()

    @contextmanager
    def averaged(self, model: nn.Module, average: Mapping[str, Tensor]) -> Iterator[None]:
        if self._lines is None:
            with super().averaged(model, average):
                yield
            return
        # Other memory instead of other numbers in the same memory, which other ranks may read.
        own = [(each, each.data, average[name]) for name, each in model.named_parameters() if name in average]
        changed = [parameter for parameter, _, _ in own]
        for parameter, _, averaged in own:
            parameter.data = averaged
        # Copies in lower precision were made of the weights.
        torch.autograd.graph.increment_version(changed)
        try:
            yield
        finally:
            for parameter, weights, _ in own:
                parameter.data = weights
            torch.autograd.graph.increment_version(changed)

    def load(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        # All ranks write the same numbers, when none of them reads the old ones and before one reads the new ones.
        self.settle()
        super().load(module, weights)
        self.settle()

    def load_state(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        super().load_state(names, tensors)
        # The optimizer's state was loaded just before.
        if self._lines is not None:
            self._adopt_state()


class _Placing:
    """Moves the gradient of a parameter into the shared memory as soon as it is computed, unless it is there."""

    def __init__(self, place: _Place):
        self._gradient = place.gradient

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and not _is_at(self._gradient, gradient):
            self._gradient.copy_(gradient)
            # The gradients of further micro-batches are added there. An alias, so that the memory is seen to be in use.
            parameter.grad = self._gradient.detach()


def _is_at(place: Tensor, gradient: Tensor) -> bool:
    return gradient is place or (gradient.data_ptr() == place.data_ptr() and gradient.is_contiguous())


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
