"""Hand jobs to a queue, or find those that it has already, and follow them to their end."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.queue_launcher._job import SubmittedJob, composed
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from nlu.config.choices import find_plugins
from nlu.config.entry.grid import RECORD, ElsewhereReturn, JobLost, current, job_name
from nlu.config.errors import UserError, is_temporary
from nlu.config.redaction import command_text
from nlu.config.resolving import resolve, without_hydra
from nlu.config.sentences import counted
from nlu.jobs.following import Follower, JobEnd, Listed, answered, latest, left_sentence, listed, queued, recover
from nlu.jobs.full_queue import in_turn, pause
from nlu.jobs.local import this_machine
from nlu.jobs.queue import (
    Job,
    JobRefused,
    JobState,
    Look,
    QueueContext,
    QueuedJob,
    Ticket,
    look_at,
    open_queue,
    require_valid,
)
from nlu.jobs.submissions import Submissions, Submitted, new_tokens, without_resume
from nlu.reports.job_row import progress_of
from nlu.storage.refusals import Pauses

AGAIN_S, AGAIN_MAX = Pauses(1.0, 60.0), 7
"""the pauses after which a queue that took no job is asked again, and how often; trials wait without end if the failure
is temporary"""
CUT_SHORT = ("cancelled", "lost", "stopped")
"""the ends after which a command with resume= submits a job again at once"""

LEAST = {"gpus": 0, "max_num_timeout": 0} | dict.fromkeys(
    ("timeout_min", "nodes", "tasks_per_node", "cpus", "signal_delay_s", "array_parallelism"), 1
)
"""the least numbers of keys of hydra.launcher, which may also be null"""


class Launch:
    """The jobs that a launcher was given, from their submission to their end; see `QueueLauncher.launch`."""

    def __init__(
        self,
        name: str,
        params: dict[str, Any],
        job_overrides: Sequence[Sequence[str]],
        first: int,
        config: DictConfig,
        context: HydraContext,
        task: TaskFunction,
    ):
        # The program of another package may have found this plugin in a way that its jobs do not have.
        find_plugins()
        self.name, self.params, self.config, self.context = name, params, config, context
        grid = current()
        self.swept = grid.swept if grid is not None else []
        self.is_single = grid is not None and grid.is_single
        self.folder = Path(os.path.abspath(str(config.hydra.sweep.dir)))
        if "submitit_folder" in params:
            # Hydra resolved params in a copy, in which a folder named by the time has another name.
            own = str(config.hydra.launcher.submitit_folder) if self.is_single else params["submitit_folder"]
            # A later command may look after the jobs from another folder.
            self.params = {**params, "submitit_folder": os.path.abspath(os.path.expanduser(own))}
        self.is_trial = any(override.startswith("trial=") for one in job_overrides for override in one)
        self.jobs = [
            Job(number, self._folder_of(number, one), tuple(one), token, this_machine())
            for number, (one, token) in enumerate(
                zip(job_overrides, new_tokens(len(job_overrides)), strict=True), start=first
            )
        ]
        # Another program returns a value, but its trials a status, by nlu.search.channel.
        self.is_of_others = grid is None and not self.is_trial
        work = SubmittedJob(config, context, task, is_single=self.is_single, returns_status=not self.is_of_others)
        module = f"nlu.{config.hydra.job.config_name}"
        dirs = tuple(source.path for source in config.hydra.runtime.config_sources if source.provider == "command-line")
        self.queue = open_queue(name, QueueContext(self.params, self.folder, module, work, self._composed, dirs))
        self.submissions = Submissions(self.folder)
        self.command = command_text(work.command)

    def _composed(self, job: Job) -> dict[str, Any]:
        from nlu.config.entry.hydra_keys import current_config

        own = composed(self.config, self.context, job.number, job.overrides, is_single=self.is_single)
        with current_config(own):
            return resolve(without_hydra(own))[0]

    def _folder_of(self, number: int, overrides: Sequence[str]) -> str:
        """Return the folder of a job, without composing the job if the folder has only a number: that saves 0.1 s."""
        sweep = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)
        assert isinstance(sweep, dict)
        if sweep["subdir"] == "${hydra:job.num}" and not self.is_single:
            return str(self.folder / str(number))
        from nlu.config.entry.hydra_keys import current_config

        own = composed(self.config, self.context, number, overrides, is_single=self.is_single)
        with current_config(own):
            folder = own.hydra.run.dir if self.is_single else os.path.join(own.hydra.sweep.dir, own.hydra.sweep.subdir)
            return os.path.abspath(str(folder))

    def run(self) -> list[JobReturn]:
        """Run the jobs; see `QueueLauncher.launch`."""
        if self.is_trial:
            # The sweeper has already asked what became of jobs of an earlier search.
            jobs = self._submit(self.jobs)
        else:
            # Two commands in one folder must not both submit the jobs that neither of them finds.
            with self.submissions.held():
                jobs = self._attach_or_submit()
        self._note_handed_over()
        if not self.params.get("wait", True) and (count := self._count_open(jobs)):
            print(f"nlu: {left_sentence(count, self.folder)}", file=sys.stderr)
            return []
        return self._follow(jobs)

    def follow_again(self, before: Submitted) -> list[JobReturn]:
        """Follow a job of an earlier command to its end; returns what it returned."""
        return self._follow(queued([(self.folder, before)]))

    def _follow(self, jobs: Sequence[QueuedJob]) -> list[JobReturn]:
        names = {job.ticket.job.token: self._name(job.ticket.job) for job in jobs}
        found = Follower(jobs, names, self.folder, progress_of).run(self._note_end)
        return [self._returned(job.ticket, found[job.ticket.job.token]) for job in jobs]

    def _count_open(self, jobs: Sequence[QueuedJob]) -> int:
        """Return how many of the jobs have not ended, as far as is known; those of this command count."""
        looks: Mapping[str, Look] = {}
        with contextlib.suppress(OSError):
            looks = look_at(job for job in jobs if job.queue is not self.queue)
        return len(jobs) - sum(look.state.is_final for look in looks.values())

    def _name(self, job: Job) -> str:
        return "run" if self.is_single else job_name(job.number, job.overrides, self.swept)

    def _note_end(self, ticket: Ticket, ended: JobEnd) -> None:
        self.submissions.ended(ticket.job.token, ended.word)

    def _attach_or_submit(self) -> list[QueuedJob]:
        """Return each job with its queue, and submit those that no earlier command has submitted.

        A job whose end a user has seen is submitted again.
        """
        with answered():
            recover(self.submissions)
        before = {one.job.number: one for _, one in latest([self.submissions])}
        known = {number: one for number, one in before.items() if one.ended is None}
        former = [known[job.number] for job in self.jobs if job.number in known]
        # As it was written down, without secrets: the command that continues may differ only in resume=.
        wanted = {job.number: (self.name, without_resume(job.overrides)) for job in self.jobs}
        changed = [one for one in former if (one.queue, without_resume(one.job.overrides)) != wanted[one.job.number]]
        continues = self.config.get("resume", "never") != "never"
        with answered():
            rows = listed([(self.folder, one) for one in (former if continues else changed)])
        gone = {row.submitted.job.number for row in rows if self._is_submitted_again(row, changed)}
        found = {
            job.ticket.job.number: job
            for job in queued((self.folder, one) for one in former if one.job.number not in gone)
        }
        if found:
            count = counted(len(found), "job")
            print(f"nlu: {count} of an earlier command found again, not submitted again", file=sys.stderr)
        new = [job for job in self.jobs if job.number not in found]
        self._require_free(new)
        if new:
            # All jobs of a grid are checked before the first one is submitted, also if it comes in batches.
            grid = current()
            configs = dict(enumerate(grid.configs)) if grid is not None else {}
            own = {job.number for job in new}
            self.require(new, {key: one for key, one in configs.items() if key in own or key > self.jobs[-1].number})
            if self.config.get("mirror") is not None:
                # The record says that the job before is over, even if it could not release the mirror.
                new = [
                    replace(job, overrides=(*job.overrides, "take=true")) if job.number in before else job
                    for job in new
                ]
            found |= {job.ticket.job.number: job for job in self._submit(new)}
        return [found[job.number] for job in self.jobs]

    def _is_submitted_again(self, row: Listed, changed: Sequence[Submitted]) -> bool:
        """Whether a job is submitted again: it has ended and was another one, or was cut short, and is to continue.

        Raises UserError for another job that has not ended.
        """
        before, number = row.submitted, row.submitted.job.number
        which = f"({before.queue} {before.ticket.id if before.ticket else '-'})"
        if before in changed:
            if row.is_open:
                how = "with other values" if before.queue == self.name else "to another queue"
                raise UserError(
                    f"job {number} of {self.folder} was submitted {how} {which} and has not ended; python -m nlu.jobs "
                    f"{self.folder} --cancel {number} cancels it, or choose another folder"
                )
            return True
        if row.end is None or row.state not in CUT_SHORT or row.end.status == 0:
            return False
        self.submissions.ended(before.job.token, row.state)
        print(f"nlu: job {number} {which} was {row.state}; it continues", file=sys.stderr)
        return True

    def require(self, jobs: Sequence[Job], configs: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise UserError with everything that is wrong with these jobs, before they are handed over.

        `configs` holds known configurations by the numbers of jobs, also those of later batches of a grid.
        """
        numbers = {key: self.params[key] for key in LEAST if isinstance(self.params.get(key), int)}
        if wrong := [key for key, number in numbers.items() if number < LEAST[key]]:
            raise UserError(
                *(f"hydra.launcher.{key} is {numbers[key]} but must be >= {LEAST[key]}; correct it" for key in wrong)
            )
        own = {job.number: configs.get(job.number) or self._composed(job) for job in jobs}
        require_valid(self.queue, jobs, {**own, **configs})

    def _require_free(self, jobs: Sequence[Job]) -> None:
        """Raise UserError if the folder of a job already holds a run.

        The job itself would refuse that too, but perhaps only after hours in the queue.
        """
        if "resume" not in self.config or self.config.resume != "never":
            return
        if taken := [job for job in jobs if (Path(job.folder) / RECORD).is_file()]:
            numbers = "" if self.is_single else f"jobs {', '.join(str(job.number) for job in taken)}: "
            raise UserError(
                f"{numbers}{taken[0].folder} holds a run already; nothing was submitted; set resume=auto to continue "
                "what is there, or choose another folder"
            )

    @staticmethod
    def _note_handed_over() -> None:
        if (grid := current()) is not None:
            grid.is_handed_over = True

    def _submit(self, jobs: list[Job]) -> list[QueuedJob]:
        self._note_handed_over()
        # Before the queue is asked: after a kill in between, the same command looks for the jobs by their tokens.
        self.submissions.begin(jobs, self.name, self.params, self.command)
        tickets = self._tickets(jobs)
        self.submissions.submitted(tickets)
        return [QueuedJob(self.queue, ticket) for ticket in tickets]

    def _tickets(self, jobs: list[Job]) -> list[Ticket]:
        """Hand over jobs, repeatedly if the queue does not answer. Raises JobRefused."""
        found: dict[str, Ticket] = {}
        with contextlib.ExitStack() as waits:
            for number, wait_s in enumerate(AGAIN_S):
                left = [job for job in jobs if job.token not in found]
                try:
                    found |= {ticket.job.token: ticket for ticket in self.queue.submit(left)} if left else {}
                    break
                except JobRefused:
                    self.submissions.refused(left)
                    raise
                except OSError as error:
                    what = f"{self.queue.name} took no job: {error}"
                    if not self.is_trial or not is_temporary(error):
                        if number == AGAIN_MAX:
                            raise JobRefused(
                                f"{what}; the same command finds the jobs that it took, and submits the rest"
                            ) from error
                        print(f"nlu: {what}; it is asked again in {wait_s:.1f} s", file=sys.stderr)
                    elif number == 0:
                        waits.enter_context(in_turn(what))
                    if not pause(wait_s):
                        raise JobRefused(f"{what}; it was not asked again, since this command was stopped") from error
                # The queue may have taken the jobs before its answer was lost.
                with contextlib.suppress(OSError):
                    found |= {ticket.job.token: ticket for ticket in self.queue.find(left) if ticket is not None}
        return [found[job.token] for job in jobs]

    def _returned(self, ticket: Ticket, ended: JobEnd) -> JobReturn:
        job, found = ticket.job, ended.outcome if isinstance(ended.outcome, JobReturn) else JobReturn()
        own = ElsewhereReturn(**vars(found), number=job.number, folder=job.folder)
        own.overrides = filter_overrides(job.overrides)
        if self.is_of_others:
            # The commands of nlu read none of these, and to compose a thousand jobs takes minutes.
            self._configure(own, ticket)
        if found.status != JobStatus.UNKNOWN:
            return own
        if ended.status is not None:
            own.status = JobStatus.COMPLETED
            own.return_value = ended.status
            return own
        what = "was cancelled" if ended.look.state == JobState.CANCELLED else "ended without a result"
        why = f" ({ended.look.reason})" if ended.look.reason else ""
        log = f"; its log: {ticket.log}" if ticket.log else ""
        own.status = JobStatus.FAILED
        own.return_value = JobLost(f"{self.queue.name} job {ticket.id} {what}{why}{log}")
        return own

    def _configure(self, own: ElsewhereReturn, ticket: Ticket) -> None:
        """Fill in what Hydra's launchers return of the configuration of a job, without asking the job for it."""
        job = ticket.job
        config = composed(self.config, self.context, job.number, job.overrides, is_single=self.is_single)
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.job.id, config.hydra.runtime.output_dir = ticket.id.rpartition("/")[2], job.folder
        own.hydra_cfg, own.cfg, own.task_name = config, config.copy(), str(config.hydra.job.name)
        with read_write(own.cfg), open_dict(own.cfg):
            del own.cfg["hydra"]
        own.working_dir = job.folder if config.hydra.job.chdir else os.getcwd()
