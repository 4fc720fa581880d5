"""The loop of a search: ask for a trial, launch its job, wait, tell its result.

Every decision is stored before it takes effect, so that the search can be killed at any point and continued.
"""

import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from optuna.trial import FrozenTrial

from nlu.config import stopping
from nlu.config.errors import UserError, print_error
from nlu.config.sentences import counted
from nlu.runs.mirror import Mirror
from nlu.search import trial_steps
from nlu.search.board import Board, Idle, announce, ended_line, parameters, when
from nlu.search.channel import ATTEMPT, COMPLETE, FAILED, LAUNCHES, OUTCOME, PRUNED, REASON, outcome_now, worked_s
from nlu.search.closing import LEFT, Keeper, close, close_open, has_outcome, note_kept, with_outcome
from nlu.search.deciding import Steps, paused_line
from nlu.search.failures import (
    DEATHS,
    SINCE,
    Failures,
    FailuresEndSearch,
    Restarts,
    early_end,
    end_jobs,
    launch_problem,
    place_of,
    since,
)
from nlu.search.faults import StorageUnavailable
from nlu.search.goals import best_trials
from nlu.search.plan import Plan
from nlu.search.slots import Ended
from nlu.search.storage.open_study import OVER
from nlu.search.sweep_folder import bring_trials_back

POLL_S = {"journal": 0.1, "sqlite": 0.2}
POLL_REMOTE_S = 1.0


