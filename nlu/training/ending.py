"""Why a run ends before it is complete, as its log keeps it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nlu.config import stopping
from nlu.config.errors import UserError
from nlu.runs import logs
from nlu.runs.folder import CONFIG
from nlu.search.faults import lost_a_peer
from nlu.training.ranks import Ranks


@contextmanager
def reason_kept(run_dir: Path, ranks: Ranks) -> Iterator[None]:
    """Write why the block ends early into the log of the run in this folder, which this process holds.

    A run that has not begun has no log yet. Each rank writes into its own log.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if (run_dir / CONFIG).is_file():
            is_stop = isinstance(error, KeyboardInterrupt)
            is_lost = not is_stop and lost_a_peer(error)
            if is_stop or (is_lost and stopping.received()):
                logs.record_end(run_dir, stopping.sentence(), ranks.rank, level=logs.STOPPED)
            elif is_lost:
                logs.record_end(run_dir, UserError(f"another rank has ended or did not answer ({error})"), ranks.rank)
            else:
                assert isinstance(error, Exception)
                logs.record_end(run_dir, error, ranks.rank)
        raise
