"""The sweep folder: one search at a time holds it, and always the same search, since its trials are numbered.

If the search has a mirror, an object store keeps the folder; the runs of its trials have their own mirrors below it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState

from nlu.config.entry.grid import RECORD
from nlu.config.errors import UserError
from nlu.runs.freeing import RESULT
from nlu.runs.mirror import Mirror, closed_at_the_end
from nlu.runs.mirrored import bring_back
from nlu.search.storage.opening import HELD, held_search
from nlu.storage.files import write_json
from nlu.storage.locks import Locked, hold_folder

LOCK = ".sweep.lock"
ID = "id"
OVER = "over"
"""user attribute of a study: a user has ended the search for good"""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the sweep folder for this process.

    Raises UserError if another process sweeps into it.
    """
    with contextlib.ExitStack() as held:
        try:
            made_here = held.enter_context(hold_folder(folder, LOCK, wait_s=0))
        except Locked:
            raise UserError(
                f"hydra.sweep.dir is {folder}, and another search is running in it; wait for it, stop it, or "
                "choose another hydra.sweep.dir"
            ) from None
        try:
            yield
        finally:
            if made_here and all(path.name == LOCK or _is_empty(path) for path in folder.iterdir()):
                # The search was refused before it wrote anything.
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()


def _is_empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def held_name(folder: Path) -> str | None:
    """Return the name of the study of the search in the folder; None before the first search."""
    held = held_search(folder)
    return None if held is None else held["study"]


def require_no_run(folder: Path) -> None:
    """Raise UserError if the folder holds a run or the runs of a grid, and no search to continue."""
    if held_search(folder) is not None:
        return
    found = [folder, *(path for path in folder.glob("*") if path.name.isdigit())]
    if run := next((path for path in found if (path / RECORD).is_file()), None):
        what = "a run" if run == folder else f"a run in {run.name}, and no search"
        raise UserError(f"hydra.sweep.dir is {folder}, which holds {what}; choose another hydra.sweep.dir")


def require_same_id(folder: Path, name: str, url: str, found: str | None) -> None:
    """Raise UserError if the folder holds a search, and the study of this name in this storage is another one.

    Its trials would have the same folders.
    """
    held = held_search(folder)
    if held is None or held[ID] == found:
        return
    if (held["study"], held["storage"]) == (name, url):
        raise UserError(
            f"{folder} holds the search {name}, which is no longer in {url}; choose another hydra.sweep.dir"
        )
    raise UserError(
        f"{folder} holds the search {held['study']} from {held['storage']}, not {name} in {url}; continue it with "
        f"hydra.sweeper.study_name={held['study']} and hydra.sweeper.storage={held['storage']}, or choose another "
        "hydra.sweep.dir"
    )


def keep(folder: Path, name: str, url: str, own_id: str) -> None:
    """Note which search the folder holds."""
    write_json(folder / HELD, {"study": name, "storage": url, ID: own_id})


@contextlib.contextmanager
def mirrored(url: str | None, folder: Path, *, take: bool) -> Iterator[Mirror | None]:
    """Keep the folder of a search in its mirror, if it has one.

    Before the block the folder becomes what the mirror holds; after it the mirror holds what the folder does.
    """
    if url is None:
        yield None
        return
    mirror = Mirror(url, folder, say=tell, is_search=True)
    # The folder is filled under its lock; the search takes the lock again after that, for its whole duration.
    with hold(folder):
        mirror.open(may_hold_a_run=True, take=take)
    with closed_at_the_end(mirror):
        yield mirror


def bring_trials_back(url: str, folder: Path, trials: Iterable[FrozenTrial], say: Callable[[str], None]) -> None:
    """Fetch the runs of trials that ran elsewhere, unless their launcher has fetched them."""
    for trial in trials:
        own = folder / str(trial.number)
        # Only complete and pruned trials have a result to fetch.
        if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED) or (own / RESULT).is_file():
            continue
        try:
            bring_back(f"{url.rstrip('/')}/{trial.number}", own)
        except (UserError, OSError) as error:
            say(f"the run of trial {trial.number} stays in its mirror: {error}")


def tell(text: str) -> None:
    """Print a message that the user should read before the search starts."""
    print(text, file=sys.stderr)
