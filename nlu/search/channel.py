"""The connection between a job and its trial: reports, the decision to stop, the outcome.

A job gets `trial={storage: URL, study: NAME, number: N, attempt: A, launch: L}` and needs nothing else. It reports to
the storage, asks the pruner itself, and writes its outcome there. Only the search closes the trial.

A trial has one job at a time: the lock of its folder keeps a second one waiting, and of hosts without a common folder
only one can write to the mirror of the run. The newest launch wins: its job takes the mirror from an older one, which
ends at its next save, and an older one that starts later ends at once.
"""

import json
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlu.config import stopping
from nlu.config.entry.grid import is_submitted
from nlu.config.errors import EXIT_USER_ERROR, UserError, is_temporary
from nlu.jobs.placement import placement
from nlu.jobs.requeue import time_signal
from nlu.runs.logs import LOG, record_end
from nlu.search.faults import StorageUnavailable, last_line, lost_a_peer, machine_fault
from nlu.search.goals import MEASURED, Goals, quantities_of
from nlu.search.pruners import PRUNER, HalvingPruner
from nlu.search.storage.open_study import OVER, open_storage
from nlu.search.trial_steps import ASKS, PART_ENDS, PART_VALUES, asks, is_answered, is_paused, until_of
from nlu.storage.locks import hold_lock
from nlu.storage.pointer import TakenOver

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

log = logging.getLogger(__name__)

OUTCOME = "outcome"
"""user attribute of a trial: the mapping that `TrialChannel.finish` writes"""
DECISION = "decision"
"""user attribute of a trial: the last decision of the pruner, with the report that it is for"""
ATTEMPT = "attempt"
"""user attribute of a trial: how often it has failed"""
LAUNCHES = "launches"
"""user attribute of a trial: how many jobs were launched"""
REASON = "reason"
"""user attribute of a trial: the `launch` whose job stopped before its end, and the reason as `error`"""
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
LOCKS = ".jobs"
"""the folder, beside those of the trials, with a lock file for each trial"""
ANSWER_S = 120.0
"""how long a job waits for the decision of the search before it saves its state and ends"""
ANSWER_POLL_S, ANSWER_POLL_REMOTE_S = 0.1, 1.0
answer_here: dict[int, Callable[[int], None]] = {}
"""by process, if a search runs its jobs in its own: decides about the trial of a number, which waits"""


