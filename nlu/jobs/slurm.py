"""Slurm as a queue: submitit hands over the jobs, a grid as one array.

The state of a job comes from squeue, which still knows jobs that ended some minutes ago, then from sacct if there is
accounting. What a job returned lies in its folder. If Slurm says that a job waits or runs, it does, even if it has
returned before: it was queued again and continues. While Slurm does not answer at all, the heartbeat beside the log of
each job shows which jobs live.

The id of a job is Slurm's: `57`, or `57_3` in an array. Its files lie in the folder of its submission, named by the
token of its first job, so that a cluster that counts from 1 again does not take an old result for a new one. The folder
exists before the job does: Slurm ends a job at once if it cannot open its log.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.utils import JobStatus

from nlu.config.errors import UserError
from nlu.config.submitted import refusal_of
from nlu.jobs.queue import Job, JobRefused, JobState, Look, QueueAway, QueueContext, QueueFull, Ticket
from nlu.jobs.slurm_folders import TOKENS, SubmissionFolders
from nlu.jobs.submitit_jobs import (
    SILENCE_S,
    LastBeats,
    WithHeartbeat,
    beat_file,
    detach_jobs,
    log_files,
    missed_file,
    read_outcome,
    result_file,
    tail,
)
from nlu.storage.files import write_json
from nlu.storage.heartbeat import Marks

RUNNING = frozenset({"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED", "RESIZING"})
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
CANCELLED = frozenset({"CANCELLED", "REVOKED"})
"""the states of squeue(1); a job in any other state has ended"""
GRACE_S = 30.0
"""how long a shared file system may take to show the result of a job that has ended"""
ANSWER_S = 60.0
LAST_TASK_S = 600
"""seconds that the other tasks of a job have to end after the first one: they may wait for a task that is gone.
The time is longer than the five minutes after which Slurm counts a node as down and queues its jobs again."""
ARRAY_MAX = 1001
"""Slurm's default of MaxArraySize"""
INIT_KEYS = ("slurm_max_num_timeout", "slurm_python")
SHARED = frozenset({
    "name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout",
})  # fmt: skip
"""keys that submitit knows for every executor; its other keys are called `slurm_...`"""
OURS = ("submitit_folder", "wait", "trials_per_job", "modules", "container", "container_mounts", "srun_args", "setup")
"""keys of hydra.launcher that become other keys, or that submitit does not know"""
NAMES = {"gpus": "gpus_per_node", "cpus": "cpus_per_task", "memory_gb": "mem_gb"}
"""submitit's names of our keys"""
LOAD_MODULES = "type module >/dev/null 2>&1 || . /etc/profile"
"""The shell of a job may lack the command, since only login shells read /etc/profile by themselves."""
_AWAY = re.compile(
    r"[Uu]nable to contact|[Ss]ocket timed out|[Cc]onnect(ion)? failure|Connection (refused|reset|timed out)|"
    r"Zero Bytes|in standby|not connected|[Mm]essage (receive|send) failure|Protocol authentication error"
)
"""what sbatch says while the controller starts, is replaced or has too much to do"""
_FULL = re.compile(
    r"(QOS|Assoc)(Max|Grp)Submit\w*|[Rr]esource temporarily unavailable|[Ss]lurm temporarily unable[^\n]*"
)
"""sbatch's message for a limit that ends by itself; its last line only names the policy"""
_POLICY, _REASON = "violates accounting/QOS policy", re.compile(r"\b(QOS|Assoc)[A-Z]\w+")
"""that last line, and the name of a limit"""
_NO_CLUSTER = "Could not establish a configuration source"
SAYS = "sbatch: error: "
_UNKNOWN = "Invalid job id"


