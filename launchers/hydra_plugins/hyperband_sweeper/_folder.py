"""The sweep folder: held by one search at a time, and always by the same one, since its trials are called by number."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

from nlu.config.entry.grid import RECORD
from nlu.config.errors import UserError
from nlu.storage.files import write_json
from nlu.storage.locks import Locked, hold_folder

LOCK = ".sweep.lock"
HELD = "search.json"
"""study and storage of the search that the folder holds, and the id that its study has as a user attribute"""
ID = "id"


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[str]:
    """Hold the sweep folder for this process; gives a name that no other folder has, of another host either.

    Raises UserError where another process sweeps into it.
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
            yield _name_in(folder / LOCK)
        finally:
            if made_here and all(path.name == LOCK or _is_empty(path) for path in folder.iterdir()):
                # Refused before anything was settled.
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()


def _name_in(lock: Path) -> str:
    """Return the name that stands in the lock, which the first holder writes there."""
    if not (name := lock.read_text()):
        name = uuid.uuid4().hex
        lock.write_text(name)
    return name


def _is_empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def held_search(folder: Path) -> dict[str, str] | None:
    """Return study, storage and id of the search that the folder holds; None where it holds none yet."""
    path = folder / HELD
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def held_name(folder: Path) -> str | None:
    """Return the name of the study that the folder holds; None where it holds none yet."""
    held = held_search(folder)
    return None if held is None else held["study"]


def require_no_run(folder: Path) -> None:
    """Raise UserError where the folder holds a run or the runs of a grid, and no search to go on with."""
    if held_search(folder) is not None:
        return
    found = [folder, *(path for path in folder.glob("*") if path.name.isdigit())]
    if run := next((path for path in found if (path / RECORD).is_file()), None):
        what = "a run" if run == folder else f"a run in {run.name}, and no search"
        raise UserError(f"hydra.sweep.dir is {folder}, which holds {what}; choose another hydra.sweep.dir")


def require_same_study(folder: Path, name: str) -> None:
    """Raise UserError where the folder holds a search of another name, whose trials would have the same folders."""
    held = held_search(folder)
    if held is not None and held["study"] != name:
        raise UserError(
            f"{folder} holds the search {held['study']}; go on with it by hydra.sweeper.study_name={held['study']}, or "
            "choose another hydra.sweep.dir"
        )


def require_same_id(folder: Path, name: str, url: str, found: str | None) -> None:
    """Raise UserError where the folder holds a search, and the study of its name in this storage is not that one."""
    held = held_search(folder)
    if held is None or held[ID] == found:
        return
    if held["storage"] == url:
        raise UserError(
            f"{folder} holds the search {name}, which is no longer in {url}; choose another hydra.sweep.dir"
        )
    raise UserError(
        f"{folder} holds the search {name} from {held['storage']}, which is not the one in {url}; go on with it by "
        f"hydra.sweeper.storage={held['storage']}, or choose another hydra.sweep.dir"
    )


def keep(folder: Path, name: str, url: str, own_id: str) -> None:
    """Note which search the folder holds."""
    write_json(folder / HELD, {"study": name, "storage": url, ID: own_id})
