"""The progress of a run that may be under way, as a row of the table of jobs."""

from pathlib import Path

from nlu.config.errors import DataError
from nlu.display.jobs import JobRow
from nlu.display.tables import metric_text
from nlu.jobs.submitit_jobs import tail
from nlu.reports.runs import is_run, read_run
from nlu.runs.logs import LOG, RECORD


def progress_of(folder: Path) -> JobRow:
    """Return the progress that the folder of a run shows; an empty row if the folder is not that of a run yet."""
    said = tail([folder / LOG], 1)
    match = RECORD.fullmatch(said[0]) if said else None
    last = match["message"] if match else (said[0] if said else "")
    try:
        run = read_run(folder) if is_run(folder) else None
    except (DataError, OSError):
        # The run may be writing a line at this moment.
        run = None
    if run is None:
        return JobRow(last_line=last)
    value = run.value(run.set_name, run.metric)
    best = "" if value is None else f"{run.set_name} {run.metric} {metric_text(value)}"
    is_unfinished = run.state in ("stopped", "unfinished")
    return JobRow(examples_per_s=run.examples_per_s, best=best, last_line=last, is_unfinished=is_unfinished)
