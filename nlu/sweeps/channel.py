"""What a job knows of its trial: where to report, whether to stop, how to say what became of it.

A job is handed `trial={storage: URL, study: NAME, number: N, attempt: A, launch: L}` and needs nothing else: it reports
to the storage, asks the pruner itself, and leaves its outcome there. The sweeper alone closes the trial.

Of several jobs of one trial the newest has it. A job claims its trial when it begins to work: the launches are counted
by the sweeper, so a claim of a later launch stands against an earlier one's, and of two of the same number (of sweepers
that did not see each other) the last one stands. Whoever finds another's claim, at a report or a save, leaves.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from nlu.config import stopping
from nlu.config.errors import EXIT_USER_ERROR, UserError
from nlu.config.placement import placement
from nlu.config.submitted import is_submitted, time_signal
from nlu.storage.heartbeat import elapsed_s
from nlu.storage.ledger import TakenOver
from nlu.storage.locks import hold_lock
from nlu.storage.redaction import hide
from nlu.storage.temporary import is_temporary
from nlu.sweeps.away import StorageAway
from nlu.sweeps.brackets import PRUNER
from nlu.sweeps.faults import lost_a_peer, machine_fault
from nlu.sweeps.storage import open_storage

log = logging.getLogger(__name__)

OUTCOME = "outcome"
"""user attribute of a trial: the mapping that `Trial.finish` describes"""
DECISION = "decision"
"""user attribute of a trial: the last answer that the pruner gave, and what it was given for"""
CLAIM = "claim"
"""user attribute of a trial: `launch` and `id` of the job that has it"""
FAULT = "fault"
"""user attribute of a trial: for which `launch` its machine was at fault, and the `error`"""
REASON = "reason"
"""user attribute of a trial: why the job of which `launch` stopped before its end, as an `error`"""
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
LOCKS = ".jobs"
"""folder beside the trials' own, with a file for each that its job has locked"""
CLAIM_VARIABLE = "NLU_TRIAL_CLAIM"
"""by what the processes that a job starts know its claim: STORAGE STUDY NUMBER ID"""
CHECKED_FOR_S = 5.0
"""how long `Trial.require_newest` takes it for known that no other job has the trial"""


class Superseded(UserError):
    """A newer job has the trial; this one leaves all as it is."""


