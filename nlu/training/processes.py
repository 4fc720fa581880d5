"""Do work on one device in this process, or in one process for each of several devices.

A worker gets a function to call, not a command line. Workers die with their parent, and the first worker that fails
ends the others.
"""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal, NoReturn

import torch

from nlu.config import stopping
from nlu.config.console import traceback_of
from nlu.config.errors import EXIT_USER_ERROR, UserError
from nlu.config.schema import Run
from nlu.config.stopping import end_with
from nlu.config.targets import trust, trusted
from nlu.jobs.placement import Placement, placement
from nlu.runs import logs
from nlu.runs.folder import CONFIG
from nlu.runs.freeing import LOCK
from nlu.search.faults import ProcessLost, lost_a_peer
from nlu.storage.locks import is_locked
from nlu.training.experiment import how_to_continue, run_experiment

LOST_PEER_S = 30.0
"""how long a worker that lost another one waits, so that the error of that one is reported"""
INTERRUPT = signal.SIGRTMIN
"""the signal by which the command passes Ctrl-C on. Workers ignore SIGINT: the terminal sends it to them too, and they
would take the one that is passed on for a second Ctrl-C."""
_OF_WORKERS = {*stopping.SIGNALS, INTERRUPT}

Work = Callable[[], int]
"""what each process calls; returns the exit status. It can be pickled: an importable function with its arguments"""
Keep = Callable[[Exception | str | None], None]


def launch(config: Run, run_dir: Path, overrides: list[str]) -> int:
    """Train a run and return the exit status. Raises the UserError of a worker."""

    def keep(end: Exception | str | None) -> None:
        # The run may not have begun, and another command may hold its folder by now.
        if (run_dir / CONFIG).is_file() and not is_locked(run_dir / LOCK):
            level = logs.STOPPED if end is None else logging.ERROR
            logs.record_end(run_dir, end or how_to_continue(config, run_dir), level=level)

    return spread(partial(run_experiment, config, run_dir, overrides), config.trainer.devices, keep)


def count_of(devices: int | Literal["auto"], device: str) -> int:
    """Return the number of processes on this machine.

    `auto` is the number that the environment has started or asks for, such as torchrun's; otherwise that of the visible
    CUDA devices, or 1 on a CPU.
    """
    if devices != "auto":
        return devices
    place = placement()
    if place.kind == "torchrun" or place.local_world_size > 1 or place.asked is not None:
        return place.asked or place.local_world_size
    return max(1, torch.cuda.device_count()) if device != "cpu" else 1


def spread(work: Work, devices: int, keep: Keep = lambda end: None) -> int:
    """Do the work here, or in a process for each device, and return the exit status; raises as `launch` does.

    `keep` gets the reason of an early end that the process of rank 0 could not keep: the error of another one, or None
    if all were asked to stop.
    """
    # cuBLAS is deterministic only with a fixed workspace, and reads this variable once.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    workers = placement().workers(devices)
    return _work_together(work, workers, keep) if workers else work()


def in_processes(work: Work, count: int) -> int:
    """Do the work in `count` processes, also if that is 1, and return the exit status; raises as `launch` does."""
    return _work_together(work, [Placement("workers", local, count, local, count) for local in range(count)])


def _work_together(work: Work, workers: list[Placement], keep: Keep = lambda end: None) -> int:
    # The workers of one node meet at a file: another process may bind a port that was free before they do.
    with tempfile.TemporaryDirectory(prefix="nlu-meeting-", ignore_cleanup_errors=True) as folder:
        return _Workers(work, workers, f"file://{folder}/store").wait(keep)


