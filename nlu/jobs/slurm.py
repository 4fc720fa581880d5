"""Slurm as a queue: submitit hands over the jobs, a grid as one array.

The state of a job comes from squeue, which still knows jobs that ended some minutes ago, then from sacct if there is
accounting. What a job returned lies in its folder. If Slurm says that a job waits or runs, it does, even if it has
returned before: it was queued again and continues. While Slurm does not answer, nothing is known.

The id of a job is Slurm's: `57`, or `57_3` in an array. Its files lie beside its log, in a folder named by the token of
the first job of its submission, so that a cluster that counts from 1 again does not take an old result for a new one.
The folder exists before the job does: Slurm ends a job at once if it cannot open its log.
"""

import math
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor, SlurmJob
from submitit.core.utils import DelayedSubmission, FailedJobError
from submitit.slurm.slurm import SlurmInfoWatcher

from nlu.config.errors import UserError
from nlu.jobs.queue import Job, JobRefused, JobState, Look, Queue, QueueAway, QueueContext, QueueFull, Ticket
from nlu.jobs.submitit_jobs import (
    WORK,
    PlainWork,
    base_folder,
    environment_of_new_job,
    files_of,
    read_outcome,
    state_of,
    tail,
)
from nlu.storage.files import read_json, write_json

RUNNING = frozenset({"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED", "RESIZING"})
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
CANCELLED = frozenset({"CANCELLED", "REVOKED"})
"""the states of squeue(1); a job in any other state has ended"""
GRACE_S = 30.0
"""how long a shared file system may take to show the result of a job that has ended"""
SHORTEST_POLL_S, SLOWEST_POLL_S = 2, 30
ANSWER_S = 60.0
LAST_TASK_S = 600
"""seconds that the other tasks of a job have to end after the first one: they may wait for a task that is gone.
The time is longer than the five minutes after which Slurm counts a node as down and queues its jobs again."""
TOKENS = "tokens.json"
"""the file in the folder of a submission with the tokens of its jobs, in the order of the array"""
NAMES = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "exclude": "exclude",
    "nodes": "nodes", "gpus": "gpus_per_node", "cpus": "cpus_per_task", "timeout_min": "time", "name": "job_name",
    "tasks_per_node": "ntasks_per_node", "signal_delay_s": "signal_delay_s", "array_parallelism": "array_parallelism",
}  # fmt: skip
"""the keys of hydra.launcher that are parameters of submitit, with their names there"""
_AWAY = re.compile(
    r"[Uu]nable to contact|[Ss]ocket timed out|[Cc]onnect(ion)? failure|Connection (refused|reset|timed out)|"
    r"Zero Bytes|in standby|not connected|[Mm]essage (receive|send) failure|Protocol authentication error"
)
"""what sbatch says while the controller starts, is replaced or has too much to do"""
_FULL = re.compile(
    r"(QOS|Assoc)(Max|Grp)Submit\w*|[Rr]esource temporarily unavailable|[Ss]lurm temporarily unable[^\n]*"
)
"""what sbatch says at a limit that ends by itself"""
_UNKNOWN = "Invalid job id"
FORGOTTEN = {"State": "", "NodeList": "", "End": "", "Reason": "Slurm does not know it any more"}
Info = dict[str, str]
"""What Slurm says of a job. `End` are seconds since 1970 as text, or anything else while it has not ended."""


