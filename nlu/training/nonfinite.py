"""A step whose loss or gradient is not finite: its rows, and the module in which that began.

Nothing was updated, so the passes of the step can be repeated.

Axes: B examples of a micro-batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.layouts import Values
from nlu.methods.method import Scale, kept_of
from nlu.optim.optimizer import OF_METHOD
from nlu.tasks.composite import task_of
from nlu.training.first_bad import Call, Place, is_finite, watching
from nlu.training.memory import tried
from nlu.training.passes import Passes, Share

SHOWN_ROWS = 8
SHOWN_TEXTS = 3
SHOWN_CHARACTERS = 100
KEPT_CHARACTERS = 2000
"""of each text in a report"""
CALLS_AROUND = 6
"""on each side of the module at fault"""


class NonFinite(UserError):
    """The loss or the gradient of a step is not finite. Raised on all ranks, with nothing updated."""

    def __init__(self, summary: str, remedy: str, facts: dict[str, Any], diagnosis: "Diagnosis"):
        """`facts`: further entries of the report."""
        super().__init__(*diagnosis.sentences, summary=summary, remedy=remedy)
        self.report = {**facts, **diagnosis.report}
        self.passes = diagnosis.passes


@dataclass(frozen=True)
class Culprits:
    """The rows of a step that are at fault."""

    named: str
    """the rows of all ranks, in words, by their numbers in the file"""
    own: list[int]
    """the examples of this rank"""
    first: tuple[int, int] | None
    """the first micro-batch that is not finite, and the first rank with such rows in it; None if only the sum is not"""


@dataclass(frozen=True)
class RecordedPass:
    """The pass of a micro-batch on a rank, as it can be repeated elsewhere."""

    batch: Batch
    """on the host"""
    rank: int
    micro: int
    is_own: bool
    kept: dict[str, Tensor]
    """what the method needs besides: `nlu.methods.method.kept_of`"""


@dataclass(frozen=True)
class Diagnosis:
    """What is known of such a step."""

    named: str
    """the rows at fault, in words"""
    sentences: list[str]
    """for the user; equal on all ranks"""
    report: dict[str, Any]
    """plain values; on rank 0, empty elsewhere"""
    passes: list[RecordedPass]
    """on rank 0: the pass at fault, or all passes of the step if only their sum is not finite"""


@dataclass
class Examined:
    """What a watched pass has shown; plain values besides `place`."""

    place: Place | None
    terms: dict[str, float]
    """the sum of each term of the loss"""
    norm: float
    """of the gradient of the trained parameters"""
    gradients: list[str] = field(default_factory=list)
    """the parameters whose gradient is not finite, in the order of the backward pass"""
    weights: list[str] = field(default_factory=list)
    """the parameters that were not finite before the step"""
    largest: tuple[str, float] | None = None
    """the parameter with the largest gradient"""
    around: list[dict[str, Any]] = field(default_factory=list)
    """the largest magnitudes in the calls around the place, in order"""

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, (*self.terms.values(), self.norm)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values of JSON; a number that JSON does not have becomes text."""
        found: dict[str, Any] = written(asdict(self))
        return found