class _Workers:
    def __init__(self, work: Work, workers: list[Placement], meeting: str):
        self._is_asked = self._is_killed = False
        self._is_ended = False
        """whether this process has ended the others after one of them"""
        self._is_known = False
        self._cause: Exception | str | None = None
        """why the first process ended that failed; None if that was rank 0, which has kept it, or is not known"""
        # A fork would copy threads' locks and CUDA's state, which do not work in a child.
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._reports: list[Connection] = []
        self._ranks: list[int] = []
        try:
            for worker in workers:
                self._ranks.append(worker.rank)
                environment = replace(worker, meeting=worker.meeting or meeting).environment()
                self._start(context, environment, work)
        except BaseException:
            # Workers that have begun would wait long for the others, and this process for them.
            self._kill()
            raise

    def _start(self, context: SpawnContext, environment: dict[str, str], work: Work) -> None:
        report, theirs = context.Pipe(duplex=False)
        arguments = (os.getpid(), sys.argv, trusted(), environment, theirs, work)
        process = context.Process(target=_work, args=arguments, daemon=False)
        # Before the start: a pending signal is delivered as soon as the mask is restored.
        self._processes.append(process)
        self._reports.append(report)
        # A worker handles signals once its imports are done. Until then they stay blocked, since Python's own handlers
        # would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_WORKERS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # Otherwise this process would keep the pipe open, and never read the end of a worker that dies.
        theirs.close()

    def wait(self, keep: Keep) -> int:
        with stopping.passed_on(self._pass_on):
            # A signal that came in this moment was passed on already.
            if (number := stopping.received()) is not None and not self._is_asked:
                self._pass_on(number)
            try:
                return self._wait()
            finally:
                if 0 in self._ranks:
                    self._keep_reason(keep)

    def _keep_reason(self, keep: Keep) -> None:
        first = self._processes[self._ranks.index(0)]
        if self._cause is not None and not stopping.received():
            keep(self._cause)
        elif stopping.received() and first.exitcode is not None and first.exitcode < 0:
            keep(None)

    def _wait(self) -> int:
        sentinels = {process.sentinel: number for number, process in enumerate(self._processes)}
        reports = {report: number for number, report in enumerate(self._reports)}
        statuses: dict[int, int | None] = {}
        reported: dict[int, Exception | None] = {}
        failed: list[int] = []
        while sentinels or reports:
            # Reports are read while workers run: a long one fills its pipe, and its worker waits until it is read.
            for ready in wait([*sentinels, *reports]):
                if isinstance(ready, Connection):
                    if (report := _received(ready)) is _SAVED:
                        stopping.tell_saved()
                        continue
                    number = reports.pop(ready)
                    self._note_cause(number, report.cause if isinstance(report, _Failure) else report)
                    if isinstance(report, _Failure):
                        self._print(report, number, is_first=not failed)
                        failed.append(number)
                    reported[number] = report.error if isinstance(report, _Failure) else report
                    continue
                number = sentinels.pop(ready)  # type: ignore[arg-type]  # multiprocessing types sentinels widely
                # The pipe of a sentinel closes a moment before the exit status is available.
                self._processes[number].join()
                status = statuses[number] = self._processes[number].exitcode
                # The others would wait for it in their next collective.
                if status not in (0, *stopping.STOPPED):
                    if not (self._is_ended or stopping.received()) and status is not None and status < 0:
                        self._say_killed(number, -status)
                    self._is_ended = True
                    self._kill()
        if stopping.received() and (self._is_killed or any(one in stopping.STOPPED for one in statuses.values())):
            return stopping.exit_code()
        errors = [error for _, error in sorted(reported.items(), key=itemgetter(0)) if error is not None]
        if faults := [error for error in errors if not isinstance(error, UserError)]:
            raise faults[0]
        if errors:
            raise errors[0]
        return next((abs(status) for status in statuses.values() if status), 0)

    def _print(self, failure: "_Failure", number: int, *, is_first: bool) -> None:
        """Print the whole traceback of the first worker that failed."""
        rank = self._ranks[number]
        if isinstance(failure.error, ProcessLost):
            # Where this one waited does not matter.
            return _say(f"rank {rank}: {failure.error}")
        if not is_first:
            return
        if len(self._ranks) > 1:
            _say(f"rank {rank} failed:")
        sys.stderr.write(failure.trace)
        sys.stderr.flush()

    def _note_cause(self, number: int, cause: Exception | str | None) -> None:
        # One that lost another process is not the cause.
        if cause is not None and not isinstance(cause, ProcessLost) and not self._is_known:
            self._is_known = True
            self._cause = cause if self._ranks[number] else None

    def _say_killed(self, number: int, by: int) -> None:
        """Print and keep that a worker was ended by a signal, which nobody else reports."""
        process = f"process {self._processes[number].pid}"
        who = f"rank {self._ranks[number]} ({process})" if len(self._ranks) > 1 else process
        why = ", as when the machine runs out of memory" if by == signal.SIGKILL else ""
        said = f"{who} was ended by {signal.Signals(by).name}{why}; a run continues with resume=auto"
        self._is_known, self._cause = True, said
        _say(f"error: {said}")

    def _pass_on(self, number: int) -> None:
        if self._is_asked and number == signal.SIGINT:
            self._is_killed = True
            self._kill()
            return
        self._is_asked = True
        for process in self._processes:
            # The interrupted code may just have reaped the process, and its number may be free again.
            with suppress(ProcessLookupError):
                if process.pid and process.is_alive():
                    os.kill(process.pid, INTERRUPT if number == signal.SIGINT else number)

    def _kill(self) -> None:
        for process in self._processes:
            if process.pid is not None:
                process.kill()


