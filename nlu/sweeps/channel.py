"""What a job knows of its trial: where to report, whether to stop, how to say what became of it.

A job is handed `trial={storage: URL, study: NAME, number: N, attempt: A}` and needs nothing else: it reports to the
storage, asks the pruner itself, and leaves its outcome there. The sweeper alone closes the trial.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from nlu.config.errors import EXIT_USER_ERROR, UserError
from nlu.config.submitted import is_submitted, time_signal
from nlu.storage.locks import hold_lock
from nlu.storage.redaction import hide
from nlu.sweeps.storage import open_storage, patiently

log = logging.getLogger(__name__)

OUTCOME = "outcome"
"""user attribute of a trial: the mapping that `Trial.finish` describes"""
DECISION = "decision"
"""user attribute of a trial: the last answer that the pruner gave, and what it was given for"""
PRUNER = "pruner"
"""user attribute of a study: the pruner as `nlu.sweeps.pruning.build` takes it"""
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
STOPPED = (75, 130)
"""Exit statuses of a run that saved its state and is to be continued."""
LOCKS = ".jobs"
"""folder beside the trials' own, with a file for each that its job has locked"""


class Trial:
    """One trial, as its job sees it. Only one process of a job holds it: rank 0, or whoever started the ranks."""

    def __init__(self, storage: str, study: str, number: int, attempt: int = 0):
        import optuna

        from nlu.sweeps import pruning

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.number, self.attempt = number, attempt
        self._storage = open_storage(storage)
        self._study = optuna.load_study(study_name=study, storage=self._storage)
        self._study.pruner = pruning.build(self._study.user_attrs.get(PRUNER))
        self._id = self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        self._wall_s = float(self._attribute(DECISION).get("wall_s", 0.0))
        self._began_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the trial is closed, or this attempt at it has left its outcome: then there is nothing to do."""
        frozen = self._storage.get_trial(self._id)
        return frozen.state.is_finished() or frozen.user_attrs.get(OUTCOME, {}).get("attempt", -1) >= self.attempt

    @property
    def wall_s(self) -> float:
        """Seconds that jobs have worked on this trial, over all continuations, up to their last report."""
        return self._wall_s + time.monotonic() - self._began_s

    def report(self, examples: int, value: float) -> bool:
        """Report a value after so many examples seen; returns whether the trial is to be pruned.

        A job that was continued from a checkpoint reports again what it had reported: it gets the same answers, as far
        as they were recorded.
        """
        return patiently(lambda: self._report(examples, value))

    def _report(self, examples: int, value: float) -> bool:
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            decision = self._attribute(DECISION)
            if examples < decision.get("examples", -1):
                return False
            if examples == decision.get("examples"):
                return bool(decision["pruned"])
            self._storage.set_trial_intermediate_value(self._id, examples, value)
            pruned = bool(self._study.pruner.prune(self._study, self._storage.get_trial(self._id)))
            self._set(DECISION, {"examples": examples, "pruned": pruned, "wall_s": self.wall_s})
        except UpdateFinishedTrialError:
            log.warning("trial %d was closed by the sweep; this job leaves", self.number)
            return True
        return pruned

    def finish(
        self, state: str, folder: Path, *, value: float | None = None, examples: int | None = None, error: str = "",
        log_file: Path | None = None, sd: float | None = None,
    ) -> None:  # fmt: skip
        """Leave the outcome of this attempt: complete, pruned or failed. A trial closed meanwhile stays as it is."""
        from optuna.exceptions import UpdateFinishedTrialError

        outcome = {
            "state": state, "attempt": self.attempt, "value": value, "examples": examples, "sd": sd,
            "wall_s": self.wall_s, "ended_s": time.time(), "folder": str(folder), "error": error,
            "log": str(log_file) if log_file else None,
        }  # fmt: skip
        try:
            patiently(lambda: self._set(OUTCOME, outcome))
        except UpdateFinishedTrialError:
            log.warning("trial %d was closed by the sweep before this job ended", self.number)

    def _attribute(self, name: str) -> dict[str, Any]:
        return self._storage.get_trial(self._id).user_attrs.get(name, {})

    def _set(self, name: str, value: dict[str, Any]) -> None:
        self._storage.set_trial_user_attr(self._id, name, value)


def open_trial(mapping: Mapping[str, Any]) -> Trial:
    """Open the trial of a job from what the sweeper handed it. UserError where its storage cannot be reached."""
    return _open(mapping["storage"], mapping["study"], mapping["number"], mapping.get("attempt", 0))


_open = lru_cache(maxsize=1)(Trial)


def run_trial(mapping: Mapping[str, Any], run_dir: Path, run: Callable[[], int]) -> int:
    """Call `run`, which returns an exit status, and leave in the storage what became of it.

    A run that stopped with its state saved leaves no outcome: the sweep goes on with it another time. A UserError is
    told by the sweep, and ends the job with its status; its sentences are in `run_dir/log.txt`. What else was raised
    is raised again; its traceback is there.
    """
    if is_submitted():
        if _was_answered():
            log.info("this job was stopped and queued again; the search goes on with trial %d", mapping["number"])
            return STOPPED[0]
        _hear_signals()
    trial = open_trial(mapping)
    with only_job(run_dir):
        if trial.is_over:
            log.info("trial %d is done; nothing was done", trial.number)
            return 0
        return _run(trial, run_dir, run)


def _was_answered() -> bool:
    """Whether this is a job that Slurm starts once more although it had ended, with its state saved, when it had to go.

    The search has read that and launched another job, which would wait for this one, or this one for it.
    """
    import submitit

    return "SLURM_RESTART_COUNT" in os.environ and submitit.JobEnvironment().paths.result_pickle.exists()


def _hear_signals() -> None:
    """Have the signals that ask a job to go end it until a run listens by itself, and then end its step.

    These are SIGTERM and, a while before the job's time is up, submitit's own. submitit ignores the one, and raises an
    error for the other in the midst of whatever runs.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(time_signal(), lambda *_: signal.raise_signal(signal.SIGTERM))


@contextmanager
def only_job(run_dir: Path) -> Iterator[None]:
    """Wait until no other job is at this trial, and keep others from it.

    The job that had it before may still live where the search that started it was killed; the one that waits finds the
    trial over, or goes on from the checkpoint of one that died.
    """
    locks = run_dir.parent / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    with hold_lock(locks / f"{run_dir.name}.lock", wait_s=math.inf, what=f"the trial in {run_dir}"):
        yield


def _run(trial: Trial, run_dir: Path, run: Callable[[], int]) -> int:
    try:
        status = run()
    except Exception as error:
        file = record_failure(run_dir, error)
        trial.finish(FAILED, run_dir, error=last_line(error), log_file=file)
        if isinstance(error, UserError):
            return EXIT_USER_ERROR
        raise
    if status in STOPPED:
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
