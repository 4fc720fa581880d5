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
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NoReturn

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
        self._causes: list[tuple[Exception | str, bool]] = []
        """why workers failed by themselves, the first one first, and whether the process of rank 0 has kept that"""
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
        status = self._processes[self._ranks.index(0)].exitcode
        if stopping.received():
            if status is not None and status < 0:
                keep(None)
        elif self._causes and not self._causes[0][1]:
            keep(self._causes[0][0])

    def _wait(self) -> int:
        waiting: dict[Any, int] = {report: number for number, report in enumerate(self._reports)}
        waiting |= {process.sentinel: number for number, process in enumerate(self._processes)}
        statuses: list[int] = []
        errors: list[Exception] = []
        while waiting:
            # Reports are read while workers run: a long one fills its pipe, and its worker waits until it is read.
            for ready in wait(list(waiting)):
                if not isinstance(ready, Connection):
                    self._end(waiting.pop(ready), statuses)
                elif (report := _received(ready)) == SAVED:
                    stopping.tell_saved()
                else:
                    number = waiting.pop(ready)
                    if isinstance(report, _Failure):
                        self._print(report, self._ranks[number])
                        report = report.error
                    elif report is not None:
                        self._causes.append((report, self._ranks[number] == 0))
                    errors += [] if report is None else [report]
        if stopping.received() and (self._is_killed or any(one in stopping.STOPPED for one in statuses)):
            return stopping.exit_code()
        if errors:
            # A full disk or a lost process before what another one says of the configuration.
            raise min(errors, key=lambda error: isinstance(error, UserError))
        return next((abs(status) for status in statuses if status), 0)

    def _end(self, number: int, statuses: list[int]) -> None:
        """Add the status of a worker that has ended; if it failed, the others would wait for it, and are ended."""
        process, rank = self._processes[number], self._ranks[number]
        # The pipe of a sentinel closes a moment before the exit status is available.
        process.join()
        status = process.exitcode or 0
        if status not in (0, *stopping.STOPPED):
            is_first = not any(one not in (0, *stopping.STOPPED) for one in statuses)
            if status < 0 and is_first and not stopping.received():
                who = f"rank {rank} (process {process.pid})" if len(self._ranks) > 1 else f"process {process.pid}"
                why = ", as when the machine runs out of memory" if status == -signal.SIGKILL else ""
                said = f"{who} was ended by {signal.Signals(-status).name}{why}; a run continues with resume=auto"
                self._causes.append((said, False))
                _say(f"error: {said}")
            self._kill()
        statuses.append(status)

    def _print(self, failure: "_Failure", rank: int) -> None:
        """Print the traceback of the first worker that failed, or that one has lost another."""
        if isinstance(failure.error, ProcessLost):
            # Where this one waited does not matter.
            return _say(f"rank {rank}: {failure.error}")
        if not self._causes:
            if len(self._ranks) > 1:
                _say(f"rank {rank} failed:")
            sys.stderr.write(failure.trace)
            sys.stderr.flush()
        self._causes.append((failure.trace, rank == 0))

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


SAVED = "saved"
"""the report of a worker that was asked to stop, before it ends"""


@dataclass(frozen=True)
class _Failure:
    """The report of a worker that ended with an error that is not the user's."""

    trace: str
    error: Exception | None
    """what the command needs to know of it, to tell a full disk or a lost process from a bug"""


def _say(line: str) -> None:
    print(f"nlu: {line}", file=sys.stderr, flush=True)


def _received(report: Connection) -> Any:
    """Return what a worker reported: SAVED, the error with which it ended, or None if it ended without a report."""
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
    with stopping.listening(), stopping.told_when_saved(partial(report.send, SAVED)):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(INTERRUPT, lambda *_: stopping.receive(signal.SIGINT))
        try:
            # Only now: a signal that came before is delivered here, where it becomes a status.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_WORKERS)
            status = work()
        except KeyboardInterrupt as error:
            status = stopping.exit_code(error)
        except UserError as error:
            report.send(error)
            status = EXIT_USER_ERROR
        except Exception as error:
            told: Exception | None = None
            if isinstance(error, OSError):
                # A copy, since the error itself may hold what cannot be sent.
                told = OSError(error.errno, error.strerror, error.filename)
            elif lost_a_peer(error):
                # If a worker of this machine has failed, this one is ended meanwhile.
                time.sleep(LOST_PEER_S)
                told = ProcessLost(str(error))
            # As text without secrets, which an error may hold.
            report.send(_Failure(traceback_of(error), told))
            status = 1
        _leave(status)


def _leave(status: int) -> NoReturn:
    """End this process at once. In an orderly exit torch's communication threads sometimes abort the process."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
