"""Ranks of one machine that hold weights, moments and averages once, in memory that all of them see.

Each rank computes the gradient of its rows, and writes it into the shared memory. Then the ranks sum all gradients, in
the order of ranks, and each updates its part of the weights. So nothing is sent, and an update is divided among the
ranks instead of being repeated by each. The idea is that of ZeRO (Rajbhandari et al. 2020,
https://arxiv.org/abs/1910.02054, stage 2); here the parts lie in common memory, and nothing has to be gathered.

Ranks meet three times in a step: where rows are counted, which is after the update of the step before (unless `settle`
was called), where all gradients are there, and where all are summed.

A single process uses the same code for its own memory, where it meets nobody.

Axes: W ranks, P parameters.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from nlu.models.layers.linear import Linear
from nlu.models.layers.reused import ReusedMemory, ReusedTable
from nlu.optim.compiled import require_kernel
from nlu.optim.fused import FusedAdamW, decay_in_place, update_in_place
from nlu.training.parallel import Parallel, Replicated, SingleProcess
from nlu.training.ranks import Ranks
from nlu.training.shared_compiled import CompiledUpdate, Run
from nlu.training.shared_copies import Copies
from nlu.training.shared_lines import MOMENTS, Layout, Lines, Place, runs
from nlu.training.shared_memory import OwnRoom, Room, floats_in
from nlu.training.shared_rest import Rest, divided
from nlu.training.shared_rows import SharedRows, bytes_for, is_large
from nlu.training.shared_sums import Sums

log = logging.getLogger(__name__)


@dataclass
class _Common:
    """What the ranks have in common."""

    lines: Lines
    sums: Sums
    copies: Copies
    tables: list[SharedRows]
    rests: list[Rest]
    small: list[ReusedTable]
    """the memories of gradients of other tables"""
    optimizer: torch.optim.Optimizer
    summed: list[Tensor] = field(default_factory=list)
    """the gradients of the last step"""
    has_any_P: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """whether a rank had a gradient for the parameter in the last step"""
    compiled: CompiledUpdate | None = None
    """the update by the kernel in C; None: by torch"""
    updates: tuple[bytes, list[Run]] = (b"", [])
    """the stretches that are updated in one call, and what they depend on"""


class Shared(SingleProcess):
    """Ranks on the CPUs of one machine share all that they train; any others sum gradients as `Replicated`.

    They also do so with weights in fp16, or with another optimizer than AdamW, whose update of a number might depend on
    others.

    A single process on a CPU shares with nobody, but its memory has the same layout: an update is one call over all
    parameters instead of one for each of them, and rows of large tables that have never had a gradient are left out.
    """

    def __init__(self, ranks: Ranks):
        """No options."""
        super().__init__(ranks)
        is_single = ranks.world_size == 1
        self._otherwise: Parallel = SingleProcess(ranks) if is_single else Replicated(ranks)
        """what sums gradients where nothing is shared"""
        self._common: _Common | None = None
        self._room: Room | OwnRoom | None = OwnRoom() if is_single else ranks.room
        self._is_compiled = False
        self._divisor: float | None = None
        """of an update in C that waits for `follow` or `settle`, so that all is done in one pass"""

    def compile_update(self) -> None:
        if self._room is not None:
            with self.ranks.leaders_go_first():
                require_kernel()
            self._is_compiled = True

    def share(
        self,
        trained: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        average: dict[str, Tensor] | None,
        memories: Mapping[str, ReusedMemory],
        linears: Sequence[Linear],
    ) -> None:
        if reason := self._reason_against(trained, optimizer):
            self._say_why_not(reason)
            return
        room = self._room
        assert room is not None, "checked above"
        layout = Layout(trained, optimizer, room.world_size, bool(average))
        tables = {
            number: (each, own, layout.reserve(bytes_for(each, room.world_size)))
            for number, (name, each) in enumerate(layout.named)
            if isinstance(own := memories.get(name), ReusedTable) and is_large(each, own)
        }
        norms = Sums.count(layout.parts, len(layout.named))
        norms_offset, copies = layout.reserve(4 * norms), Copies(linears, layout)
        memory = room.share(layout.size)
        if memory is None:
            self._say_why_not("the memory for it cannot be had")
            return
        lines = layout.lines(memory, room.rank)
        for (name, _), place in zip(layout.named, lines.places, strict=True):
            if name in memories:
                # Gradients are written where they are summed.
                memories[name].use(place.gradient)
        rows = {
            number: SharedRows(
                each, lines.places[number].start, own, memory, offset, (room.rank, room.world_size)
            )
            for number, (each, own, offset) in tables.items()
        }  # fmt: skip
        norms_N = floats_in(memory, norms_offset // 4, norms)
        copies.open(memory, lines)
        sums = Sums(lines.places, layout.parts, lines.gradients, norms_N, rows, room.rank)
        rests, known = list(map(Rest, rows.values())), {id(own) for _, own, _ in tables.values()}
        small = [own for own in memories.values() if isinstance(own, ReusedTable) and id(own) not in known]
        self._common = _Common(lines, sums, copies, list(rows.values()), rests, small, optimizer)
        if self._is_compiled:
            self._common.compiled = CompiledUpdate(lines, copies)
        self._move(dict(layout.named), lines, average)
        self._adopt_state()

    def _move(self, named: Mapping[str, nn.Parameter], lines: Lines, average: dict[str, Tensor] | None) -> None:
        """Move weights and averages into the shared memory."""
        assert self._room is not None, "it is asked in `share`"
        with torch.no_grad():
            for number, (name, parameter) in enumerate(named.items()):
                moved = [(parameter.data, lines.weights_of[number])]
                if average is not None and lines.averages_of is not None and name in average:
                    moved.append((average[name], lines.averages_of[number]))
                    average[name] = lines.averages_of[number]
                for before, after in moved:
                    # All ranks hold the same numbers.
                    if self.ranks.is_first:
                        after.copy_(before)
                parameter.data = lines.weights_of[number]
                parameter.register_post_accumulate_grad_hook(_Placing(lines.places[number]))
        torch.autograd.graph.increment_version(list(named.values()))
        self._room.meet()

    def _say_why_not(self, reason: str) -> None:
        if self.ranks.world_size == 1:
            log.debug("each weight keeps memory of its own: %s", reason)
        else:
            log.info("parallel=shared sums gradients as parallel=replicated: %s", reason)

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
        assert self._common is not None and self._room is not None
        for place in self._common.lines.places:
            state = self._common.optimizer.state.get(place.parameter) or {}
            for key, there in place.moments.items():
                if state and state[key] is not there:
                    if self.ranks.is_first:
                        there.copy_(state[key])
                    state[key] = there
            if state:
                place.step.copy_(state["step"])
                state["step"] = place.step
        self._room.meet()
        for rest in self._common.rests:
            rest.begin(list(self._common.lines.moments.values()))

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor, number: int) -> Tensor:
        """As that of other strategies; afterwards the gradients of all ranks are the same memory."""
        if self._common is None:
            return self._otherwise.reduce(parameters, totals, number)
        summed = self._reduce(self._common, totals, fits=True)
        assert summed is not None, "passes have fitted on all ranks"
        return summed

    def reduce_if_all_fit(
        self, parameters: list[nn.Parameter], totals: Tensor, number: int, fits: bool
    ) -> Tensor | None:
        if self._common is None:
            return super().reduce_if_all_fit(parameters, totals, number, fits)
        return self._reduce(self._common, totals, fits)

    def _reduce(self, common: _Common, totals: Tensor, fits: bool) -> Tensor | None:
        assert self._room is not None, "there is common memory"
        places = common.lines.places
        for place in places:
            gradient = place.parameter.grad
            # A method may have set a gradient without a backward pass.
            if gradient is not None and not _is_at(place.gradient, gradient):
                place.gradient.copy_(gradient)
        for table in common.tables:
            table.offer()
        own = [float(not fits), *(float(place.parameter.grad is not None) for place in places)]
        with self.ranks.exchanging():
            found_WN = self._room.all([*own, *totals.tolist()])
        if found_WN[:, 0].any():
            return None
        for table, rest in zip(common.tables, common.rests, strict=True):
            table.look()
            rest.note()
        has_gradient_WP = found_WN[:, 1 : len(own)] > 0
        common.sums.add(has_gradient_WP)
        if self._room.rank == 0:
            # Its gradients are replaced by sums, in part by other processes, whose writes torch does not count.
            for own_table in common.small:
                own_table.note(None)
        common.has_any_P = np.asarray(has_gradient_WP.any(0))
        common.summed = []
        for place, has_any in zip(places, common.has_any_P.tolist(), strict=True):
            place.parameter.grad = place.summed if has_any else None
            if has_any:
                common.summed.append(place.summed)
        summed_N = found_WN[0, len(own) :].copy()
        for own_N in found_WN[1:, len(own) :]:
            summed_N += own_N
        with self.ranks.exchanging():
            self._room.meet()
        return torch.from_numpy(summed_N).to(totals.dtype)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        common = self._common
        if common is None or not common.summed or set(map(id, gradients)) != set(map(id, common.summed)):
            return super().norm(gradients)
        # Of NaN, the root is NaN.
        return torch.tensor(common.sums.squares(), dtype=torch.float64).sqrt().float()

    @torch.no_grad()
    def update(
        self, optimizer: torch.optim.Optimizer, gradients: list[Tensor], divisor: Tensor, failed: Tensor | None
    ) -> None:
        common = self._common
        if common is None:
            return super().update(optimizer, gradients, divisor, failed)
        assert failed is None, "on a CPU a step fails before its update"
        if common.compiled is not None:
            self._divisor = divisor.item()
            self._updates(common, optimizer)
            common.copies.use(common.has_any_P)
            if common.lines.average is None:
                self._update_in_c(common, None)
            return
        lines = common.lines
        for first, start, end, rests in self._updates(common, optimizer):
            place, weights = lines.places[first], lines.weights[start:end]
            if rests:
                decay_in_place(place.group, weights)
                continue
            moments = [lines.moments[key][start:end] for key in MOMENTS]
            gradient, step = common.sums.summed[start:end], place.step.clone()
            update_in_place(place.group, weights, gradient, moments[0], moments[1], step, divisor)
        lines.steps_P[common.has_any_P] += 1
        common.copies.renew(common.has_any_P)
        common.copies.use(common.has_any_P)

    def _update_in_c(self, common: _Common, amount: float | None) -> None:
        """Run the update that waits, if any; `amount` as in `follow`."""
        if common.compiled is not None and self._divisor is not None:
            common.compiled.run(common.updates[1], common.sums.summed, self._divisor, amount)
            common.lines.steps_P[common.has_any_P] += 1
            self._divisor = None

    def _updates(self, common: _Common, optimizer: torch.optim.Optimizer) -> list[Run]:
        """Return the stretches of what this rank updates, each for one call."""
        lines = common.lines
        for place, has_any in zip(lines.places, common.has_any_P.tolist(), strict=True):
            if has_any and not (state := optimizer.state[place.parameter]):
                self._begin(lines, place, state)
        # Parameters of a group are updated in one call if they were updated equally often.
        steps_P = lines.steps_P - lines.steps_P[:1]
        touched = [rest.is_touched_B for rest in common.rests]
        key = b"".join(each.tobytes() for each in (common.has_any_P, steps_P, *touched))
        if common.updates[0] != key:
            keys = [
                (id(place.group), step) if has_any else None
                for place, step, has_any in zip(lines.places, steps_P.tolist(), common.has_any_P, strict=True)
            ]
            found = [run for start, end in lines.own for run in runs(lines.places, keys, start, end)]
            resting = sorted(each for rest in common.rests for each in rest.stretches())
            common.updates = key, [each for run in found for each in divided(run, resting)]
        return common.updates[1]

    def _begin(self, lines: Lines, place: Place, state: dict[str, Tensor]) -> None:
        """Give a parameter the state of an optimizer that has not updated it yet."""
        # A state that was given up may have been there.
        for start, end in lines.own_of(place):
            for key in MOMENTS:
                lines.moments[key][start:end].zero_()
        place.step.zero_()
        state |= {"step": place.step, **place.moments}

    def follow(self, average: list[Tensor], weights: list[Tensor], amount: float | Tensor) -> None:
        if self._common is None:
            return super().follow(average, weights, amount)
        if self._divisor is not None:
            return self._update_in_c(self._common, float(amount))
        lines = self._common.lines
        assert lines.average is not None
        for start, end in lines.own:
            lines.average[start:end].lerp_(lines.weights[start:end], amount)

    def settle(self) -> None:
        if self._common is not None:
            self._update_in_c(self._common, None)
            self.ranks.barrier()

    @contextmanager
    def averaged(self, model: nn.Module, average: Mapping[str, Tensor]) -> Iterator[None]:
        if self._common is None:
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
        if self._common is not None:
            self._adopt_state()


class _Placing:
    """Moves the gradient of a parameter into the shared memory as soon as it is computed, unless it is there."""

    def __init__(self, place: Place):
        self._gradient = place.gradient

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and not _is_at(self._gradient, gradient):
            self._gradient.copy_(gradient)
            # The gradients of further micro-batches are added there. An alias, so that the memory is seen to be in use.
            parameter.grad = self._gradient.detach()


def _is_at(place: Tensor, gradient: Tensor) -> bool:
    return gradient is place or (gradient.data_ptr() == place.data_ptr() and gradient.is_contiguous())