class SqueueWatcher(SlurmInfoWatcher):
    """Asks for all jobs of this process at once: at most every 2 seconds, and less often for older jobs.

    submitit's own watcher asks only sacct, which many clusters lack. Its private parts were read in 1.5.4.
    """

    def __init__(self) -> None:
        super().__init__(SLOWEST_POLL_S)
        self._asking = threading.Lock()
        self._error: OSError | None = None

    def register_job(self, job_id: str) -> None:
        if job_id not in self._registered:
            checked_s = self._last_status_check
            super().register_job(job_id)
            # Hundreds of trials begin one by one, and each would have Slurm asked for all of them.
            self._last_status_check = checked_s

    def infos(self, job_ids: Sequence[str]) -> dict[str, Info]:
        """Return what Slurm said of jobs. Raises QueueAway."""
        for job_id in job_ids:
            self.register_job(job_id)
        with self._asking:
            self.update_if_long_enough("standard")
            if self._error is None and not self._info_dict.keys() >= set(job_ids):
                # Other threads register their jobs meanwhile.
                time.sleep(max(0.0, self._last_status_check + SHORTEST_POLL_S - time.time()))
                self.update()
            if self._error is not None:
                raise QueueAway(str(self._error)) from self._error
            return {job_id: self._info_dict[job_id] for job_id in job_ids}

    def forget(self, job_ids: Iterable[str]) -> None:
        """Ask for these jobs no more: they have ended."""
        self._finished |= set(job_ids)

    def begun(self, job_ids: Iterable[str]) -> None:
        """Know nothing of these new jobs yet: a cluster that counts from 1 again gives them the ids of former ones."""
        self._finished -= set(job_ids)
        for job_id in job_ids:
            self._info_dict.pop(job_id, None)

    def hurry(self) -> None:
        """Ask at once, and often in the next seconds."""
        self._start_time, self._last_status_check = time.time(), -math.inf

    def update(self) -> None:
        """Ask squeue, then sacct for the jobs that squeue does not know."""
        ids = sorted(self._registered - self._finished)
        self._error, self._num_calls = None, self._num_calls + 1
        try:
            found = _squeue(ids) if ids else {}
            if unknown := [id for id in ids if id not in found]:
                # Last, since the accounting is a database that lags behind and may be absent.
                found |= _sacct(unknown)
            self._info_dict |= {id: found.get(id) or self._forgotten(id) for id in ids}
        except OSError as error:
            self._error = error
        # Also after a failure, so that a controller that does not answer is not asked more often.
        self._last_status_check = time.time()

    def _forgotten(self, job_id: str) -> Info:
        """Return what is known of a job that Slurm does not know: it has ended by now, if it was there before."""
        before = self._info_dict.get(job_id, FORGOTTEN)
        return {**FORGOTTEN, "End": str(int(time.time()))} if before["State"] else before


class QueuedSlurmJob(SlurmJob[Any]):
    """A job that any command can look at, given its folder and its id."""

    watcher = SqueueWatcher()


