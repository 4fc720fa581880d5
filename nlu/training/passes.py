"""The forward and backward passes of a step: this rank's rows of each micro-batch, and their gradient.

The loss of a step is the sum of weight * sum / count over its terms, where sum and count cover all rows of the step.
The counts are known before the first forward pass, so every row has the same weight with accumulation, uneven ranks and
a short last batch, and nothing is divided afterwards. Passes change only gradients, and buffers that are put back (such
as the running statistics of batch norm, which checkpoints contain), so they can be run again.

Axes: B examples of a micro-batch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.seeds import stable_seed
from nlu.data.shapes import filled
from nlu.losses.of_queries import OfQueries
from nlu.methods.method import Method, Scale
from nlu.methods.plain import weighted
from nlu.models.layers.dropout import Noise, TokenKeys, drawing_from
from nlu.models.task_model import TaskModel, model_of
from nlu.runs import summary
from nlu.tasks.composite import Composite, task_of
from nlu.tasks.task import Comparing, Outputs, Task, compares_steps
from nlu.training.comparing import Piece, compared
from nlu.training.compiled import Compiled, CompiledTask, GradientSums
from nlu.training.memory import is_out_of_memory, release
from nlu.training.phases import HostPhases
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks


class Buffers:
    """The buffers of some modules. Without any, which is usual, nothing is done."""

    def __init__(self, modules: Sequence[nn.Module], ranks: Ranks):
        self._ranks = ranks
        self._kept: dict[int, list[Tensor]] = {}
        """those before the last step and the one before it, which an accelerator may still compute, by number"""
        self.owners = [
            (module, name)
            for root in modules
            for module in root.modules()
            for name in module._buffers
            # The others are constants, which no checkpoint contains.
            if name not in module._non_persistent_buffers_set and module._buffers[name] is not None
        ]

    @property
    def _now(self) -> list[Tensor]:
        # Looked up each time, since a module may put another tensor in the place of a buffer.
        return [getattr(module, name) for module, name in self.owners]

    @torch.no_grad()
    def begin(self, number: int) -> None:
        """Begin the passes of step `number`; if they have begun before, the buffers are put back as they were then."""
        for buffer, before in zip(self._now, self._kept.get(number, self._now), strict=True):
            buffer.copy_(before)
        self._kept = {step: kept for step, kept in self._kept.items() if abs(step - number) <= 1}
        self._kept[number] = [buffer.clone() for buffer in self._now]

    @torch.no_grad()
    def make_equal(self) -> None:
        """Give all ranks the buffers of rank 0, after each step. Every rank must call it."""
        for buffer in self._now:
            self._ranks.take_first(buffer)


@dataclass
class Step:
    """A step that was handed to the device; on an accelerator its numbers arrive later."""

    number: int
    """from 1"""
    part: Examples
    micro_batches: list[np.ndarray]
    """the examples of this rank"""
    epoch: int
    scale: Scale
    """the factor of the sum of each term, for the gradients of this rank"""
    counts: dict[str, int]
    """the rows of each term in the step, over all ranks"""
    stop: bool
    """whether any rank was asked to stop"""
    numbers: Tensor
    """on the host: the sum of each term, the norm of the gradient and, if there is one, the loss scale"""
    arrived: torch.cuda.Event | None


@dataclass
class StepResult:
    """The numbers of one step, over all ranks."""

    number: int
    sums: dict[str, float]
    """the sum of each term"""
    counts: dict[str, int]
    loss: float
    gnorm: float
    """the norm of the gradient before clipping, without the loss scale"""
    clipped: bool
    loss_scale: float | None = None
    """the loss scale, if the precision has one"""
    skipped: bool = False
    """whether the gradient overflowed, so that nothing was updated"""


@dataclass
class Share:
    """The part of a micro-batch that a rank computes."""

    batch: Batch
    """on the host, without filling"""
    is_own: bool
    """False for the placeholder of a rank without rows in the micro-batch, which must contribute nothing"""
    ready: Batch | None = None
    """what `Passes.ready` made of the batch, if it was made ahead"""
    copied: torch.cuda.Event | None = None
    """after which `ready` is on the device, if another stream copied it"""


@dataclass
class Passes:
    """What passes need that does not change from step to step."""

    model: TaskModel
    task: Task
    method: Method
    precision: NumberFormat
    ranks: Ranks
    seed: int
    trained: list[nn.Parameter]
    """of the model and of what the method trains in addition to it"""
    phases: HostPhases
    own: nn.Module | None = None
    """a module that the method trains in addition to the model"""
    compiled: Compiled | None = None
    """what computes micro-batches that are filled up to few shapes; None: they have no filling"""

    def __post_init__(self) -> None:
        self.sums = GradientSums(self.trained)
        """empty unless passes are compiled"""
        self.computed = cast(Task, CompiledTask(self.task, self.compiled)) if self.compiled else self.task
        self.device = self.ranks.device
        self.weights = self.method.weights(self.task)
        """the weights of all terms of the loss, equal on all ranks, also on one without rows"""
        self.buffers = Buffers([self.model, *([] if self.own is None else [self.own])], self.ranks)
        self._recorded: dict[int, tuple[list[Any], int]] = {}
        """what `nlu.runs.summary` had recorded before the last step and the one before it, by number: a list, and its
        length"""

    def shares(self, part: Examples, micro_batches: list[np.ndarray], epoch: int) -> list[Share | None]:
        """Gather this rank's rows of each micro-batch.

        With several ranks, a rank without rows gets another row as a placeholder, so that all ranks have the same
        passes. A single process skips an empty micro-batch.
        """
        # Any row does as a placeholder; without a row in the whole step, it is the first one of the set.
        own = next((examples_B for examples_B in micro_batches if len(examples_B)), np.zeros(1, np.int64))
        shares: list[Share | None] = []
        for examples_B in micro_batches:
            if len(examples_B):
                shares.append(Share(collate(part, examples_B, (self.seed, epoch)), is_own=True))
            elif self.ranks.world_size > 1:
                # Every rank has the same list of micro-batches, so the passes of all ranks correspond to one another.
                shares.append(Share(collate(part, own[:1], (self.seed, epoch)), is_own=False))
            else:
                shares.append(None)
        return shares

    def ready(self, batch: Batch) -> Batch:
        """Return a batch of the host as the device computes it: filled up to a shape, and copied without waiting."""
        return (batch if self.compiled is None else filled(batch, self.compiled.trained)).to(self.device)

    def count(self, shares: list[Share | None], stop: bool) -> tuple[dict[str, int], bool]:
        """Return the number of rows of each term in the step over all ranks, and whether any rank is asked to stop."""
        own: dict[str, int] = {}
        for counts in self._counts([share.batch for share in shares if share is not None and share.is_own]):
            for name, count in counts.items():
                own[name] = own.get(name, 0) + count
        own = {name: own.get(name, 0) for name in self.weights}
        if self.ranks.world_size == 1:
            return own, stop
        self.phases.begin("reduce")
        # One message carries the counts and the request to stop. So all ranks stop after the same step, no matter
        # which of them got the signal. Counts are exact in float64.
        *totals, stops = self.ranks.sum_on_host([*map(float, own.values()), float(stop)])
        return {name: int(total) for name, total in zip(own, totals, strict=True)}, stops > 0

    def _counts(self, batches: list[Batch]) -> Iterator[dict[str, int]]:
        """Yield the numbers of rows of each term in this rank's batches."""
        task = task_of(self.task, batches[0].member) if batches else self.task
        if not (batches and compares_steps(task) and task.loss.reads == "groups"):
            yield from (self.method.counts(self.task, batch) for batch in batches)
            return
        # Micro-batches that are divided may divide a query, which counts once.
        labels, queries = (torch.cat([batch.targets[name] for batch in batches]) for name in ("labels", "queries"))
        (term,) = self.method.counts(self.task, batches[0])
        yield {term: cast(OfQueries, task.loss).count(labels, queries)}

    def forget_gradients(self) -> None:
        """Set all gradients to None."""
        self.sums.give()
        for parameter in self.trained:
            parameter.grad = None

    def run(self, shares: list[Share | None], scale: Scale, number: int) -> Tensor | None:
        """Compute the gradients of this rank's rows in step `number` from zero, and sum them over ranks; return the sum
        of each term over the rows of all ranks, or None on all of them if memory ran out on any.

        It can be called again with the same rows in other micro-batches, as long as all ranks have the same number of
        micro-batches. `scale` is that of the whole step.
        """
        self.forget_gradients()
        if self.buffers.owners:
            self.buffers.begin(number)
        recorded, fits = summary.listener.recorded if summary.listener else [], True
        before = len(recorded)
        # Without other micro-batches, a pass has all rows of the step.
        whole = None if len(shares) == 1 and self.ranks.world_size == 1 else self._comparing(shares)
        self._recorded = {step: known for step, known in self._recorded.items() if step == number - 1}
        self._recorded[number] = recorded, before
        # float64, so that the reported sum hardly depends on the division into micro-batches.
        totals = torch.zeros(len(self.weights), dtype=torch.float64, device=self.device)
        try:
            if whole is not None:
                totals += self._compared(whole, shares, scale, number)
            else:
                for micro, share in enumerate(shares):
                    if share is not None:
                        totals += self.backward(share, scale, number, micro)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        self.phases.begin("reduce")
        if self.ranks.world_size > 1:
            fits = not self.ranks.sum_on_host([float(not fits)])[0]
        if not fits:
            self.forget_gradients()
            # What these passes have recorded is recorded again.
            self.undo(number)
            # Outside of `except`, since the traceback of the error keeps the tensors of the pass.
            release(self.device)
            return None
        self.sums.give()
        if self.buffers.owners:
            self.buffers.make_equal()
        return self.ranks.sum_gradients(self.trained, totals)

    def undo(self, number: int) -> None:
        """Put back the buffers, and forget what was recorded, since the passes of step `number` began, if they did."""
        self.buffers.begin(number)
        recorded, before = self._recorded.get(number, ([], 0))
        del recorded[before:]

    def backward(self, share: Share, scale: Scale, number: int, micro: int) -> Tensor:
        """Add the gradient of a micro-batch and return the sums of the terms, 0 for a placeholder."""
        # A pass with factors of 0 instead of no pass, so that all ranks have gradients of the same parameters.
        used = scale if share.is_own else dict.fromkeys(scale, 0.0)
        # What the model records about a placeholder must not reach scalars.tsv.
        with self._begun(share, number, micro) as batch, nullcontext() if share.is_own else summary.unheard():
            sums = self.method.backward(self.computed, self.model, batch, used, self._forward)
        if self.compiled is not None:
            self.sums.take()
        values = torch.stack([sums[name].double() for name in scale])
        return values if share.is_own else torch.zeros_like(values)

    @contextmanager
    def _begun(self, share: Share, number: int, micro: int) -> Iterator[Batch]:
        """Yield the batch of a share on the device; in the block the model draws the random numbers of this pass.

        They are the same each time that it is begun.
        """
        device = self.device
        self.phases.begin("transfer")
        if self.compiled is not None:
            self.compiled.begin()
        batch = self.ready(share.batch) if share.ready is None else share.ready
        if share.copied is not None:
            batch.wait_for(share.copied)
        # A method calls its forward passes in the context `autocast`; what it does beside them is the backward pass.
        self.phases.begin("backward")
        # On a CPU, our layers draw random numbers from a stream for each example. Code that uses torch's generator,
        # such as kernels of an accelerator, depends on the micro-batch.
        seed = stable_seed(self.seed, "dropout", self.ranks.rank, number, micro)
        if device.type == "cpu":
            # For each kind of accelerator, also an absent one, torch.manual_seed would keep a traceback: half a
            # millisecond.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        streams: Noise | TokenKeys | None = None
        if batch.filling is not None:
            streams = TokenKeys(self.seed, number, batch.filling)
        elif device.type == "cpu":
            streams = Noise(self.seed, number, batch)
        with drawing_from(streams):
            yield batch

    def _comparing(self, shares: list[Share | None]) -> Comparing | None:
        """Return the task of a step if its loss compares rows of several micro-batches or ranks. All ranks call it."""
        there = [share for share in shares if share is not None]
        task = task_of(self.task, there[0].batch.member)
        if not compares_steps(task):
            return None
        if task.loss.reads != "groups":
            return task
        # Queries are whole in micro-batches that are not divided, which need only be computed once.
        # A placeholder repeats a query of its rank.
        found = [query for share in there if share.is_own for query in share.batch.targets["queries"].unique().tolist()]
        is_divided = len(set(found)) < len(found)
        return task if self.ranks.sum_on_host([float(is_divided)])[0] else None

    def _compared(self, task: Comparing, shares: list[Share | None], scale: Scale, number: int) -> Tensor:
        """Add the gradient of this rank's rows, all of which the loss compares with those of other ranks; return the
        sums of the terms, on the first rank those of all."""
        own = [(micro, share) for micro, share in enumerate(shares) if share is not None]
        member = own[0][1].batch.member

        def outputs_of(batch: Batch) -> Outputs:
            with self._forward():
                return task.forward(model_of(self.model, member), batch)

        def backward(terms: dict[str, Tensor]) -> dict[str, Tensor]:
            self.phases.begin("backward")
            named = self.task.named(member, terms) if isinstance(self.task, Composite) else terms
            weighted(named, scale).backward()
            return named

        pieces = [Piece(share.is_own, partial(self._begun, share, number, micro), outputs_of) for micro, share in own]
        terms = compared(task, pieces, self.ranks, backward, partial(self.buffers.begin, number))
        return torch.stack([terms[name].double() for name in scale])

    @contextmanager
    def _forward(self) -> Iterator[None]:
        with self.phases.within("forward"), self.precision.autocast(self.device):
            yield