class SlurmQueue:
    """A `nlu.jobs.queue.Queue` of the cluster to which the commands on the PATH belong."""

    name = "slurm"
    poll_s = 2.0
    slowest_poll_s = 30.0

    def __init__(self, context: QueueContext):
        self._settings, self._work = dict(context.settings), context.work
        folder = self._settings.get("submitit_folder") or f"{context.folder}/.submitit/%j"
        self._base = Path(os.path.abspath(Path(str(folder).replace("%j", "")).expanduser()))
        self._folders = SubmissionFolders.below(self._base)
        self._missed = Marks()
        self._beats = LastBeats()

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Hand over the jobs, more than one as arrays; see `nlu.jobs.queue.Queue`."""
        tickets: list[Ticket] = []
        try:
            largest = _largest_array() if len(jobs) > 1 else 1
            for start in range(0, len(jobs), largest):
                tickets += self._submit(jobs[start : start + largest])
        except JobRefused as refusal:
            ids = [ticket.id for ticket in tickets]
            try:
                self.cancel(ids)
            except OSError as error:
                raise JobRefused(
                    *refusal.problems,
                    f"jobs {', '.join(ids)} were taken before, and could not be cancelled ({error}); scancel ends them",
                ) from refusal
            raise
        return tickets

    def _submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        assert self._work is not None, "this queue was opened to look after jobs"
        executor, work = self._executor(jobs[0].token), WithHeartbeat(self._work)
        write_json(self._base / jobs[0].token / TOKENS, {"tokens": [job.token for job in jobs]})
        detach_jobs(_print)
        try:
            with executor.batch():
                submitted = [executor.submit(work, job) for job in jobs]
        except Exception as error:
            if (said := refusal_of(error)) is None:
                raise
            if _AWAY.search(said):
                raise QueueAway(said.removeprefix(SAYS)) from error
            if limit := self._limit(str(getattr(error.__cause__, "stderr", ""))):
                # The limit ends with other jobs of this user; jobs that were taken before it stay.
                raise QueueFull(f"Slurm takes no more jobs now: {limit}") from error
            self._take_back(jobs[0].token)
            if _NO_CLUSTER in said:
                raise JobRefused(
                    "Slurm's commands are here, but this machine belongs to no cluster: they find no slurm.conf; "
                    "submit where sinfo answers, let SLURM_CONF name the file, or choose another hydra/launcher"
                ) from error
            raise JobRefused(
                f"Slurm refused the jobs: {said.removeprefix(SAYS)}; correct what hydra.launcher sets"
            ) from error
        self._folders.submitted(self._base / jobs[0].token, [str(one.job_id) for one in submitted])
        return [self._ticket(job, str(one.job_id)) for job, one in zip(jobs, submitted, strict=True)]

    def _limit(self, said: str) -> str | None:
        """Return the limit, in the words of sbatch, that refused a job for now; None if it was refused for good."""
        if found := _FULL.search(said):
            return found[0]
        # Some clusters only name the policy. It has taken such jobs before, so their number is too large.
        is_of_number = _POLICY in said and _REASON.search(said) is None and self._folders.ids()
        return f"the job {_POLICY}" if is_of_number else None

    def _take_back(self, token: str) -> None:
        """Remove the files of jobs that were refused."""
        shutil.rmtree(self._base / token, ignore_errors=True)
        # Other submissions may have jobs below the same folder.
        with suppress(OSError):
            self._base.rmdir()

    def _executor(self, token: str) -> Any:
        from submitit import AutoExecutor

        known = {NAMES.get(key, key): value for key, value in self._settings.items() if key not in OURS}
        additional = known.get("additional_parameters") or {}
        # A job on a node that fails is queued again and continues from its state, unless the user forbids it.
        if not {"requeue", "no-requeue", "no_requeue"} & set(additional):
            additional = {**additional, "requeue": True}
        known |= {"additional_parameters": additional, "setup": self._setup(), "srun_args": self._srun_arguments()}
        given = {key if key in SHARED else f"slurm_{key}": value for key, value in known.items() if value is not None}
        init = {key: given.pop(key) for key in INIT_KEYS if key in given}
        try:
            executor = AutoExecutor(folder=self._base / token, cluster="slurm", **init)
            executor.update_parameters(**given)
        except RuntimeError as error:
            raise JobRefused(
                f"Slurm is not installed here: {error}; run this where srun and sbatch are on the PATH, or choose "
                "another hydra/launcher"
            ) from error
        except (TypeError, ValueError, NameError) as error:
            # The lines after the first one list the valid parameters.
            said = " ".join(str(error).split())
            raise JobRefused(f"submitit takes no such job: {said}; correct what hydra.launcher sets") from error
        return executor

    def _setup(self) -> list[str]:
        modules = self._settings.get("modules") or []
        loaded = [LOAD_MODULES, *(f"module load {module} || exit 1" for module in modules)] if modules else []
        return [*loaded, *(self._settings.get("setup") or [])]

    def _srun_arguments(self) -> list[str]:
        options = {"container": "--container-image", "container_mounts": "--container-mounts"}
        own = [f"{option}={self._settings[key]}" for key, option in options.items() if self._settings.get(key)]
        given = self._settings.get("srun_args") or []
        if not any(argument.startswith(("--wait", "-W")) for argument in given):
            own.append(f"--wait={LAST_TASK_S}")
        return [*own, *given]

    def _ticket(self, job: Job, id: str) -> Ticket:
        return Ticket(job, id, str(self._log_files(id)[0]))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each job that was handed over; see `nlu.jobs.queue.Finding`.

        A job without its work does not count: the command was killed before submitit had written the file. Such a job
        finds nothing to do, and fails after a minute.
        """
        ids = self._folders.ids()
        return [self._ticket(job, ids[job.token]) if job.token in ids else None for job in jobs]

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """See `nlu.jobs.queue.Queue`. While Slurm does not answer, the heartbeats of the jobs do."""
        try:
            known = _squeue(ids)
        except OSError as error:
            return {id: self._look_without_slurm(id, str(error)) for id in ids}
        if unknown := [id for id in ids if id not in known]:
            # The accounting is asked last, since it is a database that lags behind and may be absent.
            known |= _sacct(unknown)
        return {id: self._look(id, *known.get(id, ("", None, "Slurm does not know it any more"))) for id in ids}

    def _look(self, id: str, state: str, node: str | None, reason: str | None) -> Look:
        if state in WAITING or state in RUNNING:
            self._missed.end(missed_file(self._folder(id), id))
            return Look(JobState.WAITING, None, reason) if state in WAITING else Look(JobState.RUNNING, node)
        result = self._result(id)
        # A job that was cancelled after its result was written has ended well.
        if state in CANCELLED and result is not JobState.DONE:
            return Look(JobState.CANCELLED, node, reason)
        if result is not None:
            return Look(result, node)
        if state in ("", "COMPLETED") and self._missed.still_s(missed_file(self._folder(id), id)) < GRACE_S:
            return Look(JobState.RUNNING, node, "its result is awaited")
        why = {"": reason, "COMPLETED": "it ended without a result"}.get(state, state)
        return Look(JobState.LOST, node, why)

    def _look_without_slurm(self, id: str, error: str) -> Look:
        result, beat = self._result(id), self._beats.last(beat_file(self._folder(id), id))
        if result is not None:
            return Look(result)
        if beat is None:
            return Look(JobState.WAITING, None, error)
        node, silence_s = beat
        if silence_s > SILENCE_S:
            return Look(JobState.LOST, node, f"no sign of life for {silence_s:.0f} s, and {error}")
        return Look(JobState.RUNNING, node)

    def _result(self, id: str) -> JobState | None:
        if (outcome := self.outcome(id)) is None:
            return None
        return (
            JobState.DONE if getattr(outcome, "status", JobStatus.COMPLETED) == JobStatus.COMPLETED else JobState.FAILED
        )

    def cancel(self, ids: Sequence[str]) -> None:
        """Have the jobs save their state and end. Slurm leaves them KillWait seconds for that."""
        # A command line has a maximal length.
        for start in range(0, len(ids), 100):
            _ask(["scancel", *ids[start : start + 100]])

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        return tail(self._log_files(id), lines)

    def outcome(self, id: str) -> Any:
        return read_outcome(result_file(self._folder(id), id))

    status = outcome

    def _log_files(self, id: str) -> list[Path]:
        error_file, output_file = log_files(self._folder(id), id)
        return [output_file] if self._settings.get("stderr_to_stdout") else [error_file, output_file]

    def _folder(self, id: str) -> Path:
        if not re.fullmatch(r"\d+(_\d+)?", id):
            raise UserError(f"{id} is not a job of Slurm; its ids are like 57 or 57_3")
        return self._folders.of(id) or self._base