class ArrayExecutor(SlurmExecutor):
    """Hands over jobs from wherever this process runs, several as one array."""

    job_class = QueuedSlurmJob

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[Any]:
        if (count := len(delayed_submissions)) == 1:
            return super()._internal_process_submissions(delayed_submissions)
        # As submitit does, which uses an executor and jobs of its own classes for an array.
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [self.folder / f"{number}.pkl" for number in range(count)]
        for submission, file in zip(delayed_submissions, files, strict=True):
            submission.set_timeout(self.parameters.get("time", 5), self.max_num_timeout)
            submission.dump(file)
        self.parameters["map_count"] = count
        first = self._submit_command(self._submitit_command_str)
        # The array itself is no job.
        QueuedSlurmJob.watcher.forget([first.job_id])
        jobs = [QueuedSlurmJob(self.folder, f"{first.job_id}_{place}") for place in range(count)]
        for job, file in zip(jobs, files, strict=True):
            job.paths.move_temporary_file(file, "submitted_pickle")
        return jobs

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # Outside of the job of this process. sbatch says everything on its standard output: submitit prints the other.
        inherited = set(os.environ) - set(environment_of_new_job(os.environ))
        without = [text for name in sorted(inherited) for text in ("-u", name)]
        return ["env", *without, "sh", "-c", 'exec sbatch "$1" 2>&1', "sbatch", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        # The text may hold warnings too.
        said = string.decode() if isinstance(string, bytes) else string
        return SlurmExecutor._get_job_id_from_submission_command(said[max(0, said.find("Submitted batch job")) :])


class SlurmQueue(Queue):
    """The cluster to which the commands on the PATH belong."""

    name = "slurm"

    def __init__(self, context: QueueContext):
        self._settings, self._work = dict(context.settings), context.work
        self._base = base_folder(self._settings, context.folder)

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Hand over the jobs, several as one array; see `nlu.jobs.queue.Queue`."""
        assert self._work is not None, "this queue was opened to look after jobs"
        executor = self._executor(jobs[0].token)
        write_json(executor.folder / TOKENS, {"tokens": [job.token for job in jobs]})
        try:
            taken = executor.map_array(PlainWork(self._work), jobs)
        except FailedJobError as error:
            raise self._refusal(str(getattr(error.__cause__, "output", None) or error), executor.folder) from error
        QueuedSlurmJob.watcher.begun([one.job_id for one in taken])
        return [self._ticket(job, one.job_id, executor.folder) for job, one in zip(jobs, taken, strict=True)]

    def _refusal(self, said: str, folder: Path) -> OSError | JobRefused:
        """Return the error for what sbatch said when it took no job."""
        text = "; ".join(line.removeprefix("sbatch: error: ") for line in said.splitlines())
        if _AWAY.search(said):
            return QueueAway(text)
        if limit := _FULL.search(said):
            return QueueFull(f"Slurm takes no more jobs now: {limit[0]}")
        shutil.rmtree(folder, ignore_errors=True)
        # Other submissions may have jobs below the same folder.
        with suppress(OSError):
            self._base.rmdir()
        remedy = "correct what hydra.launcher sets; sinfo must answer here"
        if "array" in text:
            remedy = "divide the grid among several commands"
        return JobRefused(f"Slurm refused the jobs: {text}; {remedy}")

    def _executor(self, token: str) -> ArrayExecutor:
        settings = {key: value for key, value in self._settings.items() if value is not None}
        given = {name: settings[key] for key, name in NAMES.items() if key in settings}
        additional = settings.get("additional_parameters") or {}
        # A job on a node that fails is queued again and continues from its state, unless the user forbids it.
        if not {"requeue", "no-requeue", "no_requeue"} & set(additional):
            additional = {**additional, "requeue": True}
        if memory_gb := settings.get("memory_gb"):
            given["mem"] = f"{round(memory_gb * 1024)}MB"
        init = {key: settings[key] for key in ("max_num_timeout", "python") if key in settings}
        try:
            executor = ArrayExecutor(self._base / token, **init)
        except RuntimeError as error:
            raise JobRefused(
                f"Slurm is not installed here: {error}; run this where srun and sbatch are on the PATH, or choose "
                "another hydra/launcher"
            ) from error
        of_srun = settings.get("srun_args") or []
        if not any(argument.startswith(("--wait", "-W")) for argument in of_srun):
            of_srun = [f"--wait={LAST_TASK_S}", *of_srun]
        setup = settings.get("setup") or []
        executor.update_parameters(**given, additional_parameters=additional, setup=setup, srun_args=of_srun)
        return executor

    def _ticket(self, job: Job, id: str, folder: Path) -> Ticket:
        return Ticket(job, id, str(folder / f"{id}_0_log.err"))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each job that was handed over; see `nlu.jobs.queue.Queue`.

        A job without its work does not count: the command was killed before submitit had written the file. Such a job
        finds nothing to do, and fails after a minute.
        """
        places: dict[str, tuple[Path, str]] = {}
        for work in self._base.glob(f"*/*{WORK}"):
            id, tokens = work.name.removesuffix(WORK), (read_json(work.with_name(TOKENS)) or {}).get("tokens", [])
            for token in tokens[int(id.partition("_")[2] or 0) :][:1]:
                places[token] = work.parent, id
        found = [places.get(job.token) for job in jobs]
        return [self._ticket(job, at[1], at[0]) if at else None for job, at in zip(jobs, found, strict=True)]

    def look(self, tickets: Sequence[Ticket]) -> dict[str, Look]:
        """See `nlu.jobs.queue.Queue`."""
        watcher = QueuedSlurmJob.watcher
        infos = watcher.infos([_id(ticket) for ticket in tickets])
        looks = {ticket.id: self._look(ticket, infos[ticket.id]) for ticket in tickets}
        watcher.forget(id for id, look in looks.items() if look.state.is_final)
        return looks

    def _look(self, ticket: Ticket, info: Info) -> Look:
        state, node, reason = info["State"], info["NodeList"] or None, info["Reason"] or None
        if state in WAITING:
            return Look(JobState.WAITING, None, reason)
        if state in RUNNING:
            return Look(JobState.RUNNING, node)
        if (outcome := self.outcome(ticket)) is not None:
            # A job that was cancelled after its result was written has ended well.
            if (left := state_of(outcome)) is JobState.DONE or state not in CANCELLED:
                return Look(left, node)
        if state in CANCELLED:
            return Look(JobState.CANCELLED, node, reason)
        # If the clock of the cluster is wrong, this takes more or less time.
        if state in ("", "COMPLETED") and info["End"].isdigit() and time.time() - int(info["End"]) < GRACE_S:
            return Look(JobState.RUNNING, node, "its result is awaited")
        return Look(JobState.LOST, node, {"": reason, "COMPLETED": "it ended without a result"}.get(state, state))

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Have the jobs save their state and end. Slurm leaves them KillWait seconds for that."""
        # A command line has a maximal length.
        for start in range(0, len(tickets), 100):
            _ask(["scancel", *map(_id, tickets[start : start + 100])])
        # Those who follow the jobs hear of their end soon.
        QueuedSlurmJob.watcher.hurry()

    def log_tail(self, ticket: Ticket, lines: int = 1) -> list[str]:
        return tail([files_of(ticket).stderr, files_of(ticket).stdout], lines)

    def outcome(self, ticket: Ticket, *, fetches: bool = True) -> object:
        return read_outcome(files_of(ticket).result_pickle)


def _id(ticket: Ticket) -> str:
    if not re.fullmatch(r"\d+(_\d+)?", ticket.id):
        raise UserError(
            f"{ticket.id} is not a job of Slurm; its ids are like 57 or 57_3; if an earlier version ran the trial in a "
            "job with others (trials_per_job), end that by scancel, and begin the search in a new folder"
        )
    return ticket.id


def _squeue(ids: Sequence[str]) -> dict[str, Info]:
    """Return what Slurm's controller knows of these jobs."""
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%N|%e|%r"]
    try:
        answer = _ask([*command, f"--jobs={_main_ids(ids)}"])
    except OSError as error:
        # The answer for a single job that ended long ago; among others squeue leaves such a job out.
        if _UNKNOWN not in str(error):
            raise
        return {}
    rows = (line.strip().split("|", 4) for line in answer.splitlines())
    return {row[0]: _info(row) for row in rows}


def _sacct(ids: Sequence[str]) -> dict[str, Info]:
    """Return the same for jobs in the accounting; empty without accounting or an answer of it."""
    command = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State,NodeList,End,ExitCode"]
    try:
        answer = _ask([*command, f"--jobs={_main_ids(ids)}"])
    except OSError:
        return {}
    found = {}
    for line in answer.splitlines():
        id, state, node, ended, exit_code = line.split("|")
        # The state of a cancelled job has more words: "CANCELLED by 1000".
        found[id] = _info((id, state.partition(" ")[0], node, ended, f"{state}, exit {exit_code}"))
    return found


def _info(row: Sequence[str]) -> Info:
    """Return what a row says, in the words of submitit's own watcher."""
    unknown = ("None", "None assigned")
    _, *said = ("" if text in unknown else text for text in row)
    return dict(zip(FORGOTTEN, said, strict=True))


def _main_ids(ids: Iterable[str]) -> str:
    return ",".join(sorted({id.partition("_")[0] for id in ids}))


def _ask(command: list[str]) -> str:
    """Return the output of a command of Slurm, with times in seconds. Raises OSError if it cannot answer."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, env=environment)
    except FileNotFoundError:
        raise OSError(f"{command[0]} is not on the PATH here; run this where Slurm is installed") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} does not answer after {ANSWER_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{command[0]} ended with status {done.returncode}"]
        raise OSError(lines[-1])
    return done.stdout