class Trial:
    """One trial, as its job sees it. Only one process of a job holds it: rank 0, or whoever started the ranks."""

    def __init__(self, storage: str, study: str, number: int, attempt: int = 0, launch: int = 0):
        import optuna

        from nlu.sweeps import pruning

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.number, self.attempt, self.launch = number, attempt, launch
        self._address = f"{storage} {study} {number}"
        self._storage = open_storage(storage, is_known=True)
        # A job that is asked to stop waits for nothing.
        self._storage.is_hurried = lambda: stopping.received() is not None
        self._study = optuna.load_study(study_name=study, storage=self._storage)
        self._study.pruner = pruning.build(self._study.user_attrs.get(PRUNER), self._storage)
        study_id = self._storage.get_study_id_from_name(study)
        self._id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        self._wall_s = float(self._attribute(DECISION).get("wall_s", 0.0))
        self._began_s = time.monotonic()
        claimed, _, own = os.environ.get(CLAIM_VARIABLE, "").rpartition(" ")
        self._claim = own if claimed == self._address else None
        self._checked_s = -math.inf

    @property
    def is_over(self) -> bool:
        """Whether the trial is closed, or this attempt at it has left its outcome: then there is nothing to do."""
        frozen = self._storage.get_trial(self._id)
        return frozen.state.is_finished() or frozen.user_attrs.get(OUTCOME, {}).get("attempt", -1) >= self.attempt

    @property
    def wall_s(self) -> float:
        """Seconds that jobs have worked on this trial, over all continuations, up to their last report."""
        return self._wall_s + time.monotonic() - self._began_s

    def claim(self) -> None:
        """Have the trial from now on: any other job of it leaves. Raises Superseded where a later launch has it."""
        held = self._attribute(CLAIM)
        if held.get("launch", 0) > self.launch:
            raise self._superseded(held)
        self._claim = uuid.uuid4().hex
        os.environ[CLAIM_VARIABLE] = f"{self._address} {self._claim}"
        self._set(CLAIM, {"launch": self.launch, "id": self._claim})

    def require_newest(self) -> None:
        """Raise Superseded where another job has claimed the trial since this one did: to be called before each save.

        The storage is asked every `CHECKED_FOR_S` seconds at most. Raises StorageAway where it does not answer.
        """
        if elapsed_s() - self._checked_s > CHECKED_FOR_S:
            self._require_newest()

    def _require_newest(self) -> dict[str, Any]:
        """Return the attributes of the trial. Raises Superseded where another job has it."""
        asked_s = elapsed_s()
        attributes = self._storage.get_trial(self._id).user_attrs
        held = attributes.get(CLAIM, {})
        if self._claim is not None and held.get("id") != self._claim:
            raise self._superseded(held)
        self._checked_s = asked_s
        return attributes

    def _superseded(self, held: Mapping[str, Any]) -> Superseded:
        return Superseded(
            f"trial {self.number} has a newer job (launch {held.get('launch')}, this was {self.launch}); this one "
            "leaves it alone"
        )

    def report(self, examples: int, value: float) -> bool:
        """Report a value after so many examples seen; returns whether the trial is to be pruned.

        A job that was continued from a checkpoint reports again what it had reported: it gets the same answers, as far
        as they were recorded. Raises Superseded where a newer job has the trial, StorageAway where the storage stays
        away.
        """
        from optuna.exceptions import UpdateFinishedTrialError

        decision = self._require_newest().get(DECISION, {})
        try:
            if examples < decision.get("examples", -1):
                return False
            if examples == decision.get("examples"):
                return bool(decision["pruned"])
            self._storage.set_trial_intermediate_value(self._id, examples, value)
            pruned = bool(self._study.pruner.prune(self._study, self._storage.get_trial(self._id)))
            # Judging takes a while, and this process may have been suspended: a newer job's decision stands.
            self._require_newest()
            self._set(DECISION, {"examples": examples, "pruned": pruned, "wall_s": self.wall_s})
        except UpdateFinishedTrialError:
            log.warning("trial %d was closed by the sweep; this job leaves", self.number)
            return True
        return pruned

    def finish(
        self, state: str, folder: Path, *, value: float | None = None, examples: int | None = None, error: str = "",
        log_file: Path | None = None, sd: float | None = None,
    ) -> None:  # fmt: skip
        """Leave the outcome of this attempt: complete, pruned or failed.

        A trial that was closed meanwhile, or has a newer job, stays as it is.
        """
        self._leave(OUTCOME, {
            "state": state, "attempt": self.attempt, "value": value, "examples": examples, "sd": sd,
            "wall_s": self.wall_s, "ended_s": time.time(), "folder": str(folder), "error": error,
            "log": str(log_file) if log_file else None,
        })  # fmt: skip

    def give_back(self, fault: str) -> None:
        """Leave the trial to another launch: that this one could not end it was the machine's fault."""
        self._leave(FAULT, {"launch": self.launch, "error": fault})

    def stopped(self, reason: str) -> None:
        """Tell why this job stops before its end; a storage that does not answer is not waited for again."""
        with suppress(StorageAway), self._storage.hurried():
            self._leave(REASON, {"launch": self.launch, "error": reason})

    def _leave(self, name: str, value: dict[str, Any]) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self._require_newest()
            self._set(name, value)
        except Superseded as error:
            log.warning("%s", error)
        except UpdateFinishedTrialError:
            log.warning("trial %d was closed by the sweep before this job ended", self.number)

    def _attribute(self, name: str) -> dict[str, Any]:
        return self._storage.get_trial(self._id).user_attrs.get(name, {})

    def _set(self, name: str, value: dict[str, Any]) -> None:
        self._storage.set_trial_user_attr(self._id, name, value)


def open_trial(mapping: Mapping[str, Any]) -> Trial:
    """Open the trial of a job from what the sweeper handed it, once a process.

    Raises StorageAway where its storage does not answer, for as long as a storage may be away.
    """
    named = (mapping[name] for name in ("storage", "study", "number"))
    return _open(*named, mapping.get("attempt", 0), mapping.get("launch", 0))


_open = lru_cache(maxsize=1)(Trial)


