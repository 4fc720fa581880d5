"""The sweep folder and the study of a search: one search at a time holds the folder, and always the same search.

Otherwise trials of two searches would have one folder, since they are numbered. If the search has a mirror, an object
store keeps the folder; the runs of its trials have their own mirrors below it.
"""

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from optuna import Study
from optuna.exceptions import DuplicatedStudyError
from optuna.trial import FrozenTrial, TrialState

from nlu.config.entry.grid import RECORD
from nlu.config.errors import UserError
from nlu.runs.freeing import RESULT
from nlu.runs.mirror import Mirror, closed_at_the_end
from nlu.runs.mirror_files import bring_back
from nlu.search.goals import Goals
from nlu.search.pruners import PRUNER
from nlu.search.schedulers.scheduler import PAUSING
from nlu.search.space import space_differences
from nlu.search.storage.open_study import HELD, OVER, held_search
from nlu.storage.files import write_json
from nlu.storage.locks import Locked, hold_folder

LOCK = ".sweep.lock"
SPACE, SHARED, FOLDER, ID = "space", "shared", "folder", "id"
"""user attributes of a study: the space, the values that all trials share, the sweep folder, the id that it has too"""


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


def require_no_run(folder: Path) -> None:
    """Raise UserError if the folder holds a run or the runs of a grid, and no search to continue."""
    if held_search(folder) is not None:
        return
    found = [folder, *(path for path in folder.glob("*") if path.name.isdigit())]
    if run := next((path for path in found if (path / RECORD).is_file()), None):
        what = "a run" if run == folder else f"a run in {run.name}, and no search"
        raise UserError(f"hydra.sweep.dir is {folder}, which holds {what}; choose another hydra.sweep.dir")


def require_same(
    folder: Path, name: str, url: str, study: Study | None, now: Mapping[str, Any], direction: str
) -> None:
    """Raise UserError if the folder or the study, None without one of this name in the storage, has another search.

    `now` are the attributes of this search by which a study is recognized.
    """
    before = {} if study is None else study.user_attrs
    held = held_search(folder)
    if held is not None and held[ID] != before.get(ID) and not _is_cut_off(folder, held, name, url, study):
        _refuse_held(folder, held, name, url)
    if study is None:
        return
    where = f"the study {name} in {url}"
    # A folder that was moved holds it too. Another host may have a folder of the same path.
    if held is None:
        _refuse_taken(folder, where, before)
    if any(key not in before for key in (SPACE, SHARED, FOLDER, ID)):
        # Its beginning was cut off by a kill. Its directions never change.
        there, here = [each.name.lower() for each in study.directions], [direction, *Goals.of(now).directions]
        if there != here:
            raise UserError(
                f"{where} is to {', '.join(there)}, this search to {', '.join(here)}; choose another hydra.sweep.dir "
                "(and hydra.sweeper.study_name)"
            )
        return
    if OVER in before:
        raise UserError(
            f"{where} is over: python -m nlu.jobs {folder} --stop has ended it; choose another hydra.sweep.dir for "
            f"another search (python -m nlu.report search {folder} shows this one)"
        )
    known = study.directions[0].name.lower()
    found = space_differences(before[SPACE], now[SPACE])
    found += space_differences(_described(before, known), _described(now, direction), absent="absent")
    if found:
        raise UserError(
            *found,
            summary=f"{where} is another search",
            # With only another name its trials would have the folders of this search.
            remedy="write the same to continue it, or choose another hydra.sweep.dir (and hydra.sweeper.study_name)",
        )


def _is_cut_off(folder: Path, held: Mapping[str, str], name: str, url: str, study: Study | None) -> bool:
    """Whether a kill has ended the search that the folder holds before its study was created, or had its id."""
    if (held["study"], held["storage"]) != (name, url):
        return False
    return ID not in study.user_attrs if study is not None else not any(one.name.isdigit() for one in folder.iterdir())


def _refuse_taken(folder: Path, where: str, attributes: Mapping[str, Any]) -> NoReturn:
    owner, remedy = "another search", ""
    if FOLDER in attributes:
        owner, remedy = f"the sweep folder {attributes[FOLDER]}", "continue it there, with that hydra.sweep.dir, or "
    raise UserError(
        f"{where} belongs to {owner}, and {folder} does not hold it; {remedy}set hydra.sweeper.study_name to another "
        "name"
    )


def _refuse_held(folder: Path, held: Mapping[str, str], name: str, url: str) -> None:
    if (held["study"], held["storage"]) == (name, url):
        raise UserError(
            f"{folder} holds the search {name}, which is no longer in {url}; choose another hydra.sweep.dir"
        )
    raise UserError(
        f"{folder} holds the search {held['study']} from {held['storage']}, not {name} in {url}; continue it with "
        f"hydra.sweeper.study_name={held['study']} and hydra.sweeper.storage={held['storage']}, or choose another "
        "hydra.sweep.dir"
    )


def _described(attributes: Mapping[str, Any], direction: str) -> dict[str, object]:
    """Return what has to be the same in each command of a search besides its space."""
    goals, pruner = Goals.of(attributes), attributes[PRUNER]["name"]
    return {
        "direction": direction,
        "hydra.sweeper.objectives": list(goals.objectives),
        "hydra.sweeper.constraints": [constraint.text for constraint in goals.constraints],
        # Trials that were stopped do not continue where others are paused.
        "hydra.sweeper.pruner": " or ".join(PAUSING) if pruner in PAUSING else "one that pauses no trial",
        **attributes[SHARED],
    }


def begin_study(folder: Path, name: str, url: str, create: Callable[..., Study]) -> Study:
    """Return the study of a search: the one of its folder, or a new one, if no other search has created it meanwhile.

    The folder holds the search first, so that the same command continues it after a kill. `create` calls Optuna's
    `create_study`, which creates a study only once. Raises UserError if another search has the study.
    """
    is_held = held_search(folder) is not None
    if not is_held:
        write_json(folder / HELD, {"study": name, "storage": url, ID: uuid.uuid4().hex})
    try:
        return create(load_if_exists=is_held)
    except DuplicatedStudyError:
        (folder / HELD).unlink()
        _refuse_taken(folder, f"the study {name} in {url}", {})


def settle(folder: Path, url: str, study: Study, now: Mapping[str, Any], direction: str) -> None:
    """Write what identifies a search into the study of `begin_study`; from now on it belongs to the folder.

    Raises UserError if another search has come first.
    """
    require_same(folder, study.study_name, url, study, now, direction)
    before, held = study.user_attrs, held_search(folder)
    assert held is not None, "begin_study has written it"
    whole = {ID: held[ID], **now}
    # The space comes last: if it is there, a kill has not cut off the others.
    for key in sorted(whole, key=lambda key: key == SPACE):
        if before.get(key) != whole[key]:
            study.set_user_attr(key, whole[key])
    if study.user_attrs[ID] != held[ID]:
        _refuse_taken(folder, f"the study {study.study_name} in {url}", study.user_attrs)


@contextlib.contextmanager
def mirrored(url: str | None, folder: Path, *, take: bool) -> Iterator[Mirror | None]:
    """Keep the folder of a search in its mirror, if it has one.

    Before the block the folder becomes what the mirror holds; after it the mirror holds what the folder does.
    """
    if url is None:
        yield None
        return
    mirror = Mirror(url, folder, say=partial(print, file=sys.stderr), is_search=True)
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