@dataclass(frozen=True)
class Search:
    """A step whose passes can be repeated. All ranks must make each call; they run the same number of passes."""

    passes: Passes
    part: Examples
    micro_batches: list[np.ndarray]
    """the examples of this rank"""
    scale: Scale
    number: int
    epoch: int

    def culprits(self) -> Culprits:
        """Return the rows of all ranks whose loss or gradient is not finite.

        The step is repeated by micro-batches, and by single rows for a micro-batch that is not finite. If only the sum
        is not finite, all rows are named.
        """
        ranks, part = self.passes.ranks, self.part
        own: list[int] = []
        first: tuple[int, int] | None = None
        for micro, examples_B in enumerate(self.micro_batches):
            is_bad = not self._is_finite(examples_B, micro)
            flags = [float(is_bad and rank == ranks.rank) for rank in range(ranks.world_size)]
            rows, *bad = ranks.sum_on_host([float(len(examples_B)), *flags])
            # Decided by all ranks together, since the repeated passes below may communicate.
            if not any(bad):
                continue
            first = first or (micro, next(rank for rank, flag in enumerate(bad) if flag))
            # The rows of a micro-batch are distributed to the ranks in turn, so no rank has more rows than this.
            most = math.ceil(rows / ranks.world_size)
            places = range(most)
            single = [examples_B[at] for at in places if not self._is_finite(examples_B[at : at + 1], micro)]
            if is_bad:
                own += single or examples_B.tolist()
        found, all_rows = (numbers_of(part, rows) for rows in (own, np.concatenate(self.micro_batches)))
        gathered = ranks.gather_to_first((found, all_rows))
        name = named(*(sum(rows, []) for rows in zip(*gathered, strict=True))) if gathered else ""
        return Culprits(f"{ranks.from_first(name)} of {part.name}", [int(example) for example in own], first)

    def _is_finite(self, examples_B: np.ndarray, micro: int) -> bool:
        """Whether these examples of a micro-batch give a finite loss and gradient; True without examples."""
        # A rank that has run out of rows repeats a placeholder, to stay in step with the others.
        (share,) = self.passes.shares(self.part, [examples_B], self.epoch)
        if share is None:
            return True
        self.passes.forget_gradients()
        sums = self.passes.backward(share, self.scale, self.number, micro)
        return not share.is_own or bool(torch.isfinite(sums.sum() + self.passes.norm()))

    def diagnosed(self) -> Diagnosis:
        """Return the rows at fault, and where the first number appeared that is not finite."""
        passes, part, ranks, found = self.passes, self.part, self.passes.ranks, self.culprits()
        examined: Examined | None = None
        recorded: list[RecordedPass] = []
        if found.first is None:
            shares = passes.shares(part, self.micro_batches, self.epoch)
            recorded = [recorded_pass(passes, one, micro) for micro, one in enumerate(shares) if one and one.is_own]
        else:
            micro, rank = found.first
            (share,) = passes.shares(part, [self.micro_batches[micro]], self.epoch)
            if share is not None and ranks.rank == rank:
                recorded = [recorded_pass(passes, share, micro)]
                # Watching takes a little more memory than the pass.
                examined = tried(partial(examine, passes, share, self.scale, self.number, micro))
            elif share is not None:
                # A pass may communicate, so every rank runs one.
                passes.backward(share, self.scale, self.number, micro)
        passes.forget_gradients()
        own: dict[str, Any] = {
            "place": None if examined is None else sentence(passes, examined, part.member),
            "examined": None if examined is None else examined.to_json(),
            "rows": shown_rows(part, found.own, ranks.rank),
            "scale": {name: float(value) for name, value in self.scale.items()},
        }
        gathered, of_ranks = ranks.gather_to_first(own), ranks.gather_to_first(recorded)
        sentences: list[str] = []
        report: dict[str, Any] = {}
        if gathered is not None:
            at = next((one for one in gathered if one["examined"]), None)
            rows = [row for one in gathered for row in one["rows"]]
            sentences = [first_sentence(found.first, at, ranks.world_size), *row_sentences(rows, part.name)]
            micro_batch, rank_at = found.first or (None, None)
            report = {
                "step": self.number, "epoch": self.epoch, "set": part.name, "micro_batch": micro_batch, "rank": rank_at,
                "world_size": ranks.world_size, "rows": rows, "place": at and at["place"],
                "examined": at and at["examined"], "scale": gathered[rank_at or 0]["scale"],
            }  # fmt: skip
        passes_of_all = [one for several in of_ranks or [] for one in several]
        return Diagnosis(found.named, ranks.from_first(sentences), report, passes_of_all)


def recorded_pass(passes: Passes, share: Share, micro: int) -> RecordedPass:
    """Return the pass of this rank over its rows of a micro-batch."""
    return RecordedPass(share.batch, passes.ranks.rank, micro, share.is_own, kept_of(passes.method, share.batch))


def examine(passes: Passes, share: Share, scale: Scale, number: int, micro: int) -> Examined:
    """Repeat a pass and return what its modules computed. Gradients are those of this pass afterwards."""
    passes.forget_gradients()
    roots: dict[str, nn.Module] = {"": passes.model}
    if passes.own is not None:
        roots[OF_METHOD.rstrip(".")] = passes.own
    with watching(roots) as watch:
        sums = passes.backward(share, scale, number, micro)
    gradients = {name: each.grad for name, each in watch.parameters.items() if each.grad is not None}
    sizes = {name: float(gradient.detach().abs().max()) for name, gradient in gradients.items() if gradient.numel()}
    return Examined(
        watch.place,
        dict(zip(scale, sums.tolist(), strict=True)),
        float(passes.norm()),
        list(dict.fromkeys(watch.gradients)),
        [name for name, parameter in watch.parameters.items() if not is_finite(parameter)],
        max(sizes.items(), key=lambda item: item[1], default=None),
        [_numbers_of(call, call is watch.at) for call in watch.around(CALLS_AROUND)],
    )


def _numbers_of(call: Call, is_at: bool) -> dict[str, Any]:
    return {
        "module": call.name, "type": type(call.module).__name__, "dtype": call.dtype, "input": call.input,
        "output": call.output, "output_gradient": call.output_gradient, "input_gradient": call.input_gradient,
        "is_at": is_at,
    }  # fmt: skip