def _print(text: str, **options: Any) -> None:
    """Print what sbatch says, unless it may be about something temporary: then it is asked again and again."""
    if not (_FULL.search(text) or _AWAY.search(text) or (_POLICY in text and _REASON.search(text) is None)):
        print(text, **options)


def _largest_array() -> int:
    """Return the largest number of jobs in an array."""
    try:
        found = re.search(r"MaxArraySize\s*=\s*(\d+)", _ask(["scontrol", "show", "config"]))
    except OSError:
        # sbatch will fail for the same reason, with a better message.
        return ARRAY_MAX
    return max(1, int(found[1]) if found else ARRAY_MAX)


def _squeue(ids: Sequence[str]) -> dict[str, tuple[str, str | None, str | None]]:
    """Return the state, the nodes and the reason of each job that Slurm's controller knows."""
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%N|%r", f"--jobs={_main_ids(ids)}"]
    try:
        answer = _ask(command)
    except OSError as error:
        # The answer for a single job that ended long ago; among others squeue leaves such a job out.
        if _UNKNOWN not in str(error):
            raise
        return {}
    return {
        id: (state, node or None, None if reason == "None" else reason)
        for id, state, node, reason in (line.strip().split("|", 3) for line in answer.splitlines())
    }


def _sacct(ids: Sequence[str]) -> dict[str, tuple[str, str | None, str | None]]:
    """Return the same for jobs in the accounting; empty without accounting or an answer of it."""
    command = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State,NodeList,ExitCode"]
    try:
        answer = _ask([*command, f"--jobs={_main_ids(ids)}"])
    except OSError:
        return {}
    found: dict[str, tuple[str, str | None, str | None]] = {}
    for line in answer.splitlines():
        id, state, node, exit_code = line.split("|")
        # The state of a cancelled job has more words: "CANCELLED by 1000".
        found[id] = (state.partition(" ")[0], None if node == "None assigned" else node, f"{state}, exit {exit_code}")
    return found


def _main_ids(ids: Sequence[str]) -> str:
    return ",".join(sorted({id.partition("_")[0] for id in ids}))


def _ask(command: list[str]) -> str:
    """Return the output of a command of Slurm. Raises OSError if it cannot answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} does not answer after {ANSWER_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{command[0]} ended with status {done.returncode}"]
        raise OSError(lines[-1])
    return done.stdout
