"""Starting a run from the state of another run, even while that run is alive and keeps replacing its state.

The state is copied once, by one rank, to `.taken` in the folder of this run; all ranks read that copy. When everything
is built, the copy is renamed to `checkpoints`, after config.yaml was written. After a kill before the rename, the same
command starts again; after a kill behind it, the run continues. The folder of the other run is never changed.
"""

import json
import os
from pathlib import Path

from nlu.config.addresses import is_object
from nlu.config.errors import CheckpointError
from nlu.runs.checkpoint import ORIGIN, TAKEN, damaged
from nlu.runs.freeing import CHECKPOINTS
from nlu.runs.state import State
from nlu.storage.files import read_json, sync_folder, write_json
from nlu.storage.run_copies import complete, records_of
from nlu.storage.settle import MARKER, copy_whole, is_whole, remove

OF_OTHER_RUN = "best last_metrics evaluated_at improved_at window throughput skipped pruned".split()
"""fields of a state about what this run has not done, perhaps by another task, loss, metric or threshold"""


def take(reference: str, run_dir: Path) -> Path:
    """Copy the state that a path names, a run or its checkpoint, into the folder of this run; returns the copy.

    Raises CheckpointError if the path does not name a state, or if the disk refuses the copy, which is then removed.
    """
    place, taken = _place_of(reference), run_dir / TAKEN
    remove(taken)
    try:
        # A state contains only files; a folder with folders belongs to several runs, or is something else.
        is_state = not any(path.is_dir() for path in place.glob("*")) and copy_whole(place, taken / "last")
        if is_state and (taken / "last" / "state.json").is_file():
            write_json(taken / ORIGIN, {"path": reference, "place": str(place)})
            _forget_evaluations(taken / "last" / "state.json")
            return taken / "last"
    except OSError as error:
        remove(taken)
        raise CheckpointError(
            f"{place} could not be copied to {taken}: {error}; free some space, or choose another hydra.run.dir"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        remove(taken)
        raise damaged(place, error) from error
    remove(taken)
    raise CheckpointError(
        f"resume is {reference!r}, which is neither a run's folder nor its checkpoints/last; give one of these (of "
        "folds, seeds, jobs or trials the folder of one), auto or never"
    )


def _forget_evaluations(path: Path) -> None:
    """Make a state that of a run which begins at its step."""
    document = json.loads(path.read_text(encoding="utf-8"))
    begun = State(improved_at=document["state"]["step"]).to_json()
    document["state"] |= {name: begun[name] for name in OF_OTHER_RUN}
    write_json(path, document)


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