def sentence(passes: Passes, examined: Examined, member: str) -> str:
    """Return where numbers stopped being finite, to follow "first"."""
    if examined.weights:
        name, *others = examined.weights
        more = f" and {counted(len(others), 'other parameter')}" if others else ""
        return f"in the weights from before the step: {name}{more}"
    place = examined.place
    if place is None and not all(map(math.isfinite, examined.terms.values())):
        place = Place("forward", None, outside="loss")
    if place is None and math.isfinite(examined.norm):
        return "in a place that is not known, since a repeated pass gave finite numbers"
    if place is None:
        assert examined.largest is not None, "there is a gradient"
        name, size = examined.largest
        return f"in the norm of the gradient, which overflows: the largest gradient is {size:g}, that of {name}"
    if place.module is None:
        task: Any = task_of(passes.task, member)
        own = type(getattr(task, "loss", task)).__name__ if place.outside == "loss" else type(passes.method).__name__
        bad = [name for name, value in examined.terms.items() if not math.isfinite(value)]
        which = f", term {', '.join(bad)}" if bad and place.outside == "loss" and len(examined.terms) > 1 else ""
        # A loss that is finite, but not its gradient, was computed.
        phase = "" if bad else f"the {place.phase} pass of "
        return f"in {phase}the {place.outside} ({own}{which})"
    if place.parameter is not None:
        own = place.parameter.removeprefix(f"{place.module}.")
        return f"in the backward pass of {_module(place)}, in the gradient of {own}"
    between = " and ".join(filter(None, (place.after, place.before)))
    where = "" if not between else f", between {between}" if place.after and place.before else f", at {between}"
    return f"in the {place.phase} pass of {_module(place)}{where}"


def _module(place: Place) -> str:
    times = f", call {place.times}" if place.times > 1 else ""
    return f"{place.module or 'the model'} ({place.type}{times})"


def first_sentence(first: tuple[int, int] | None, at: dict[str, Any] | None, world_size: int) -> str:
    if first is None:
        return "every micro-batch is finite by itself; only their sum is not"
    place = "at a place that is not known, since memory ran out while it was searched" if at is None else at["place"]
    where = f", on rank {first[1]}" if world_size > 1 else ""
    bad = [] if at is None else at["examined"]["gradients"]
    more = f"; the gradient of {counted(len(bad), 'parameter')} is not finite, first that of {bad[0]}" if bad else ""
    return f"first {place}{where}{more}"


def row_sentences(rows: Sequence[Mapping[str, Any]], of: str) -> list[str]:
    """Return a sentence for each of the first rows whose text is known; `of` is the name of their set."""
    return [
        f'row {row["row"]} of {of}: "{text[:SHOWN_CHARACTERS]}{"..." if len(text) > SHOWN_CHARACTERS else ""}"'
        for row in rows[:SHOWN_TEXTS]
        if (text := row["text"])
    ]


def shown_rows(part: Examples, examples: Sequence[int], rank: int) -> list[dict[str, Any]]:
    """Return the first of these examples with their texts, which are read from the files again."""
    examples_B = np.unique(np.array(examples, np.int64))[:SHOWN_ROWS]
    if not len(examples_B):
        return []
    return [
        {"rank": rank, "example": example, "row": number, "text": None if values is None else _one_line(values)}
        for example, number, values in zip(
            examples_B.tolist(), numbers_of(part, examples_B), part.some(examples_B).texts(), strict=True
        )
    ]


def _one_line(values: Values) -> str:
    texts = (" ".join(map(str, value)) if isinstance(value, list | tuple) else str(value) for value in values.values())
    return " | ".join(" ".join(text.split()) for text in texts)[:KEPT_CHARACTERS]


def numbers_of(part: Examples, examples: Any) -> list[int]:
    """Return the numbers of examples in their file."""
    found: list[int] = part.stored.scalars("number", part.rows_N[np.asarray(examples, np.int64)]).tolist()
    return found


def named(found: list[int], all_rows: list[int]) -> str:
    """Return the found rows among all rows of a step, in words; all rows if none was found."""
    rows = sorted(found or all_rows)
    if len(rows) == len(all_rows) > SHOWN_ROWS:
        return f"all {len(rows):,} rows"
    more = f" and {len(rows) - SHOWN_ROWS:,} more" if len(rows) > SHOWN_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN_ROWS]))}{more}"


def written(value: Any) -> Any:
    """Return plain values with text in place of the numbers that JSON does not have: nan, inf, -inf."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: written(each) for key, each in value.items()}
    return [written(each) for each in value] if isinstance(value, list | tuple) else value