def run_trial(mapping: Mapping[str, Any], run_dir: Path, run: Callable[[], int]) -> int:
    """Call `run`, which returns an exit status, and leave in the storage what became of it.

    A run that stopped with its state saved leaves no outcome: the sweep continues it another time. So it does with one
    whose machine failed, whose failure is temporary (`nlu.storage.temporary`), or of which a newer job has the trial or
    the mirror; why is left in the storage, if that answers. Any other UserError is told by the sweep, and ends the job
    with its status; its sentences are in `run_dir/log.txt`. What else was raised is raised again; its traceback is
    there.
    """
    with stopping.listening():
        if is_submitted():
            # submitit sends it when the job's time is nearly up, and would raise an error wherever the job is.
            signal.signal(time_signal(), lambda *_: signal.raise_signal(signal.SIGTERM))
        try:
            return _run_claimed(mapping, run_dir, run)
        except stopping.Stopped as stopped:
            if not is_submitted():
                # The search that called this stops as well.
                raise
            return stopping.exit_code(stopped)
        finally:
            os.environ.pop(CLAIM_VARIABLE, None)


def _run_claimed(mapping: Mapping[str, Any], run_dir: Path, run: Callable[[], int]) -> int:
    if not placement().is_first:
        # The process of the first node has the trial, and tells the others what becomes of it.
        return run()
    trial = None
    try:
        trial = open_trial(mapping)
        with only_job(run_dir):
            if trial.is_over:
                log.info("trial %d is done; nothing was done", trial.number)
                return 0
            trial.claim()
            # Another job of the same launch may have ended between the two.
            if trial.is_over:
                return 0
            return _run(trial, run_dir, run)
    except Exception as error:
        if not _leaves_trial(error):
            raise
        log.warning("%s", error)
        if trial is not None and not isinstance(error, StorageAway | Superseded):
            trial.stopped(last_line(error))
        return stopping.exit_code()


def _leaves_trial(error: Exception) -> bool:
    """Whether an error leaves a trial to another job, or to the same another time."""
    return isinstance(error, Superseded | TakenOver) or is_temporary(error)


@contextmanager
def only_job(run_dir: Path) -> Iterator[None]:
    """Wait until no other job is at this trial, and keep others from it.

    The job that had it before may still live where the search that started it was killed; the one that waits finds the
    trial over, or continues from the checkpoint of one that died.
    """
    locks = run_dir.parent / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    with hold_lock(locks / f"{run_dir.name}.lock", wait_s=math.inf, what=f"the trial in {run_dir}"):
        yield


def _run(trial: Trial, run_dir: Path, run: Callable[[], int]) -> int:
    try:
        status = run()
    except Exception as error:
        if _leaves_trial(error):
            raise
        if placement().world_size > 1 and lost_a_peer(error):
            # Its node went down, or it said by itself what became of it: this job leaves no outcome, and is begun anew.
            record_failure(run_dir, error)
            raise
        if fault := machine_fault(error):
            log.error("%s; the trial will start again", fault)
            with suppress(OSError):
                record_failure(run_dir, error)
            trial.give_back(fault)
            return stopping.EXIT_REQUEUE
        file = record_failure(run_dir, error)
        trial.finish(FAILED, run_dir, error=last_line(error), log_file=file)
        if isinstance(error, UserError):
            return EXIT_USER_ERROR
        raise
    if status in stopping.STOPPED:
        if (number := stopping.received()) is not None:
            trial.stopped(f"it was sent {number.name}")
        return status
    if status:
        trial.finish(FAILED, run_dir, error=f"a process of it ended with status {status}", log_file=run_dir / "log.txt")
        return status
    if not trial.is_over:
        _finish_with_result(trial, run_dir)
    return 0


def _finish_with_result(trial: Trial, run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())
    value = result["best"]["value"]
    if value is None or not math.isfinite(value):
        trial.finish(FAILED, run_dir, error=f"{result['best']['metric']} is {value}", log_file=run_dir / "log.txt")
        return
    state = PRUNED if result["pruned"] else COMPLETE
    trial.finish(state, run_dir, value=value, examples=result["examples"], sd=result["best"].get("sd"))


def record_failure(run_dir: Path, error: BaseException) -> Path:
    """Append the traceback of an error to the log file of a run; returns that file."""
    text = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
    file = run_dir / "log.txt"
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} ERROR {hide(text.rstrip())}\n")
    return file


def last_line(error: BaseException) -> str:
    """Return what an error says, on one line: all problems of a UserError, the kind and last line of any other."""
    if isinstance(error, UserError):
        return "; ".join(error.sentences)
    lines = hide(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
