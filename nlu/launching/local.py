"""Start work on one device here, or one process for each of several: a run, or what uses one.

Workers get what is to be done, never the command line; they die with their parent, and the first of them that fails
takes the others along.
"""

import ctypes
import glob
import logging
import math
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

from nlu.config import stopping
from nlu.config.entry.tracebacks import print_traceback
from nlu.config.errors import EXIT_USER_ERROR, UserError
from nlu.config.placement import Placement, placement
from nlu.config.schema import Run
from nlu.storage.locks import Locked, NoLocks, hold_folder, hold_lock
from nlu.storage.processes import identity_of
from nlu.sweeps.faults import ProcessLost, lost_a_peer
from nlu.training.experiment import run_experiment

PR_SET_PDEATHSIG = 1
LOST_PEER_S = 30.0
"""how long a worker that lost another waits to be ended with the rest, so that the other's error is the one told"""
INTERRUPT = signal.SIGRTMIN
"""how workers hear of Ctrl-C, from their command only: a terminal sends that to them as well, and they would take the
one that is handed on for a second"""
_OF_WORKERS = {*stopping.SIGNALS, INTERRUPT}
STOP_S = 90.0
"""how long the other workers have to end once one of them has, where all were asked to stop"""
MEETINGS, MEETING_LOCK = "nlu-meeting", ".lock"
"""folders in the system's own for temporary files, each locked by the command whose processes meet there"""

Work = Callable[[], int]
"""what each process does, with the exit status; a function that other processes can import, with its arguments"""


def launch(config: Run, run_dir: Path, overrides: list[str]) -> int:
    """Run to the end and return the exit status. Raises the UserError of whichever worker had one."""
    return spread(partial(run_experiment, config, run_dir, overrides), config.trainer.devices)


def spread(work: Work, devices: int) -> int:
    """Do the work here, or in a process for each device, and return the exit status; raises as `launch` does."""
    # cuBLAS repeats its sums only with a fixed workspace, and reads this once.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    workers = placement().workers(devices)
    return _work_together(work, workers, None) if workers else work()


def in_processes(work: Work, count: int, limit_s: float | None = None) -> int:
    """Do the work in so many processes, one too, and return the exit status; raises as `launch` does.

    Raises TimeoutError, after ending them, where they have not ended by themselves after `limit_s` seconds.
    """
    workers = [Placement("workers", local, count, local, count) for local in range(count)]
    return _work_together(work, workers, limit_s)


def _work_together(work: Work, workers: list[Placement], limit_s: float | None) -> int:
    # Those of one node meet at a file, since a port that is free now may be another's by the time it is bound.
    with meeting_folder() as folder:
        return _Workers(work, workers, limit_s, f"file://{folder}/store").wait()