class TrialChannel:
    """A trial as its job sees it. Only one process of a job opens it: rank 0, or the process that starts the ranks."""

    def __init__(self, storage: str, study: str, number: int, attempt: int = 0, launch: int = 0):
        import optuna

        # Optuna's messages would mix with those of the job.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.number, self.attempt, self.launch = number, attempt, launch
        self._is_local = storage.startswith(("journal:", "sqlite:"))
        self._storage = open_storage(storage, is_known=True)
        # A job that is asked to stop no longer waits for the storage.
        self._storage.is_hurried = lambda: stopping.received() is not None
        self._study = optuna.load_study(study_name=study, storage=self._storage)
        attributes = self._study.user_attrs
        self._pruner = HalvingPruner(attributes.get(PRUNER, {}), self._storage)
        self.quantities = Goals.of(attributes).quantities
        """what the search wants to know of a trial besides its metric (`nlu.search.goals`)"""
        study_id = self._storage.get_study_id_from_name(study)
        self._id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        frozen = self._storage.get_trial(self._id)
        self._wall_s = worked_s(frozen)
        # The first step is written with the trial.
        self._may_pause = until_of(frozen) is not None
        self._began_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the trial is closed, or this attempt has an outcome, so that nothing is left to do."""
        frozen = self._frozen()
        return frozen.state.is_finished() or frozen.user_attrs.get(OUTCOME, {}).get("attempt", -1) >= self.attempt

    @property
    def wall_s(self) -> float:
        """The seconds that all jobs of this trial have run, the former ones up to their last reports."""
        return self._wall_s + time.monotonic() - self._began_s

    def begin(self) -> int:
        """Count the time from now on: while this job waited for an earlier one, that one counted and noted it.

        Returns the newest launch of the trial.
        """
        frozen = self._frozen()
        self._wall_s, self._began_s = worked_s(frozen), time.monotonic()
        return int(frozen.user_attrs.get(LAUNCHES, 0))

    def _frozen(self) -> "FrozenTrial":
        return self._storage.get_trial(self._id)

    def report(self, examples: int, value: float) -> bool:
        """Report a value after `examples` examples; returns whether the trial should be pruned.

        A job that continues from a checkpoint repeats reports. It gets the recorded answers again. Raises
        StorageUnavailable if the storage does not answer.
        """
        from optuna.exceptions import UpdateFinishedTrialError

        # The search closes the trial, but a job in its process has to end first.
        if OVER in self._study.user_attrs:
            return True
        decision = self._frozen().user_attrs.get(DECISION, {})
        try:
            # The run continues from a checkpoint that is older than its last report. What was decided then did not stop
            # it.
            if examples < decision.get("examples", -1):
                return False
            # A kill between the decision and the save of the run: the same answer leads to the same bytes.
            if examples == decision.get("examples"):
                return bool(decision["pruned"])
            # The value first, since the pruner reads it from the storage.
            self._storage.set_trial_intermediate_value(self._id, examples, value)
            pruned = self._pruner.prune(self._study, self._frozen())
            self._set(DECISION, {"examples": examples, "pruned": pruned, "wall_s": self.wall_s})
        except UpdateFinishedTrialError:
            log.warning("trial %d was closed by the search; this job ends", self.number)
            return True
        return pruned

    def pauses(self, examples: int) -> bool:
        """Ask whether the trial is paused after `examples` examples: after each report, and when a run continues.

        The run must then save its state and end. If the trial has taken its step, this waits for the decision of the
        search. It returns True if none comes for `ANSWER_S` seconds or this process should stop; the trial is then
        asked about again when it continues.
        """
        if not self._may_pause or examples < (until_of(self._frozen()) or math.inf):
            return False
        self._write(ASKS, examples)
        # By process, since the ranks of a run may be forks of the search.
        if (answer := answer_here.get(os.getpid())) is not None:
            answer(self.number)
        end_s = time.monotonic() + ANSWER_S
        while not (frozen := self._frozen()).state.is_finished() and asks(frozen):
            if not is_answered(frozen) or stopping.received() is not None or time.monotonic() > end_s:
                return True
            time.sleep(ANSWER_POLL_S if self._is_local else ANSWER_POLL_REMOTE_S)
        return is_paused(frozen) or frozen.state.is_finished()

    def end_part(self, examples: int, value: float) -> None:
        """Note that a fold or seed of the trial has ended after `examples` examples in all, with the mean of the best
        values so far."""
        known = self._frozen().user_attrs
        ends, values = known.get(PART_ENDS, []), known.get(PART_VALUES, {})
        if examples in ends:
            return
        # First: an end that is known has its value. Not every database keeps NaN.
        if str(examples) not in values:
            self._write(PART_VALUES, {**values, str(examples): value if math.isfinite(value) else None})
        self._write(PART_ENDS, [*ends, examples])

    def finish(
        self,
        state: str,
        *,
        value: float | None = None,
        examples: int | None = None,
        error: str = "",
        log_file: Path | None = None,
        sd: float | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        """Write the outcome of this attempt: complete, pruned or failed; before it the quantities of the trial, if any.

        A trial that is closed is not changed.
        """
        if measured:
            self._write(MEASURED, dict(measured))
        known = {"value": value, "examples": examples, "sd": sd, "error": error}
        log_name = str(log_file) if log_file else None
        self._write(OUTCOME, outcome_now(state, self.attempt, wall_s=self.wall_s, log=log_name, **known))

    def stopped(self, reason: str) -> None:
        """Write why this job stops before its end, without waiting for a storage that does not answer."""
        with suppress(StorageUnavailable), self._storage.hurried():
            self._write(REASON, {"launch": self.launch, "error": reason})

    def _write(self, name: str, value: object) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self._set(name, value)
        except UpdateFinishedTrialError:
            log.warning("trial %d was closed by the search before this job ended", self.number)

    def _set(self, name: str, value: object) -> None:
        self._storage.set_trial_user_attr(self._id, name, value)


def outcome_now(state: str, attempt: int, **known: object) -> dict[str, Any]:
    """Return what OUTCOME holds of a trial that has ended now; what is not `known` is None."""
    names = ("value", "examples", "sd", "wall_s", "error", "log")
    return {"state": state, "attempt": attempt, "ended_s": time.time(), **dict.fromkeys(names), **known}


def worked_s(trial: "FrozenTrial") -> float:
    """Return the seconds that the jobs of a trial have run so far, each up to its last report."""
    return float(trial.user_attrs.get(DECISION, {}).get("wall_s", 0.0))


def open_trial(mapping: Mapping[str, object]) -> TrialChannel:
    """Open the trial of a job, given the mapping from the search; each process opens it once.

    Raises StorageUnavailable if the storage does not answer for a long time.
    """
    named = (mapping[name] for name in ("storage", "study", "number"))
    return _open(*named, mapping.get("attempt", 0), mapping.get("launch", 0))


# One connection for each process: the launcher and the run of a job both open the trial.
_open = lru_cache(maxsize=1)(TrialChannel)


def run_trial(mapping: Mapping[str, object], run_dir: Path, run: Callable[[], int]) -> int:
    """Call `run`, which returns an exit status, and write its outcome into the storage.

    No outcome is written, so that the search continues the trial, if the run saved its state and stopped, if its
    machine has a fault, if the failure is temporary (`nlu.storage.refusals`), or if a newer job has the trial or the
    mirror of the run. The reason is written if the storage answers. Any other UserError ends the job with its status;
    the search prints it, and `run_dir/log.txt` has it too. Other errors are raised again, with their traceback in that
    file.
    """
    with stopping.listening():
        if is_submitted():
            # submitit sends this signal shortly before the time limit, and its handler would raise an error anywhere.
            signal.signal(time_signal(), lambda *_: signal.raise_signal(signal.SIGTERM))
        try:
            return _run_claimed(mapping, run_dir, run)
        except stopping.Stopped as stopped:
            if not is_submitted():
                # The search in the same process must stop too.
                raise
            return stopping.exit_code(stopped)


def _run_claimed(mapping: Mapping[str, object], run_dir: Path, run: Callable[[], int]) -> int:
    if not placement().is_first:
        # Only the process on the first node reports to the trial; it tells the others what to do.
        return run()
    trial = None
    try:
        trial = open_trial(mapping)
        with only_job(run_dir):
            if trial.is_over:
                log.info("trial %d is done; nothing was done", trial.number)
                return 0
            if (newest := trial.begin()) > trial.launch:
                # Its queue was slow; the search has given it up.
                log.warning("trial %d has a newer job (launch %d, this was %d)", trial.number, newest, trial.launch)
                return 0
            return _run(trial, run_dir, run)
    except Exception as error:
        if not _leaves_trial(error):
            raise
        log.warning("%s", error)
        if trial is not None and not isinstance(error, StorageUnavailable):
            trial.stopped(last_line(error))
        return stopping.exit_code()


def _leaves_trial(error: Exception) -> bool:
    """Whether a trial continues after an error, in another job or later."""
    return isinstance(error, TakenOver) or is_temporary(error)


@contextmanager
def only_job(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a trial, after waiting for its current job.

    A job may outlive a search that was killed. The job that waited for it finds the trial finished, or continues from
    its checkpoint.
    """
    lock = lock_of(run_dir)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(lock, wait_s=math.inf, what=f"the trial in {run_dir}"):
        yield


