"""Hand jobs to a queue, or find those that it has already, and follow them to their end."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from nlu.config.entry.grid import RECORD, current, job_name
from nlu.config.errors import UserError, is_temporary
from nlu.config.plugins import find_plugins
from nlu.config.redaction import command_text
from nlu.config.resolving import resolve, without_hydra
from nlu.config.submitted import ElsewhereReturn, JobLost
from nlu.config.words import counted
from nlu.jobs.following import Detached, Follower, JobEnd, left_sentence
from nlu.jobs.listing import CombinedQueue, recover
from nlu.jobs.queue import (
    Finding,
    Job,
    JobRefused,
    JobState,
    Look,
    Queue,
    QueueContext,
    Ticket,
    open_queue,
    require_valid,
)
from nlu.jobs.submissions import Submissions, Submitted, add_to_history, kept_settings, new_tokens, without_resume
from nlu.jobs.waiting import announced, pause, when_there_is_room
from nlu.reports.progress import progress_of
from nlu.storage.temporary import Pauses

from ._job import SubmittedJob, composed

AGAIN_S, AGAIN_MAX = Pauses(1.0, 60.0), 7
"""the pauses after which a queue that did not answer a submission is asked again, and how often; trials wait without
end if the failure is temporary"""
CUT_SHORT = ("cancelled", "lost", "stopped")
"""the ends after which a command with resume= submits a job again at once"""


def _of_job(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings on which a job depends, without the one that only the waiting command needs."""
    return {key: value for key, value in settings.items() if key != "wait"}


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
        tokens = new_tokens(len(job_overrides))
        self.jobs = [
            Job(first + place, self._folder_of(first + place, one), tuple(one), tokens[place])
            for place, one in enumerate(job_overrides)
        ]
        # Another program returns a value, but its trials a status, by nlu.sweeps.channel.
        self.is_of_others = grid is None and not self.is_trial
        work = SubmittedJob(config, context, task, is_single=self.is_single, returns_status=not self.is_of_others)
        module = f"nlu.{config.hydra.job.config_name}"
        dirs = tuple(source.path for source in config.hydra.runtime.config_sources if source.provider == "command-line")
        self.queue: Queue = open_queue(name, QueueContext(self.params, self.folder, module, work, self._composed, dirs))
        self.queues: dict[str, Queue] = {}
        """the queue of each job that an earlier command submitted, by the id of the job"""
        self.former: dict[str, Queue] = {}
        self.looks: dict[str, Look] = {}
        """the states of jobs of earlier commands when this one began"""
        self.submissions = Submissions(self.folder)
        self.command = command_text(work.command)

    def _composed(self, job: Job) -> dict[str, Any]:
        from nlu.config.entry.guard import current_config

        own = composed(self.config, self.context, job.number, job.overrides, is_single=self.is_single)
        with current_config(own):
            return resolve(without_hydra(own))[0]

    def _folder_of(self, number: int, overrides: Sequence[str]) -> str:
        """Return the folder of a job, without composing the job if the folder has only a number: that saves 0.1 s."""
        sweep = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)
        assert isinstance(sweep, dict)
        if sweep["subdir"] == "${hydra:job.num}" and not self.is_single:
            return str(self.folder / str(number))
        from nlu.config.entry.guard import current_config

        own = composed(self.config, self.context, number, overrides, is_single=self.is_single)
        with current_config(own):
            folder = own.hydra.run.dir if self.is_single else os.path.join(own.hydra.sweep.dir, own.hydra.sweep.subdir)
            return os.path.abspath(str(folder))

    def run(self) -> list[JobReturn]:
        """Run the jobs; see `QueueLauncher.launch`."""
        if self.is_trial:
            # The sweeper has already asked what became of jobs of an earlier search.
            tickets = self._submit(self.jobs)
        else:
            # Two commands in one folder must not both submit the jobs that neither of them finds.
            with self.submissions.held():
                tickets = self._attach_or_submit()
        self._note_handed_over()
        if not self.params.get("wait", True) and (count := self._count_open(tickets)):
            print(f"nlu: {left_sentence(count, self.folder)}", file=sys.stderr)
            return []
        return self._follow(tickets)

    def follow_again(self, before: Submitted) -> list[JobReturn]:
        """Follow a job of an earlier command to its end; returns what it returned."""
        assert before.ticket is not None
        self.queues[before.ticket.id] = self._queue_of(before)
        return self._follow([before.ticket])

    def _follow(self, tickets: Sequence[Ticket]) -> list[JobReturn]:
        names = {ticket.job.token: self._name(ticket.job) for ticket in tickets}
        try:
            follower = Follower(self._followed(tickets), tickets, names, self.folder, progress_of)
            found = follower.run(self._note_end)
        except Detached:
            raise KeyboardInterrupt from None
        return [self._returned(ticket, found[ticket.job.token]) for ticket in tickets]

    def _count_open(self, tickets: Sequence[Ticket]) -> int:
        """Return how many of the jobs have not ended, where those of this command count as open.

        Prints which jobs only another machine can tell about.
        """
        former = [ticket.id for ticket in tickets if ticket.id in self.queues]
        looks: Mapping[str, Look] = {}
        with contextlib.suppress(OSError):
            looks = self._followed(tickets).look(former) if former else {}
        for ticket in tickets:
            if (look := looks.get(ticket.id)) is not None and not look.is_certain:
                print(f"nlu: {self._name(ticket.job)}: {look.reason}", file=sys.stderr)
        return len(tickets) - sum(look.state.is_final for look in looks.values())

    def _followed(self, tickets: Sequence[Ticket]) -> Queue:
        if all(queue is self.queue for queue in self.queues.values()):
            return self.queue
        return CombinedQueue({ticket.id: self.queues.get(ticket.id, self.queue) for ticket in tickets})

    def _name(self, job: Job) -> str:
        return "run" if self.is_single else job_name(job.number, job.overrides, self.swept)

    def _note_end(self, ticket: Ticket, ended: JobEnd) -> None:
        self.submissions.ended(ticket.job.token, ended.word)

    def _attach_or_submit(self) -> list[Ticket]:
        """Return a ticket for each job, and submit those that no earlier command has submitted.

        A job whose end a user has seen is submitted again.
        """
        known = {
            submitted.job.number: submitted
            for submitted in self._recovered(self.submissions.read())
            if submitted.ended is None
        }
        if self.config.get("resume", "never") != "never":
            self._look_at([known[job.number] for job in self.jobs if job.number in known])
        found: dict[int, Ticket] = {}
        for job in self.jobs:
            if (before := known.get(job.number)) is None or before.ticket is None:
                continue
            # As it was written down, without secrets: the command that continues may differ only in resume=.
            is_same = without_resume(before.job.overrides) == without_resume(job.overrides)
            if not (is_same and before.queue == self.name) and self._ended(before, before.ticket) is None:
                how = "with other values" if before.queue == self.name else "to another queue"
                raise UserError(
                    f"job {job.number} of {self.folder} was submitted {how} ({before.queue} {before.ticket.id}) and "
                    f"has not ended; python -m nlu.jobs {self.folder} --cancel {job.number} cancels it, or choose "
                    "another folder"
                )
            if is_same and not self._continues(before, before.ticket):
                found[job.number] = before.ticket
                self.queues[before.ticket.id] = self._queue_of(before)
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
        submitted = {ticket.job.number: ticket for ticket in self._submit(new)} if new else {}
        return [found.get(job.number) or submitted[job.number] for job in self.jobs]

    def require(self, jobs: Sequence[Job], configs: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise UserError with everything that is wrong with these jobs, before they are handed over.

        `configs` holds known configurations by the numbers of jobs, also those of later batches of a grid.
        """
        own = {job.number: configs.get(job.number) or self._composed(job) for job in jobs}
        require_valid(self.queue, jobs, {**own, **configs})

    def _queue_of(self, before: Submitted) -> Queue:
        """Return the queue that has a job of an earlier command, with the settings of that command."""
        if before.queue == self.name and _of_job(before.settings) == _of_job(kept_settings(self.params)):
            return self.queue
        key = f"{before.queue} {_of_job(before.settings)}"
        if key not in self.former:
            self.former[key] = open_queue(before.queue, QueueContext(before.settings, self.folder))
        return self.former[key]

    def _continues(self, before: Submitted, ticket: Ticket) -> bool:
        """Whether a job is submitted again: it was cut short, and the command has resume=."""
        if self.config.get("resume", "never") == "never" or (ended := self._ended(before, ticket)) is None:
            return False
        if ended.word not in CUT_SHORT or ended.status == 0:
            return False
        self._note_end(ticket, ended)
        which = f"job {ticket.job.number} ({before.queue} {ticket.id})"
        print(f"nlu: {which} was {ended.word}; it continues", file=sys.stderr)
        return True

    def _look_at(self, known: Sequence[Submitted]) -> None:
        """Ask each queue once for all of its jobs. If it does not answer, `_ended` asks again and reports that."""
        queues = {one.ticket.id: self._queue_of(one) for one in known if one.ticket is not None}
        with contextlib.suppress(OSError):
            self.looks |= CombinedQueue(queues).look(list(queues))

    def _ended(self, before: Submitted, ticket: Ticket) -> JobEnd | None:
        """Return how a job of an earlier command ended; None if it has not."""
        queue = self._queue_of(before)
        try:
            look = self.looks.get(ticket.id) or queue.look([ticket.id])[ticket.id]
            return JobEnd(look, queue.status(ticket.id)) if look.state.is_final else None
        except OSError as error:
            raise UserError(
                f"{queue.name} does not answer ({error}), so it is not known whether job {ticket.job.number} has "
                "ended; try again later"
            ) from error

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

    def _recovered(self, known: list[Submitted]) -> list[Submitted]:
        """Return the record, with tickets also for jobs whose submission was cut off.

        Raises UserError if their queue cannot find such jobs.
        """
        recover(self.submissions, [one for one in known if one.ticket is None])
        return self.submissions.read()

    @staticmethod
    def _note_handed_over() -> None:
        if (grid := current()) is not None:
            grid.is_handed_over = True

    def _submit(self, jobs: list[Job]) -> list[Ticket]:
        self._note_handed_over()
        # Before the queue is asked: after a kill in between, the same command looks for the jobs by their tokens.
        self.submissions.begin(jobs, self.name, self.params, self.command)
        found: dict[str, Ticket] = {}
        with contextlib.ExitStack() as said:
            for number, wait_s in enumerate(AGAIN_S):
                left = [job for job in jobs if job.token not in found]
                try:
                    found |= {ticket.job.token: ticket for ticket in self._hand_over(left)} if left else {}
                    break
                except JobRefused:
                    self.submissions.refused(left)
                    raise
                except OSError as error:
                    self._unanswered(jobs, found, error, wait_s, number, said)
        tickets = [found[job.token] for job in jobs]
        self.submissions.submitted(tickets)
        add_to_history(self.name, tickets, self.command)
        return tickets

    def _hand_over(self, jobs: list[Job]) -> list[Ticket]:
        # A grid is handed over as a whole, and may exceed the limit of a queue even when that is empty.
        return when_there_is_room(partial(self.queue.submit, jobs)) if self.is_trial else self.queue.submit(jobs)

    def _unanswered(
        self,
        jobs: list[Job],
        found: dict[str, Ticket],
        error: OSError,
        wait_s: float,
        number: int,
        said: contextlib.ExitStack,
    ) -> None:
        """Wait after the `number`-th submission without an answer, and find the jobs that the queue has nevertheless.

        Raises JobRefused after the last attempt, and if the queue cannot find jobs. `said` holds the message that
        trials wait, as long as they do.
        """
        what = f"{self.queue.name} does not answer: {error}"
        waits_on = self.is_trial and is_temporary(error)
        if not isinstance(self.queue, Finding) or (number == AGAIN_MAX and not waits_on):
            raise JobRefused(f"{what}; the same command finds the jobs that it took, and submits the rest")
        if not waits_on:
            print(f"nlu: {what}; it is asked again in {wait_s:.1f} s", file=sys.stderr)
        elif number == 0:
            said.enter_context(announced(f"{what}; trials wait until it does"))
        if not pause(wait_s):
            raise JobRefused(f"{what}; it was not asked again, since this command was stopped")
        with contextlib.suppress(OSError):
            tickets = self.queue.find(jobs)
            found |= {ticket.job.token: ticket for ticket in tickets if ticket is not None}

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