@dataclass
class Search:
    """A search from its first trial to its end."""

    plan: Plan
    mirror: Mirror | None = None
    running: dict[int, int] = field(default_factory=dict)
    """the trials that have a job, with the number of its launch"""
    waiting: list[int] = field(default_factory=list)
    """the numbers of trials without a job: interrupted ones and those that start again"""
    restarts: Restarts = field(default_factory=Restarts)
    is_spent: bool = False
    """whether the scheduler wants no further step"""

    def __post_init__(self) -> None:
        self.failures = Failures(self.plan.folder, self.plan.settings["stop_after_same_failures"])
        # Jobs in processes of their own may have been killed with an earlier command, without a fault of theirs.
        self.command = uuid.uuid4().hex if self.plan.slots.is_threaded else ""

    def run(self) -> None:
        """Keep all slots filled until n_trials are finished."""
        trials = self._trials()
        finished = [trial for trial in trials if trial.state.is_finished()]
        # A trial may have failed as it saved to pause, and its search was killed before it closed the trial.
        self.waiting = [
            one.number
            for one in trials
            if trial_steps.is_waiting(one) or (trial_steps.is_paused(one) and has_outcome(one))
        ]
        self.idle = Idle(self.plan.slots.count)
        with Board(self.plan.folder) as self.board, stopping.polled():
            self.plan.storage.is_hurried = lambda: stopping.received() is not None
            announce(self.board, self.plan, len(finished), len(self.waiting), sum(map(trial_steps.is_paused, trials)))
            note_kept(self.plan.study, self.plan.settings["keep"], self.plan.mirror)
            self.keeper = Keeper(self.plan.study, self.plan.folder, partial(self.board.say, style="yellow"))
            self.keeper.update()
            self.steps = Steps(self.plan, self.board.say)
            for trial in trials:
                if not trial.state.is_finished():
                    self.steps.follow(trial.number)
            self._attach(trials)
            try:
                with self.steps.answering(self._answer):
                    self._loop()
            except (UserError, stopping.Stopped):
                # After a signal these are expected: a storage that does not answer is no longer waited for, and a job
                # in this process was stopped and will be continued.
                if stopping.received() is None:
                    self._end_jobs()
                    raise
            if stopping.received() is not None:
                self._end_jobs()
                self.board.say(
                    f"{stopping.sentence()}; the same command with hydra.sweep.dir={self.plan.folder} continues"
                )
                raise SystemExit(stopping.exit_code())
            if self.is_over:
                if self.plan.slots.is_local:
                    self._end_jobs()
                self._collect()
                close_open(self.plan.study)
            elif self.keeper.only_best:
                # Their checkpoints go, so that they could not continue.
                for frozen in filter(trial_steps.is_paused, self._trials()):
                    self._close(with_outcome(self.plan.study, frozen, LEFT))
            if self.plan.slots.is_threaded:
                self.board.say(f"idle slots: {self.idle.share:.1%} of the time in which trials remained")

    def _attach(self, trials: Sequence[FrozenTrial]) -> None:
        """Follow the jobs of an earlier command that still run or wait; only their trials need no new ones."""
        for number, found in self.plan.slots.open_jobs(self.board.say).items():
            if number >= len(trials) or trials[number].state.is_finished():
                continue
            self.running[number] = launch = trials[number].user_attrs.get(LAUNCHES, 0)
            self.waiting = [other for other in self.waiting if other != number]
            job, doubt = found.submitted, "" if found.is_certain else f"; {found.reason}"
            self.board.say(
                f"trial {number}: its job goes on ({job.queue} {job.ticket.id if job.ticket else ''}){doubt}"
            )
            self.plan.slots.attach(number, launch, job)

    def _end_jobs(self) -> None:
        if not self.plan.slots.is_threaded:
            # What ends the search ended its job, so the process of the trial did not die.
            with suppress(StorageUnavailable), self.plan.storage.hurried():
                for number, launch in self.running.items():
                    self._set(number, REASON, {"launch": launch, "error": "the search ended"})
        end_jobs(self.plan.slots, set(self.running), self.plan.folder, self.board)

    def _loop(self) -> None:
        while not self._ends:
            self._collect()
            self._fill()
            self.idle.changed(len(self.running), self._remaining())
            if not self.running:
                if not self._remaining():
                    break
                if self.waiting and self.restarts.set_aside.keys() >= set(self.waiting):
                    raise self.restarts.error(self.plan.folder)
            # A launch ends the wait; the outcomes in the storage have to be polled.
            self.plan.slots.wait(POLL_S.get(self.plan.url.partition("://")[0], POLL_REMOTE_S))

    def _answer(self, number: int) -> None:
        self.steps.answer(number, set(self.running))

    @property
    def is_over(self) -> bool:
        """Whether a user has ended the search for good."""
        return OVER in self.plan.study.user_attrs

    @property
    def _ends(self) -> bool:
        return stopping.received() is not None or self.is_over

    def _remaining(self) -> int:
        if self.steps.pauses:
            return len(self.waiting) + (0 if self.is_spent else self.plan.slots.count)
        return len(self.waiting) + self.steps.left

    def _fill(self) -> None:
        slots = self.plan.slots
        while len(self.running) < slots.count and not self._ends and (number := self._next()) is not None:
            if not self._start(number):
                # The GPUs that become free next are for this trial; otherwise smaller trials could always overtake it.
                self.waiting.insert(0, number)
                break
            if not slots.is_threaded:
                self._collect()

    def _next(self) -> int | None:
        """Return the trial for a free slot: a waiting one that may start, else that of the scheduler, else None."""
        if (due := self.restarts.next_due(self.waiting)) is not None:
            return due
        # A new trial could not start either. It is better drawn later, when the sampler has seen more results.
        if len(self.waiting) > self.plan.slots.count:
            return None
        if self.steps.pauses and self._held() >= self.plan.slots.count:
            return None
        number = self.steps.next(set(self.running))
        self.is_spent = number is None and not self.running
        return number

    def _held(self) -> int:
        """Return the slots of trials that have a job, or get one after a short pause.

        The decisions of a search that pauses trials depend on what is known of all others, so that an interrupted job
        must not be overtaken by the next decision.
        """
        return len(self.running) + sum(number not in self.restarts.set_aside for number in self.waiting)

    def _start(self, number: int) -> bool:
        """Launch the job of a trial, or close the trial if it has an outcome; False if it must wait for GPUs."""
        frozen = self.steps.drawn(number)
        if has_outcome(frozen):
            self._close(frozen)
            return True
        values = frozen.user_attrs[trial_steps.VALUES]
        need = self.plan.need(values)
        if not self.plan.slots.gpus.has_free(need.gpus):
            return False
        attempt, launch = frozen.user_attrs.get(ATTEMPT, 0), frozen.user_attrs.get(LAUNCHES, 0) + 1
        row = since(frozen, launch, self._place_of(frozen))
        if launch - row["launch"] >= DEATHS:
            self._died(frozen)
            return True
        # Stored before the launch, so that a later search counts on from here and its jobs win over this one.
        if row != frozen.user_attrs.get(SINCE):
            self._set(number, SINCE, row)
        self._set(number, LAUNCHES, launch)
        self.running[number] = launch
        begun = "continues" if frozen.last_step is not None or attempt else "started"
        self.board.say(f"trial {number} {begun}: {parameters(values)}")
        self.plan.slots.launch(number, launch, self.plan.overrides(number, attempt, launch, values), need)
        self.steps.require_answered()
        return True

    def _frozen(self, number: int) -> FrozenTrial:
        return self.plan.storage.get_trial(self.plan.trial_id(number))

    def _set(self, number: int, name: str, value: object) -> None:
        self.plan.storage.set_trial_user_attr(self.plan.trial_id(number), name, value)

    def _collect(self) -> None:
        """Close every trial that has an outcome, and handle the launches that ended without one."""
        launches = list(iter(self.plan.slots.next_ended, None))
        # A job writes its outcome before its launch ends, so reading the trials afterwards misses none.
        for frozen in self._trials():
            if frozen.number in self.running and has_outcome(frozen):
                self._close(frozen)
            elif frozen.number in self.running and trial_steps.asks(frozen):
                self._answer(frozen.number)
        for ended in launches:
            # The end of an older launch of the same trial says nothing about its present job.
            if self.running.get(ended.number) == ended.launch:
                self._ended_without_outcome(ended)

    def _close(self, frozen: FrozenTrial) -> None:
        """Tell the study the result of a trial, or start it again if it failed and has retries left."""
        outcome, number = frozen.user_attrs[OUTCOME], frozen.number
        self.restarts.progressed(number)
        self.running.pop(number, None)
        self.plan.slots.freed(number)
        self.idle.changed(len(self.running), self._remaining(), outcome.get("ended_s"))
        self.failures.ended(well=outcome["state"] in (COMPLETE, PRUNED))
        if outcome["state"] == FAILED:
            self._failed(frozen, outcome)
            return
        close(self.plan.study, frozen)
        self.board.say(f"{ended_line(frozen, outcome, self.plan.goals)}; best {self._best()}")
        self._update_files()

    def _failed(self, frozen: FrozenTrial, outcome: dict[str, Any]) -> None:
        number, attempt, error = frozen.number, outcome["attempt"], outcome["error"]
        retries = self.plan.settings["retries"]
        again = attempt < retries and not frozen.state.is_finished()
        self.board.say(
            f"trial {number} failed: {parameters(frozen.user_attrs.get(trial_steps.VALUES, {}))}: "
            f"{self.failures.words(number, error)} "
            f"({outcome['log'] or 'no log'})" + (f"; trying again, {attempt + 1} of {retries}" if again else ""),
            style="red",
        )
        if again:
            self._set(number, ATTEMPT, attempt + 1)
            self.waiting.insert(0, number)
            return
        # Before an error that ends the search, so that the trial is not started again when the search continues.
        close(self.plan.study, frozen)
        self._update_files()
        if self.plan.settings["on_failure"] == "stop":
            raise FailuresEndSearch(
                f"trial {number} failed, as shown above, and hydra.sweeper.on_failure is stop; the same command with "
                "hydra.sweeper.on_failure=continue leaves it out"
            )
        self.failures.failed(number, error, sum(trial.state.is_finished() for trial in self._trials()))

    def _ended_without_outcome(self, ended: Ended) -> None:
        del self.running[ended.number]
        self.plan.slots.freed(ended.number)
        frozen = self._frozen(ended.number)
        if trial_steps.is_paused(frozen):
            # However its job ended: it continues from what it saved, or not at all.
            return self.board.say(paused_line(frozen))
        if (why := early_end(ended, frozen)) is not None:
            self._start_again(frozen, why, ended.launch)
        elif (problem := launch_problem(ended, self.plan.slots.target, self.plan.folder)) is not None:
            raise problem
        elif ended.launch + 1 - since(frozen, ended.launch + 1, self._place_of(frozen))["launch"] < DEATHS:
            self._start_again(frozen, f"its job is gone ({ended.reason})")
        else:
            self._died(frozen)

    def _start_again(self, frozen: FrozenTrial, why: str, launch: int | None = None) -> None:
        """Continue a trial whose job ended early, after a pause if it made no progress, or set it aside.

        `launch` is that of the job, None if its process died.
        """
        number = frozen.number
        self.waiting.insert(0, number)
        if launch is not None:
            self._set(number, REASON, {"launch": launch, "error": why})
        if stopping.received() is not None:
            return
        got_further = frozen.user_attrs.get(SINCE, {}).get("at") != self._place_of(frozen)
        pause_s = self.restarts.interrupted(number, why, got_further=got_further)
        if pause_s is None:
            then = "again and again without progress; it is set aside until this command is given again"
        else:
            then = f"it continues {when(pause_s)} from its checkpoint"
        self.board.say(f"trial {number}: {why}; {then}", style="red" if pause_s is None else None)

    def _died(self, frozen: FrozenTrial) -> None:
        # Not tried again: in Hydra's own launcher each try ends the search.
        attempt = max(self.plan.settings["retries"], frozen.user_attrs.get(ATTEMPT, 0))
        error = f"its process died {DEATHS} times in a row without progress"
        self._set(frozen.number, OUTCOME, outcome_now(FAILED, attempt, error=error, wall_s=worked_s(frozen)))
        self._close(self._frozen(frozen.number))

    def _place_of(self, frozen: FrozenTrial) -> list[Any]:
        return place_of(frozen, self.plan.folder / str(frozen.number), self.command)

    def _trials(self) -> list[FrozenTrial]:
        return self.plan.study.get_trials(deepcopy=False)

    def _best(self) -> str:
        best = next(iter(best_trials(self.plan.study)), None)
        return "none yet" if best is None else f"{best.values[0]:.6g} (trial {best.number})"

    def _update_files(self) -> None:
        self.keeper.update()
        if self.mirror is not None:
            self.mirror.saved()

    def summarize(self) -> None:
        """Print the table of the trials, and write it with the figures and the page."""
        from nlu.search.summary import write_summary

        if self.plan.mirror is not None:
            say = partial(self.board.say, style="yellow")
            bring_trials_back(self.plan.mirror, self.plan.folder, self._trials(), say)
        self.keeper.end()
        self.is_summarized = write_summary(self.plan.study, self.plan.folder)
        # The table must appear before later messages on standard error.
        sys.stdout.flush()

    def require_an_end(self) -> None:
        """Exit with status 1 if no trial is complete, or a table or figure is not written: a script would miss it.

        A user who has ended the search expects no complete trial.
        """
        has_none = not self.is_over and not best_trials(self.plan.study)
        if has_none:
            count, goals = counted(len(self._trials()), "trial"), self.plan.goals
            within = " within the constraints" if goals.constraints else ""
            print_error(UserError(f"of {count} none completed{within}; a best trial needs one"))
        if has_none or not self.is_summarized:
            raise SystemExit(1)