def lock_of(run_dir: Path) -> Path:
    """Return the path of the lock that the job of a trial holds."""
    return run_dir.parent / LOCKS / f"{run_dir.name}.lock"


def _run(trial: TrialChannel, run_dir: Path, run: Callable[[], int]) -> int:
    try:
        status = run()
    except Exception as error:
        if _leaves_trial(error):
            raise
        if placement().world_size > 1 and lost_a_peer(error):
            # The node of the other process failed, or that process writes the outcome. This one writes none, so that
            # the job can start again.
            record_end(run_dir, UserError(str(error)))
            raise
        if fault := machine_fault(error):
            log.error("%s; the trial will start again", fault)
            record_end(run_dir, error)
            trial.stopped(f"a fault of its machine: {fault}")
            return stopping.EXIT_REQUEUE
        # The log first: the outcome, which other machines read, names it.
        record_end(run_dir, error)
        trial.finish(FAILED, error=last_line(error), log_file=run_dir / LOG)
        if isinstance(error, UserError):
            return EXIT_USER_ERROR
        raise
    if status in stopping.STOPPED:
        if (number := stopping.received()) is not None:
            trial.stopped(f"it was sent {number.name}")
        return status
    if status:
        trial.finish(FAILED, error=f"a process of it ended with status {status}", log_file=run_dir / LOG)
        return status
    # If another job has taken the trial over, its end may not be in the storage, nor its result here.
    if not trial.is_over and (run_dir / "result.json").is_file():
        _finish_with_result(trial, run_dir)
    return 0


def _finish_with_result(trial: TrialChannel, run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())
    best = result["best"]
    measured, lacking = quantities_of(result, trial.quantities)
    # A sampler cannot learn from NaN, and the storage refuses it as the value of a complete trial.
    if best["value"] is None or not math.isfinite(best["value"]):
        lacking = [f"{best['metric']} is {best['value']}"]
    if lacking:
        trial.finish(FAILED, error=", ".join(lacking), log_file=run_dir / LOG)
        return
    state, sd = PRUNED if result["pruned"] else COMPLETE, best.get("sd")
    trial.finish(state, value=best["value"], examples=result["examples"], sd=sd, measured=measured)