class _Report(Enum):
    SAVED = "saved"


_SAVED: Final = _Report.SAVED
"""the report of a worker that was asked to stop, before it ends"""


@dataclass(frozen=True)
class _Failure:
    """The report of a worker that ended with an error that is not the user's."""

    trace: str
    error: Exception | None
    """what the command needs to know of it, to tell a full disk or a lost process from a bug"""

    @property
    def cause(self) -> Exception | str:
        return self.error if isinstance(self.error, ProcessLost) else self.trace


def _say(line: str) -> None:
    print(f"nlu: {line}", file=sys.stderr, flush=True)


def _received(report: Connection) -> "_Report | _Failure | Exception | None":
    """Return what a worker reported: `_SAVED`, the error with which it ended, or None if it ended without a report."""
    try:
        return report.recv()
    except EOFError:
        return None


def _work(
    parent: int, argv: list[str], trusts: list[str], environment: dict[str, str], report: Connection, work: Work
) -> None:
    """Be a worker; runs in a new process."""
    # First, so that a parent that is killed from now on leaves no worker behind.
    end_with(parent, signal.SIGKILL)
    # Slurm sends it to all processes of a job before its end. The command decides what to do, and passes that on.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.environ.update(environment)
    sys.argv = argv
    trust({"trusted_packages": trusts})
    try:
        with stopping.listening(), stopping.told_when_saved(partial(report.send, _SAVED)):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(INTERRUPT, lambda *_: stopping.receive(signal.SIGINT))
            _report_errors(report, work)
    except Exception as error:
        _fail(report, error)


def _report_errors(report: Connection, work: Work) -> None:
    try:
        # Only now: a signal that came before is delivered here, within the block that turns it into a status.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_WORKERS)
        _leave(work())
    except KeyboardInterrupt as error:
        _leave(stopping.exit_code(error))
    except UserError as error:
        report.send(error)
        _leave(EXIT_USER_ERROR)
    except OSError as error:
        # A copy, since the error itself may hold what cannot be sent.
        _fail(report, error, OSError(error.errno, error.strerror, error.filename))
    except RuntimeError as error:
        if not lost_a_peer(error):
            raise
        # If a worker of this machine has failed, this one is ended meanwhile.
        time.sleep(LOST_PEER_S)
        _fail(report, error, ProcessLost(str(error)))


def _fail(report: Connection, error: Exception, told: Exception | None = None) -> NoReturn:
    """Report an error and end this process; `told` is what the command needs to know of it."""
    # As text without secrets, which an error may hold.
    report.send(_Failure(traceback_of(error), told))
    _leave(1)


def _leave(status: int) -> NoReturn:
    """End this process at once. In an orderly exit torch's communication threads sometimes abort the process."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
