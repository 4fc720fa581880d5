"""One of several processes, in which runs of several configurations follow one another.

    RANK=0 WORLD_SIZE=2 ... python -m tests.training.ranks_of_kinds JOBS

JOBS is a file of pickled (configuration, folder); beside each folder is a file at which the processes find each other.
PROVENANCE_TAKES_S makes the first process slow where it writes
what ran, and fails it if the other went on meanwhile. ROWS_THAT_FIT=RANK:ROWS gives a process memory for so many rows.
With FAILS=1 each process writes the error of a run to FOLDER.error-RANK.
"""

import os
import pickle
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.jobs.placement import MEETING
from nlu.training import finish, single
from tests.training.in_process import start
from tests.training.short_memory import memory_for


def slow_down(seconds: float) -> None:
    """Have the first process write provenance.json late; the second notes when it comes to the end of its run."""
    is_first, write, end = os.environ["RANK"] == "0", single.write_provenance, finish.finish

    def write_late(run_dir: Path, *arguments: Any, **named: Any) -> None:
        if is_first:
            time.sleep(seconds)
            assert not (run_dir / "finishing.rank1").exists(), "another process did not wait"
        write(run_dir, *arguments, **named)

    def end_noted(run: Any) -> None:
        if not is_first:
            (run.run_dir / "finishing.rank1").touch()
        end(run)

    single.write_provenance, finish.finish = write_late, end_noted  # type: ignore[assignment]


def main(jobs: Path) -> None:
    if seconds := os.environ.get("PROVENANCE_TAKES_S"):
        slow_down(float(seconds))
    rank, _, rows = os.environ.get("ROWS_THAT_FIT", "").partition(":")
    with memory_for(int(rows)) if os.environ["RANK"] == rank else nullcontext():
        for number, (config, run_dir) in enumerate(pickle.loads(jobs.read_bytes())):
            # A new file for each run: one process may begin the next run before the other has left this one.
            os.environ[MEETING] = f"file://{run_dir}-meeting-{number}"
            try:
                start(config, run_dir)
            except UserError as error:
                if "FAILS" not in os.environ:
                    raise
                Path(f"{run_dir}.error-{os.environ['RANK']}").write_text(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # The communication threads of torch now and then abort a process that tears itself down.
    os._exit(0)