@contextmanager
def meeting_folder() -> Iterator[Path]:
    """Give a folder for the time of the block, and remove those that commands which were killed here have left."""
    # Hosts may share the folder above, where a lock may be seen by its own host alone.
    boot = identity_of(os.getpid()).get("machine", "").partition(" ")[0]
    own = f"{MEETINGS}-{socket.gethostname()}-{boot}-"
    for left in Path(tempfile.gettempdir()).glob(f"{glob.escape(own)}*"):
        with suppress(Locked, NoLocks, OSError), hold_lock(left / MEETING_LOCK, wait_s=0):
            shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=own))
    try:
        with hold_folder(folder, MEETING_LOCK, wait_s=math.inf, optional=True):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Workers:
    def __init__(self, work: Work, workers: list[Placement], limit_s: float | None, meeting: str):
        self._limit_s, self._deadline_s = limit_s, None if limit_s is None else time.monotonic() + limit_s
        self._is_asked = self._is_killed = False
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._reports: list[Connection] = []
        try:
            for worker in workers:
                environment = replace(worker, meeting=worker.meeting or meeting).environment()
                self._start(context, environment, work)
        except BaseException:
            # Those that began would wait for the others for long, and the end of this process for them.
            self._kill()
            raise

    def _start(self, context: Any, environment: dict[str, str], work: Work) -> None:
        report, theirs = context.Pipe(duplex=False)
        arguments = (os.getpid(), sys.argv, environment, theirs, work)
        process = context.Process(target=_work, args=arguments, daemon=False)
        # A signal that waits is told as soon as the mask is as before.
        self._processes.append(process)
        self._reports.append(report)
        # A worker listens once it has imported what it needs; until then its signals wait, and Python's own handlers
        # would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_WORKERS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def wait(self) -> int:
        with stopping.passed_on(self._pass_on):
            # One that came just now was passed on already.
            if (number := stopping.received()) is not None and not self._is_asked:
                self._pass_on(number)
            return self._wait()

    def _wait(self) -> int:
        sentinels = {process.sentinel: process for process in self._processes}
        reports = {report: rank for rank, report in enumerate(self._reports)}
        statuses, told_by = [], {}
        while sentinels or reports:
            # A long report fills its pipe, and its worker cannot end before it is read.
            left_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
            found = wait([*sentinels, *reports], left_s)
            if not found and stopping.received():
                # One has left, and another waits for it.
                self._kill()
                self._deadline_s = None
            elif not found:
                self._kill()
                raise TimeoutError(
                    f"{len(sentinels)} of {len(self._processes)} processes hang after {self._limit_s:g} s"
                )
            for ready in found:
                if isinstance(ready, Connection):
                    if (report := _received(ready)) is _SAVED:
                        stopping.tell_saved()
                    else:
                        told_by[reports.pop(ready)] = report
                    continue
                process = sentinels.pop(ready)  # type: ignore[arg-type]
                # The pipe of a sentinel closes a moment before the process can be asked for its status.
                process.join()
                status = process.exitcode
                statuses.append(status)
                if stopping.received() and status in stopping.STOPPED and self._deadline_s is None:
                    self._deadline_s = time.monotonic() + STOP_S
                if status not in (0, *stopping.STOPPED):
                    self._kill()
        if stopping.received() and (self._is_killed or any(status in stopping.STOPPED for status in statuses)):
            return stopping.exit_code()
        errors = [error for _, error in sorted(told_by.items(), key=itemgetter(0)) if error is not None]
        if others := [error for error in errors if not isinstance(error, UserError)]:
            raise others[0]
        told = [error for error in errors if isinstance(error, UserError)]
        if len(told) == 1 or len({type(error) for error in told}) > 1:
            # What a caller makes of an error may hang on its kind.
            raise told[0]
        if told:
            problems = dict.fromkeys(problem for error in told for problem in error.problems)
            raise type(told[0])(*problems, summary=told[0].summary, remedy=told[0].remedy)
        return next((abs(status) for status in statuses if status), 0)

    def _pass_on(self, number: int) -> None:
        if self._is_asked and number == signal.SIGINT:
            self._is_killed = True
            self._kill()
            return
        self._is_asked = True
        for process in self._processes:
            # The code that was interrupted may just have asked for its status, after which it is nobody's.
            with suppress(ProcessLookupError):
                if process.pid and process.is_alive():
                    os.kill(process.pid, INTERRUPT if number == signal.SIGINT else number)

    def _kill(self) -> None:
        for process in self._processes:
            if process.pid is not None:
                process.kill()


class _Report(Enum):
    SAVED = "saved"


_SAVED = _Report.SAVED
"""what a worker reports that was asked to stop, before it ends"""


def _received(report: Connection) -> Any:
    """Return what a worker reported, `_SAVED` or the error with which it ended; None where it ended without a word."""
    try:
        return report.recv()
    except EOFError:
        return None


def _work(parent: int, argv: list[str], environment: dict[str, str], report: Connection, work: Work) -> None:
    """One worker, in a process of its own."""
    _die_with(parent)
    # Slurm sends it to all processes of a job some time before its end; the first one says what is to be done.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.environ.update(environment)
    sys.argv = argv
    try:
        with stopping.listening(), stopping.told_when_saved(partial(report.send, _SAVED)):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(INTERRUPT, lambda *_: stopping.receive(signal.SIGINT))
            _tell_errors(report, work)
    except Exception as error:
        # multiprocessing would print it as it is.
        print_traceback(error)
        _leave(1)


def _tell_errors(report: Connection, work: Work) -> None:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_WORKERS)
        _leave(work())
    except KeyboardInterrupt as error:
        _leave(stopping.exit_code(error))
    except UserError as error:
        report.send(error)
        _leave(EXIT_USER_ERROR)
    except OSError as error:
        # A full disk is no mistake of the run; whoever started it must be able to tell.
        report.send(OSError(error.errno, error.strerror, error.filename))
        raise
    except RuntimeError as error:
        if lost_a_peer(error):
            time.sleep(LOST_PEER_S)
            # Still here, so it was none of this machine's.
            report.send(ProcessLost(str(error)))
        raise


def _leave(status: int) -> NoReturn:
    """End this process at once: the communication threads of torch now and then abort one that tears itself down."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, so that a killed run leaves no writer behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
