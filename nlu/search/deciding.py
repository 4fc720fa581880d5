"""The scheduler of a search, from the specification of its pruner and its space.

Which trial gets a free slot: the decisions of the scheduler, written into the study before they take effect.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from nlu.search import channel, trial_steps
from nlu.search.plan import Plan
from nlu.search.sampling import drawing, grid_point, stable_seed
from nlu.search.schedulers.encoding import drawn_anywhere
from nlu.search.schedulers.scheduler import ASHA, FREEZE_THAW, PAUSING, Asha, Decision, Lengths, Scheduler
from nlu.search.slots import BASIC
from nlu.search.space import Space, grid_values, identity


def build(spec: Mapping[str, Any], space: Space, composed: Callable[[str], str | None], seed: int) -> Scheduler | None:
    """Return the scheduler for a pruner (`nlu.search.pruners.pruner_spec`); None for one that pauses no trial.

    `composed` returns the value of a key that is not drawn, as for `Space.draw`.
    """
    if spec["name"] == ASHA:
        return Asha.of(spec)
    if spec["name"] != FREEZE_THAW:
        return None
    # Its libraries take half a second to import.
    from nlu.search.schedulers.encoding import Encoding
    from nlu.search.schedulers.freeze_thaw import FreezeThaw

    conditional = [name for name in space.names if name not in space.params]
    encoding = Encoding({name: space.distributions(name) for name in space.names}, conditional)
    factor = spec["reduction_factor"]
    return FreezeThaw(
        Lengths.of(spec), encoding, lambda suggest: space.draw(suggest, composed), seed, space.priors, factor=factor
    )


DRAWS, ANYWHERE = 10, 10_000
"""so often the sampler draws a trial whose values an earlier one has, and so often such a trial is drawn at random"""


class Steps:
    """Carries out what the scheduler of a search decides. Only the search decides, so two jobs never get one step."""

    def __init__(self, plan: Plan, say: Callable[[str], None]):
        self._plan, self._say = plan, say
        self.pauses = plan.spec["name"] in PAUSING
        self.scheduler = build(plan.spec, plan.space, plan.composed_value, plan.seed)
        # The loop of the search does not run while a job runs in its thread; see `answering`.
        self._answers = plan.slots.is_threaded
        self._error: Exception | None = None
        self._begun, self._are_all_tried = len(self._trials()), False

    @contextmanager
    def answering(self, answer: Callable[[int], None]) -> Iterator[None]:
        """Within the block, decide by `answer` about the trials whose jobs run in this process.

        An error of it would count as one of the job. It is kept for `require_answered` instead, and the job, which
        gets no answer, saves its state and ends.
        """

        def keep_error(number: int) -> None:
            try:
                answer(number)
            except Exception as error:
                self._error = error

        if self.pauses and self._plan.slots.target == BASIC:
            channel.answer_here[os.getpid()] = keep_error
        try:
            yield
        finally:
            channel.answer_here.clear()

    def require_answered(self) -> None:
        """Raise the error of an answer to a job in this process, once that job has ended."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def drawn(self, number: int) -> FrozenTrial:
        """Return a trial with all its values, those of no trial before. What a kill cut off is made up for."""
        trial_id = self._plan.trial_id(number)
        frozen = self._plan.storage.get_trial(trial_id)
        values: dict[str, Any] = frozen.user_attrs.get(trial_steps.VALUES) or self._values(frozen, trial_id)
        if trial_steps.VALUES not in frozen.user_attrs:
            # First, in one write: from now on the trial is never drawn again.
            self._plan.storage.set_trial_user_attr(trial_id, trial_steps.VALUES, values)
        elif len(frozen.params) == len(values):
            return frozen

        def write(name: str, distribution: BaseDistribution) -> object:
            if name not in frozen.params:
                own = distribution.to_internal_repr(values[name])
                self._plan.storage.set_trial_param(trial_id, name, own, distribution)
            return values[name]

        self._plan.space.draw(write, self._plan.composed_value)
        return self._plan.storage.get_trial(trial_id)

    def _values(self, frozen: FrozenTrial, trial_id: int) -> dict[str, Any]:
        """Draw a trial: again, if an earlier one has its values, and in the end any that none has."""
        study, space, composed = self._plan.study, self._plan.space, self._plan.composed_value
        given = frozen.system_attrs.get(trial_steps.FIXED, {})
        tried = _tried(self._trials()[: frozen.number])
        for again in range(DRAWS):
            found = space.draw(drawing(study, frozen, given, again), composed)
            if identity(found) not in tried:
                return found
        return self._untried(tried) or found

    def _untried(self, tried: Collection[object]) -> dict[str, Any] | None:
        """Return a configuration whose `identity` is not in `tried`; None if there seems to be none."""
        random = np.random.default_rng(stable_seed(self._plan.seed, len(tried), "untried"))
        draw = partial(self._plan.space.draw, composed=self._plan.composed_value)
        drawn = (drawn_anywhere(draw, random) for _ in range(ANYWHERE))
        return next((values for values in drawn if identity(values) not in tried), None)

    def next(self, busy: Collection[int]) -> int | None:
        """Return the trial for a free slot, new or continued, or None; what it may train is written.

        `busy` are the trials that have a job.
        """
        if not self.pauses and not self.left:
            # The trials are not read while the last ones run: this is asked at each poll.
            return None
        trials = self._trials()
        if not self.pauses:
            return self._begin({}, {}, is_first=not trials) if self._may_begin(trials) else None
        log = trial_steps.log_of(trials)
        decision = self._decision(trials, log, busy)
        if decision is None:
            return None
        name, step = trial_steps.step_of(decision, len(log), answers=self._answers)
        if decision.number is None:
            # In one write: after a kill there are both the trial and its step, or none.
            return self._begin({name: step}, decision.values or {}, is_first=not trials)
        self._write(decision.number, name, step)
        return decision.number

    def answer(self, number: int, busy: Collection[int]) -> None:
        """Decide about a trial whose job waits: it gets the next step, or is paused."""
        trials = self._trials()
        log = trial_steps.log_of(trials)
        decision = self._decision(trials, log, busy, asking=number)
        if decision is not None and decision.number == number:
            self._write(number, *trial_steps.step_of(decision, len(log), answers=self._answers))
            self._say(f"trial {number} continues: {_reached(trials[number])}")
        else:
            # Nothing else is written: the slot is decided about once the job has ended, from the same trials.
            self._write(number, *trial_steps.pause_of(trials[number].user_attrs[trial_steps.ASKS], len(log)))

    @property
    def left(self) -> int:
        """How many trials may still begin."""
        return 0 if self._are_all_tried else max(0, self._plan.n_trials - self._begun)

    def _may_begin(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether a trial may begin, and there is a configuration for it."""
        # A grid has a point for each of its trials.
        if self.left and not self._plan.is_grid and self._untried(_tried(trials)) is None:
            self._are_all_tried = True
            self._say("every configuration has been tried, so no new trial begins")
        return self.left > 0

    def follow(self, number: int) -> None:
        """Give a trial the state that its steps imply."""
        trial_id = self._plan.trial_id(number)
        trial_steps.follow(self._plan.storage, self._plan.storage.get_trial(trial_id), trial_id)

    def _decision(
        self,
        trials: Sequence[FrozenTrial],
        log: Sequence[Decision],
        busy: Collection[int],
        asking: int | None = None,
    ) -> Decision | None:
        """Return what the scheduler decides."""
        found = trial_steps.standings(trials, maximize=self._plan.direction == "maximize", asking=asking, busy=busy)
        assert self.scheduler is not None, "the search pauses trials"
        return self.scheduler.decide(found, log, may_begin=self._may_begin(trials))

    def _write(self, number: int, name: str, value: Mapping[str, Any]) -> None:
        self._plan.storage.set_trial_system_attr(self._plan.trial_id(number), name, value)
        self.follow(number)

    def _begin(self, attributes: Mapping[str, Any], values: Mapping[str, object], *, is_first: bool) -> int:
        """Create a trial with these system attributes; the sampler draws parameters of which `values` has none.

        The first trial of a search has the values that the user believes to be good.
        """
        values = {**values, **(self._plan.space.priors if is_first else {})}
        if self._plan.is_grid:
            values = grid_point(grid_values(self._plan.space), self._plan.seed, self._begun)
        fixed = {trial_steps.FIXED: values} if values else {}
        trial = create_trial(state=TrialState.RUNNING, system_attrs={**attributes, **fixed})
        trial_id = self._plan.storage.create_new_trial(self._plan.study_id, trial)
        number = self._plan.storage.get_trial(trial_id).number
        self._begun = number + 1
        return number

    def _trials(self) -> list[FrozenTrial]:
        return self._plan.study.get_trials(deepcopy=False)


def _tried(trials: Sequence[FrozenTrial]) -> set[object]:
    """Return the identities of the configurations of some trials."""
    return {identity(values) for trial in trials if (values := trial_steps.values_of(trial)) is not None}


def paused_line(trial: FrozenTrial) -> str:
    """Return the line of a search about a trial that was paused."""
    return f"trial {trial.number} paused: {_reached(trial)}"


def _reached(trial: FrozenTrial) -> str:
    value = f"{trial.intermediate_values[trial.last_step]:.6g}" if trial.last_step is not None else "no value"
    return f"{value} after {trial.last_step or 0:,} examples"
