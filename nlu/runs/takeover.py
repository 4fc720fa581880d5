"""Starting a run from the state of another run, even while that run is alive and keeps replacing its state.

The state and the weights of its best evaluations are copied once, by one rank, to `.taken` in the folder of this run;
all ranks read that copy. When everything is built, these weights are scored again, which writes their predictions there
too, and the copy is renamed to `checkpoints`, after config.yaml was written. After a kill before the rename, the same
command starts again; after a kill behind it, the run continues. The folder of the other run is never changed.
"""

import os
import shutil
import time
from pathlib import Path

from nlu.config.addresses import is_object
from nlu.config.errors import CheckpointError
from nlu.runs.checkpoint import ORIGIN, SCORE, TAKEN, best_of, damaged
from nlu.runs.freeing import CHECKPOINTS, LOCK
from nlu.runs.predictions import FOLDER
from nlu.storage.files import read_json, replacing, sync_folder, write_json
from nlu.storage.locks import is_locked
from nlu.storage.refusals import Pauses
from nlu.storage.run_copies import complete, records_of
from nlu.storage.settle import MARKER, copy_files, copy_whole, is_whole, remove

AGAIN_S = Pauses(0.25, 1.0, 4)
"""before a state is read again, since a run saves its best weights and its state one after another"""


def take(reference: str, run_dir: Path) -> Path:
    """Copy the state that a path names, a run or its checkpoint, into the folder of this run; returns the copy.

    Raises CheckpointError if the path does not name a state, or if the disk refuses the copy, which is then removed.
    """
    place, taken = _place_of(reference), run_dir / TAKEN
    for pause_s in (0.0, *AGAIN_S):
        time.sleep(pause_s)
        remove(taken)
        try:
            # A state contains only files; a folder with folders belongs to several runs, or is something else.
            if any(path.is_dir() for path in place.glob("*")) or not _copy(place, taken):
                raise _no_state(reference)
            write_json(taken / ORIGIN, {"path": reference, "place": str(place)})
            is_of_one_moment = _is_of_one_moment(taken)
        except CheckpointError:
            remove(taken)
            raise
        except OSError as error:
            remove(taken)
            raise CheckpointError(
                f"{place} could not be copied to {taken}: {error}; free some space, or choose another hydra.run.dir"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            remove(taken)
            raise damaged(place, error) from error
        # A run that has ended will not complete what is missing, so its copy is used as it is.
        if is_of_one_moment or not is_locked(place.parent.parent / LOCK):
            break
    return taken / "last"


def _no_state(reference: str) -> CheckpointError:
    return CheckpointError(
        f"resume is {reference!r}, which is neither a run's folder nor its checkpoints/last; give one of these (of "
        "folds, seeds, jobs or trials the folder of one), auto or never"
    )


def is_taken(checkpoint: Path) -> bool:
    """Return whether a state was taken from another run and does not belong to this one yet."""
    return checkpoint.parent.name == TAKEN


def taken_from(run_dir: Path) -> str | None:
    """Return the path, as it was written, of the state that the run in this folder began with; None without one."""
    known = next((known for name in (CHECKPOINTS, TAKEN) if (known := read_json(run_dir / name / ORIGIN))), None)
    return known["path"] if known else None


def make_own(run_dir: Path) -> None:
    """Make the taken checkpoints those of this run, if they are marked complete. It can be repeated after a kill.

    Call it after config.yaml is written.
    """
    taken = run_dir / TAKEN
    if not is_whole(taken):
        # A kill after the rename may have left the marker.
        (run_dir / CHECKPOINTS / MARKER).unlink(missing_ok=True)
        return
    # Before the rename, so that after a kill in between they are copied again.
    for path in (taken / FOLDER).glob("*"):
        with open(path, "rb") as file, replacing(run_dir / FOLDER / path.name) as copy:
            shutil.copyfileobj(file, copy)
    if (taken / FOLDER).exists():
        remove(taken / FOLDER)
    os.rename(taken, run_dir / CHECKPOINTS)
    # The rename must be on the disk before the marker is removed: if a power failure undoes the rename, the next start
    # needs the marker.
    sync_folder(run_dir)
    (run_dir / CHECKPOINTS / MARKER).unlink()


def _place_of(reference: str) -> Path:
    if is_object(reference):
        top, _, name = reference.rstrip("/").partition(f"/{CHECKPOINTS}/")
        return complete(records_of(top, "resume") / CHECKPOINTS) / (name or "last")
    path = Path(reference).expanduser()
    return path / CHECKPOINTS / "last" if (path / CHECKPOINTS).is_dir() else path.absolute()


def _copy(place: Path, taken: Path) -> bool:
    """Copy a state and its best evaluations, as far as they exist; returns whether there was a state."""
    if not copy_whole(place, taken / "last") or not (taken / "last" / "state.json").is_file():
        return False
    # The state was copied first. What it names is copied afterwards, as far as the other run has not replaced it.
    steps = set(_best_steps(taken))
    for path in [*place.parent.glob("best-*"), *place.parent.glob(".best-step-*")]:
        step = _step_of(path)
        target = taken / f".best-step-{step}"
        # The other run may give this name to another evaluation at any moment.
        if step in steps and not target.exists() and copy_files(path, target) and _step_of(target) != step:
            remove(target)
    return True


def _is_of_one_moment(taken: Path) -> bool:
    """Return whether all best evaluations of the state were copied."""
    return all((taken / f".best-step-{step}").is_dir() for step in _best_steps(taken))


def _best_steps(taken: Path) -> list[int]:
    return [entry["step"] for entry in best_of(taken / "last")]


def _step_of(path: Path) -> int | None:
    return (read_json(path / SCORE) or {}).get("step")
