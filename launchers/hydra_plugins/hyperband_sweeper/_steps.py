"""Which trial gets a free slot: the decisions of the scheduler, written into the study before they take effect."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from nlu.sweeps import channel, steps
from nlu.sweeps.sampling import stable_seed
from nlu.sweeps.schedulers.choosing import build
from nlu.sweeps.schedulers.encoding import drawn_value
from nlu.sweeps.schedulers.scheduler import PAUSING, Decision
from nlu.sweeps.space import suggest

from ._limits import Limits
from ._plan import SearchPlan
from ._slots import BASIC


class Steps:
    """Carries out what the scheduler of a search decides. Only the search decides, so two jobs never get one step."""

    def __init__(self, plan: SearchPlan):
        self._plan = plan
        self.pauses = plan.spec["name"] in PAUSING
        self.limits = Limits(plan)
        self._scheduler = build(plan.spec, plan.space, plan.composed_value, plan.seed, plan.centers)
        # The loop of the search does not run while a job runs in its thread; see `answering`.
        self._answers = plan.slots.is_threaded

    @contextmanager
    def answering(self, answer: Callable[[int], None]) -> Iterator[None]:
        """Within the block, decide by `answer` about the trials whose jobs run in this process."""
        if self.pauses and self._plan.slots.target == BASIC:
            channel.answer_here[os.getpid()] = answer
        try:
            yield
        finally:
            channel.answer_here.clear()

    def drawn(self, number: int) -> FrozenTrial:
        """Return a trial with all its values. If drawing them was interrupted, they are drawn again."""
        trial_id = self._plan.trial_id(number)
        frozen = self._plan.storage.get_trial(trial_id)
        if steps.VALUES in frozen.user_attrs:
            return frozen
        trial = Trial(self._plan.study, trial_id)
        values = self._plan.space.draw(partial(suggest, trial), self._plan.composed_value)
        # Last: a trial with this attribute is complete, and is never drawn again.
        trial.set_user_attr(steps.VALUES, values)
        return self._plan.storage.get_trial(trial_id)

    def next(self, read: Callable[[], Sequence[FrozenTrial]], asked: int, say: Callable[[str], None]) -> int | None:
        """Return the trial for a free slot, new or continued, or None; what it may train is written.

        `read` returns all trials, of which `asked` were begun. `say` gets the sentence about a limit that is reached.
        """
        trials = read()
        may_begin = self._may_begin(trials, asked, say)
        if not self.pauses:
            return self._ask(len(trials)) if may_begin else None
        log = steps.log_of(trials)
        decision = self._decision(trials, log, may_begin=may_begin)
        if decision is None:
            return None
        if decision.number is None:
            return self._begin(decision, len(log), self._given(decision, len(trials)))
        self._write(decision, len(log))
        return decision.number

    def answer(self, number: int, trials: Sequence[FrozenTrial], asked: int, say: Callable[[str], None]) -> None:
        """Decide about a trial whose job waits: it gets the next step, or is paused."""
        log = steps.log_of(trials)
        decision = self._decision(trials, log, may_begin=self._may_begin(trials, asked, say), asking=number)
        if decision is not None and decision.number == number:
            self._write(decision, len(log))
            return
        # Nothing else is written: the slot is decided about once the job has ended, from the same trials.
        asked_at = trials[number].user_attrs[steps.ASKS]
        self._plan.storage.set_trial_system_attr(self._plan.trial_id(number), steps.PAUSED_AT, asked_at)

    def _may_begin(self, trials: Sequence[FrozenTrial], asked: int, say: Callable[[str], None]) -> bool:
        if not self.limits.is_over and (sentence := self.limits.reached(trials)) is not None:
            say(sentence)
        return not self.limits.is_over and asked < self._plan.n_trials

    def _decision(
        self, trials: Sequence[FrozenTrial], log: Sequence[Decision], *, may_begin: bool, asking: int | None = None
    ) -> Decision | None:
        found = steps.standings(trials, maximize=self._plan.direction == "maximize", asking=asking)
        return self._scheduler.decide(found, log, may_begin=may_begin, is_over=self.limits.is_over)

    def _write(self, decision: Decision, count: int) -> None:
        assert decision.number is not None, "a trial that was begun before"
        name, step = steps.step_of(decision, count, answers=self._answers)
        self._plan.storage.set_trial_system_attr(self._plan.trial_id(decision.number), name, step)

    def _given(self, decision: Decision, number: int) -> Mapping[str, object] | None:
        """Return the parameters of a new trial that are not drawn; those of the first trials are given."""
        if number >= len(self._plan.first):
            return decision.values
        first = self._plan.first[number]
        if decision.values is None:
            return first
        # The scheduler draws what is not given.
        random = np.random.default_rng(stable_seed(self._plan.seed, number, "given"))

        def value(name: str, distribution: BaseDistribution) -> object:
            return first[name] if name in first else drawn_value(distribution, random)

        return self._plan.space.draw(value, self._plan.composed_value)

    def _ask(self, count: int) -> int:
        """Begin a trial that is never paused; returns its number, that of trials so far."""
        if count >= len(self._plan.first):
            return self._plan.study.ask().number
        return self._create({steps.FIXED: dict(self._plan.first[count])})

    def _begin(self, decision: Decision, count: int, values: Mapping[str, object] | None) -> int:
        """Create a trial with its first step, in one write: after a kill there are both or none."""
        name, step = steps.step_of(decision, count, answers=self._answers)
        return self._create({name: step, **({} if values is None else {steps.FIXED: dict(values)})})

    def _create(self, attributes: Mapping[str, Any]) -> int:
        trial = create_trial(state=TrialState.RUNNING, system_attrs=dict(attributes))
        trial_id = self._plan.storage.create_new_trial(self._plan.study_id, trial)
        return self._plan.storage.get_trial(trial_id).number


def paused_line(trial: FrozenTrial) -> str:
    """Return the line of a search about a trial that was paused."""
    value = f"{trial.intermediate_values[trial.last_step]:.6g}" if trial.last_step is not None else "no value"
    return f"trial {trial.number} paused: {value} after {trial.last_step or 0:,} examples"
