"""List and cancel jobs that a launcher submitted to a queue.

python -m nlu.jobs                          jobs below outputs/ that have not ended
python -m nlu.jobs outputs/grid             all jobs of a run, a grid or a search: state, node, log
python -m nlu.jobs outputs/grid --cancel 3 5
                                            cancel two of them; without numbers all that have not ended
python -m nlu.jobs outputs/search --stop    end a search for good
python -m nlu.jobs outputs/grid --log 3     the end of a job's output
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nlu.config.console import Parser, at_least, run_command
from nlu.config.errors import UserError

if TYPE_CHECKING:
    from nlu.jobs.following import Listed
    from nlu.jobs.submissions import Submissions
OUTPUTS = Path("outputs")
LINES = 40
"""lines of --log"""


def main(arguments: Sequence[str]) -> int:
    """List jobs, or cancel some; returns the exit status."""
    parser = Parser(
        prog="python -m nlu.jobs",
        description="Jobs that a launcher handed to a queue (this machine's, Slurm's, PAI's), listed by their folder.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="a run, a grid, a search, or what holds such; default: all jobs below outputs/ that have not ended",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--cancel",
        nargs="*",
        type=at_least(0),
        metavar="NUMBER",
        help="cancel these jobs; without numbers all of DIR that have not ended",
    )
    action.add_argument("--log", type=at_least(0), metavar="NUMBER", help="print the end of a job's output")
    action.add_argument(
        "--forget",
        nargs="*",
        type=at_least(0),
        metavar="NUMBER",
        help="take jobs whose submission was cut off "
        "for not submitted; with numbers these, also such as were processes of a machine that is gone",
    )
    action.add_argument(
        "--stop",
        action="store_true",
        help="end a search, which cannot be continued; its open trials count as pruned",
    )
    given = parser.parse(arguments)
    is_about = any(value is not None for value in (given.cancel, given.log, given.forget)) or given.stop
    if given.folder is None and is_about:
        raise UserError("jobs are numbered within a folder; name it: python -m nlu.jobs DIR ...")
    from nlu.jobs.following import answered, latest, listed, records_of
    from nlu.jobs.submissions import submissions_below

    if given.stop:
        from nlu.search.closing import end_search

        print(end_search(given.folder, lambda text: print(f"nlu: {text}", file=sys.stderr)))
        return 0
    records = submissions_below(OUTPUTS) if given.folder is None else records_of(given.folder)
    if given.forget == []:
        return _forget_cut_off(records)
    with answered():
        rows = listed(latest(records))
        if given.cancel is not None:
            return _cancel(_chosen(rows, given.cancel))
        if given.log is not None:
            return _log(*_chosen(rows, [given.log]))
        if given.forget is not None:
            return _forget(_chosen(rows, given.forget))
    shown = rows if given.folder is not None else [row for row in rows if row.is_open]
    if not shown:
        print("nlu: no job below outputs/ waits or runs; give the folder of others", file=sys.stderr)
        return 0
    _print(shown)
    return 0


def _print(rows: "Sequence[Listed]") -> None:
    from nlu.config.sentences import path_text
    from nlu.display.console_tables import Column, fitted, print_table

    def texts(name: str) -> list[str]:
        return [getattr(row, name) for row in rows]

    times = [time.strftime("%m-%d %H:%M", time.localtime(row.submitted.time_s)) for row in rows]
    tickets = [row.submitted.ticket for row in rows]
    columns = [
        Column("job", [str(row.submitted.job.number) for row in rows]),
        Column("state", texts("state"), is_number=False),
        Column("node", texts("node"), is_number=False, may_go=4),
        Column("reason", texts("reason"), is_number=False, may_go=3),
        Column("queue", [row.submitted.queue for row in rows], is_number=False, may_go=6),
        Column("id", [ticket.id if ticket else "-" for ticket in tickets], is_number=False, may_go=2),
        Column("submitted", times, is_number=False, may_go=5),
        Column("folder", [path_text(Path(row.submitted.job.folder)) for row in rows], is_number=False),
        Column("log", [_shown(ticket.log) if ticket else "-" for ticket in tickets], is_number=False, may_go=1),
    ]
    table, gone = fitted([column for column in columns if any(column.cells)])
    print_table(table)
    if gone:
        print_table(f"too wide for this terminal: {', '.join(gone)}", style="dim")


def _shown(log: str | None) -> str:
    from nlu.config.sentences import path_text

    return "-" if log is None else log if "://" in log else path_text(Path(log))


def _chosen(rows: "Sequence[Listed]", numbers: Sequence[int]) -> "Sequence[Listed]":
    """Return the jobs with these numbers, without any all jobs."""
    from nlu.config.sentences import numbered

    if absent := sorted(set(numbers) - {row.submitted.job.number for row in rows}):
        known = ", ".join(str(row.submitted.job.number) for row in rows)
        raise UserError(f"unknown {numbered('job', absent)}; known jobs: {known}")
    found = [row for row in rows if not numbers or row.submitted.job.number in numbers]
    if numbers and len(found) > len(set(numbers)):
        folders = ", ".join(dict.fromkeys(str(row.folder) for row in found))
        raise UserError(f"several folders have a job of this number; name one of them: {folders}")
    return found


def _cancel(rows: "Sequence[Listed]") -> int:
    from nlu.config.sentences import counted, numbered
    from nlu.jobs.following import queued
    from nlu.jobs.queue import cancel

    if cut := [row.submitted.job.number for row in rows if row.submitted.ticket is None and not row.submitted.ended]:
        print(
            f"nlu: the submission of {numbered('job', cut)} was cut off, and a queue may have it all the same; the "
            "command that submitted it finds out",
            file=sys.stderr,
        )
    if not (chosen := [row for row in rows if row.is_open]):
        print("nlu: none of these jobs waits or runs; nothing was cancelled", file=sys.stderr)
        return 0
    cancel(queued((row.folder, row.submitted) for row in chosen))
    print(f"cancelled {counted(len(chosen), 'job')}: {', '.join(str(row.submitted.job.number) for row in chosen)}")
    return 0


def _log(row: "Listed") -> int:
    from nlu.jobs.following import queued

    if not (jobs := queued([(row.folder, row.submitted)])):
        raise UserError(f"the submission of job {row.submitted.job.number} was cut off, so its log is not known")
    said = jobs[0].queue.log_tail(jobs[0].ticket, LINES)
    print("\n".join(said) if said else f"job {row.submitted.job.number} has written nothing yet")
    return 0


def _forget_cut_off(records: "Sequence[Submissions]") -> int:
    """Take jobs for not submitted whose submission was cut off: it is recorded before it is sent, its ticket after."""
    from nlu.config.sentences import counted

    count = 0
    for record in records:
        if cut := [one.job for one in record.read() if one.ticket is None]:
            record.refused(cut)
            count += len(cut)
    print(f"{counted(count, 'job')} taken for not submitted")
    return 0


def _forget(rows: "Sequence[Listed]") -> int:
    from nlu.jobs.queue import JobState
    from nlu.jobs.submissions import Submissions

    if kept := [row for row in rows if row.submitted.ticket is not None and (row.is_certain or not row.is_open)]:
        raise UserError(
            f"job {kept[0].submitted.job.number} is {kept[0].state}; only one whose submission was cut off, or "
            "that another machine had, can be forgotten; nothing was"
        )
    for row in rows:
        job = row.submitted.job
        if row.submitted.ticket is None:
            Submissions(row.folder).refused([job])
            print(f"job {job.number} taken for not submitted")
        else:
            # A machine that is gone will never report it.
            Submissions(row.folder).ended(job.token, JobState.LOST)
            # One that follows it now waits for it all the same.
            print(f"job {job.number} of another machine taken for lost; its command has to be started again")
    return 0


if __name__ == "__main__":
    run_command(main)
