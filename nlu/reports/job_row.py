"""What is said of a job that has ended, from the folder of its run."""

from pathlib import Path

from nlu.config.errors import DataError
from nlu.display.console_tables import metric_text
from nlu.jobs.submitit_jobs import tail
from nlu.reports.runs import is_run, read_run
from nlu.runs.logs import LOG, RECORD


def progress_of(folder: Path) -> str:
    """Return the best value of a run, or the last line of one without a result; empty without a run."""
    try:
        run = read_run(folder) if is_run(folder) else None
    except (DataError, OSError):
        return ""
    if run is None:
        return ""
    if run.state in ("stopped", "unfinished"):
        # The end of a stage, whose last line says how to continue (`trainer.stop_after`).
        said = "".join(tail([folder / LOG], 1))
        match = RECORD.fullmatch(said)
        return str(match["message"]) if match else said
    value = run.value(run.set_name, run.metric)
    return "" if value is None else f"best {run.set_name} {run.metric} {metric_text(value)}"
