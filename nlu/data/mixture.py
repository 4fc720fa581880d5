"""Several training sets in one run: the set from which each step is taken, and their stores as one.

Axes: M sets, R steps of a round.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import TypeVar

import numpy as np
import pyarrow as pa

from nlu.config.durations import Clock, Duration
from nlu.config.errors import DataError
from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.opening import Store
from nlu.data.order import Order, TokenOrder, remember
from nlu.data.query_order import QueryOrder
from nlu.data.seeds import generator
from nlu.data.targets.base import Target

Value = TypeVar("Value")


@takes(schemas.Mixture)
class Mixture:
    """Several training sets. Each step is taken from one of them, and each is scored by itself."""

    def __init__(self, keys: schemas.Mixture):
        self.sets, self.alpha = keys.sets, keys.alpha


class MixedOrder:
    """The set from which each step is taken, and its examples; otherwise as `Order`.

    Steps come in rounds, each of as many steps as all sets take once. A set's quota of a round is in proportion to the
    steps that it takes once, to the power of alpha, and rounded: so with alpha=1 a round takes every example once. The
    order of the sets in a round is drawn for that round. Within a set, its own order continues from round to round,
    through its own epochs. All of it is a function of (seed, round, position): the steps before need not be counted.

    A batch has examples of one set only, so that it has one layout and one kind of target, and all ranks take the same
    set. The sets must be complete.
    """

    def __init__(self, orders: Mapping[str, Order | TokenOrder | QueryOrder], *, seed: int, alpha: float):
        self.orders = orders
        """that of each set, by name"""
        self.names = list(orders)
        self._orders = list(orders.values())
        self._seed = seed
        self.quotas_M = quotas([order.steps_per_epoch for order in self._orders], alpha)
        """steps of each set in a round"""
        self._known: dict[int, tuple[np.ndarray, list[np.ndarray]]] = {}

    @property
    def steps_per_round(self) -> int:
        return int(self.quotas_M.sum())

    def member_of(self, number: int) -> str:
        """Return the set of a step, counted from 0."""
        return self.names[self._place(number)[0]]

    def step(self, number: int) -> list[np.ndarray]:
        """Return this rank's share of each micro-batch of a step, as examples of its set; a share may be empty."""
        member, own = self._place(number)
        return self._orders[member].step(own)

    def global_step(self, number: int) -> list[np.ndarray]:
        """Return the examples of each micro-batch over all ranks, as examples of the step's set."""
        member, own = self._place(number)
        return self._orders[member].global_step(own)

    def epoch_of(self, number: int) -> int:
        """Return the epoch of its set, counted from 0, in which a step falls."""
        member, own = self._place(number)
        return self._orders[member].epoch_of(own)

    def steps_before(self, number: int) -> list[int]:
        """Return how many of the steps before this one each set has; (M)."""
        round_, position = divmod(number, self.steps_per_round)
        before = [round_ * int(quota) for quota in self.quotas_M]
        if position:
            _, places = self._round(round_)
            before = [count + bisect_left(own, position) for count, own in zip(before, places, strict=True)]
        return before

    def _place(self, number: int) -> tuple[int, int]:
        """Return the number of a step's set, and which of the steps of this set it is."""
        round_, position = divmod(number, self.steps_per_round)
        chosen_R, places = self._round(round_)
        member = int(chosen_R[position])
        return member, round_ * int(self.quotas_M[member]) + bisect_left(places[member], position)

    def _round(self, number: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the set of each step of a round, and the places of each set in it."""
        if number not in self._known:
            # One permutation for each round: any step is found without the steps before it.
            members_R = np.repeat(np.arange(len(self.names), dtype=np.int32), self.quotas_M)
            chosen_R = members_R[generator(self._seed, "mixture", number).permutation(len(members_R))]
            places = [np.flatnonzero(chosen_R == member) for member in range(len(self.names))]
            remember(self._known, number, (chosen_R, places))
        return self._known[number]


def quotas(steps: list[int], alpha: float) -> np.ndarray:
    """Return how many steps each set has of a round, whose length is the sum of `steps`; (M,).

    They are in proportion to `steps` to the power of alpha. What rounding down leaves goes to the largest remainders.
    """
    weight_M = np.array(steps, np.float64) ** alpha
    share_M = sum(steps) * weight_M / weight_M.sum()
    quota_M = np.floor(share_M).astype(np.int64)
    rest = sum(steps) - int(quota_M.sum())
    # The largest remainder is the most negative difference; ties go to the first set.
    quota_M[np.argsort(quota_M - share_M, kind="stable")[:rest]] += 1
    return quota_M


@dataclass(frozen=True)
class MixedClock(Clock):
    """The clock of a mixture: an epoch is as many examples as all sets have together.

    With an alpha of 1 an epoch sees each of them once; with another one it sees some again before others.
    """

    order: MixedOrder
    clocks: tuple[Clock, ...]
    """that of each set, in the order's order"""
    _steps: dict[Duration, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, order: MixedOrder, clocks: Mapping[str, Clock]) -> "MixedClock":
        """Return the clock of an order over sets with these clocks."""
        own = tuple(clocks[name] for name in order.names)
        return cls(sum(one.num_examples for one in own), max(one.examples_per_step for one in own), order, own)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of the first epoch."""
        return self.steps(Duration(1, "ep"))

    def examples(self, step: int) -> int:
        """Return the examples seen after `step` steps."""
        before = self.order.steps_before(step)
        return sum(clock.examples(count) for clock, count in zip(self.clocks, before, strict=True))

    def steps(self, duration: Duration) -> int:
        """Return the smallest step, at least 1, at which `duration` is reached."""
        if duration.unit == "st":
            return int(duration.amount)
        if duration not in self._steps:
            self._steps[duration] = self._first_with(ceil(self._in_examples(duration)))
        return self._steps[duration]

    def _first_with(self, examples: int) -> int:
        """Return the first step after which so many examples were seen."""
        length, rounds = self.order.steps_per_round, 1
        # Double until the duration is reached, then search: a long run has millions of steps.
        while self.examples(rounds * length) < examples:
            rounds *= 2
        # At the end of a round nothing is drawn to count them, so the round comes first.
        rounds = bisect_left(range(rounds), examples, key=lambda number: self.examples((number + 1) * length))
        steps = range(rounds * length + 1, (rounds + 1) * length + 1)
        return steps[bisect_left(steps, examples, key=self.examples)]


class Several(Target):
    """Stands for the targets of several sets; the names are those of all targets, as SET/NAME."""

    kind = "several"
    joined: list[str]
    """set by `from_meta`"""

    @classmethod
    def of(cls, targets: Mapping[str, Target]) -> "Several":
        """Join the closed targets of these sets."""
        return cls.from_meta({"joined": [f"{name}/{each}" for name, one in targets.items() for each in one.names]})

    @property
    def names(self) -> list[str]:
        return self.joined

    def column(self) -> pa.DataType | None:
        return None


@dataclass
class MixedStore(Store):
    """The stores of several sets as one: its sets are called SET-NAME, such as dev-afqmc."""

    members: dict[str, Store] = field(default_factory=dict)

    def role(self, name: str) -> str:
        return super().role(name.rpartition("-")[0])


def mixed(members: Mapping[str, Store]) -> MixedStore:
    """Join the stores of the sets of a mixture. Raises DataError unless all have the same tokenizer."""
    first = next(iter(members.values()))
    for name, store in members.items():
        if store.tokenizer.digest != first.tokenizer.digest:
            raise DataError(
                f"data.sets.{name} has other tokens than data.sets.{next(iter(members))}, but all sets of a run share "
                "their tokens; set tokenizer.vocab, or model.pretrained to weights that bring theirs"
            )
    parts = [
        (part.of_member(name), store.digests[own])
        for role in ("train", "dev", "test")
        for name, store in members.items()
        for own, part in store.sets.items()
        if store.role(own) == role
    ]
    # Nothing is written there: the name only identifies the mixture in records.
    folders = "".join(f"{name} {store.folder.name}\n" for name, store in members.items())
    return MixedStore(
        first.folder.with_name(hashlib.sha256(folders.encode()).hexdigest()[:24]),
        {part.name: part for part, _ in parts},
        Several.of({name: store.target for name, store in members.items()}),
        first.layout,
        first.tokenizer,
        {"max_len": max(store.meta["max_len"] for store in members.values())},
        {part.name: digest for part, digest in parts},
        members=dict(members),
    )


def own_sets(by_set: Mapping[str, Value], member: str) -> dict[str, Value]:
    """Return the values for the sets of one member of a mixture, by their names within it."""
    return {
        name.removesuffix(f"-{member}"): value for name, value in by_set.items() if name.rpartition("-")[2] == member
    }
