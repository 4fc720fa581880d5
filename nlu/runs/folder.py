"""The folder of a run: one run per folder, locked while it is written, and continued only by the same run."""

import errno
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from nlu.config.errors import UserError
from nlu.config.redaction import without_secrets
from nlu.config.schema import flat, has_effect, num_repeats
from nlu.config.sentences import listed
from nlu.config.types import Config
from nlu.runs.checkpoint import TAKEN, find_last
from nlu.runs.freeing import LOCK
from nlu.runs.mirror_files import NOTE, OUTBOX
from nlu.runs.takeover import make_own, take, taken_from
from nlu.storage.files import write_text
from nlu.storage.locks import Locked, hold_folder
from nlu.storage.settle import remove

log = logging.getLogger(__name__)

FOLDER_KEY = "hydra.run.dir (hydra.sweep.dir of a --multirun)"
CONFIG = "config.yaml"
"""a folder with this file is a run folder"""
BEFORE_BEGIN = ("log*.txt", f".{CONFIG}.*.tmp")
"""files that a run may leave if it fails or is killed before it begins: its log, and an unfinished CONFIG"""
SUBMISSION = (".submitted", ".submitit")
"""records of its submission, and the output of its job"""
ROWS = "rows"
"""folder of the rows that a program gave to `nlu.fit`, written before the run begins"""
REPEATS = ("fold-*", "seed-*")
"""folders of the runs for each fold and seed, in the folder of the configuration (`nlu.training.experiment`)"""
SAME_IN_RESUME = (
    "seed", "data.*", "tokenizer.*", "model.*", "folds.*", "trainer.batch_size", "trainer.batch_tokens",
    "trainer.accumulation", "trainer.bucket_batches", "trainer.window_rows", "trainer.eval_rows",
)  # fmt: skip
"""keys that must usually be the same in a run that starts with resume=RUN: they decide its weights and its order"""
LOCK_WAIT_S = 10.0
"""the workers of a killed process need a moment to end"""


@contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Hold the folder for this process; if the run does not begin, the folder is left as it was.

    Raises UserError if another process writes to it. The operating system releases the lock of a process that dies.
    """
    with ExitStack() as held:
        try:
            made_here = held.enter_context(
                hold_folder(run_dir, LOCK, wait_s=LOCK_WAIT_S, what=f"the folder of this run, {run_dir},")
            )
        except Locked:
            raise UserError(
                f"the folder of this run is {run_dir}, and another process is writing to it; wait for it, stop it, or "
                f"choose another {FOLDER_KEY}"
            ) from None
        try:
            yield
        finally:
            if not (run_dir / CONFIG).is_file():
                # The run did not begin, so nothing of it may stay: the next command would find a folder that is not
                # empty.
                remove(run_dir / TAKEN)
                (run_dir / LOCK).unlink(missing_ok=True)
                if made_here:
                    try:
                        run_dir.rmdir()
                    except OSError as error:
                        # Something else is in it: a file of a user, or the lock of a process that waited for this one.
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                            raise


def _contents(run_dir: Path) -> list[str]:
    """Return the names of all files except locks, which a kill leaves, also in the folder of a repeat."""
    return sorted(
        path.name
        for path in run_dir.iterdir()
        if path.name not in (LOCK, TAKEN, NOTE, OUTBOX, ROWS, *SUBMISSION) and (not _is_repeat(path) or _contents(path))
    )


def _is_repeat(path: Path) -> bool:
    return path.is_dir() and any(fnmatch(path.name, pattern) for pattern in REPEATS)


def repeats_beside(run_dir: Path) -> list[Path]:
    """Return the folders of all repeats of the configuration whose fold or seed has this folder; [] for other runs."""
    if not _is_repeat(run_dir) or not (run_dir.parent / CONFIG).is_file():
        return []
    return sorted(path for path in run_dir.parent.iterdir() if _is_repeat(path))


def checkpoint_to_continue(run_dir: Path, config: Config) -> Path | None:
    """Return the state that `resume` asks for, or None to start at step 0; that of a path is copied into this folder.

    Raises UserError if the folder contains something that this command must not overwrite: a run without
    `resume=auto`, a run with another configuration, any other files. A run that began with the state of the
    same path is continued, since its command was queued again.
    """
    resume, contents = config["resume"], _contents(run_dir)
    # These files are of a start that ended before config.yaml was written, so they may be overwritten.
    if not contents or (resume != "never" and all(_is_before_begin(run_dir / name) for name in contents)):
        return None if resume in ("never", "auto") else take(resume, run_dir)
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{run_dir} holds {contents[0]!r} but no run; choose another {FOLDER_KEY}")
    if resume not in ("auto", taken_from(run_dir)):
        raise _exists(run_dir, contents)
    there = _read_config(run_dir)
    if absent := [key for key in config if key not in there and has_effect(key)]:
        # Every version has written it.
        if "trainer" in absent:
            raise _damaged(run_dir / CONFIG, f"it lacks {listed(absent, 4)}")
        raise UserError(
            f"{run_dir} holds a run of an earlier version, without {listed(absent)}, which this version cannot "
            f"continue; start a new run elsewhere, from its weights with model.pretrained={run_dir}/best"
        )
    if differences := _differences(there, config):
        # Several runs cannot start from the state of one, and do not have a common state.
        is_single = num_repeats(config) == num_repeats(there) == 1
        may_differ = not any(fnmatch(key, pattern) for key in differences for pattern in SAME_IN_RESUME)
        elsewhere = f", or start from its state there with resume={run_dir}" if is_single and may_differ else ""
        raise UserError(
            *differences.values(),
            summary=f"{run_dir} holds a run with another configuration",
            remedy=f"write the same values to continue it, or choose another {FOLDER_KEY}{elsewhere}",
        )
    # A kill may have come after config.yaml was written and before the copied state became that of this run.
    make_own(run_dir)
    return find_last(run_dir)


def has_begun(run_dir: Path) -> bool:
    """Return whether a folder holds more than what a run leaves that ends before it begins, or a folder of others."""
    return run_dir.is_dir() and not all(_is_before_begin(run_dir / name) for name in _contents(run_dir))


def _is_before_begin(path: Path) -> bool:
    if _is_repeat(path):
        return all(_is_before_begin(path / name) for name in _contents(path))
    return any(fnmatch(path.name, pattern) for pattern in BEFORE_BEGIN)


def is_repeat_or_job(run_dir: Path) -> bool:
    """Return whether a folder has the name of one of several runs: a fold, a seed, or a job of a search or grid."""
    return run_dir.name.isdigit() or any(fnmatch(run_dir.name, pattern) for pattern in REPEATS)


def _exists(run_dir: Path, contents: list[str]) -> UserError:
    shown = ", ".join(contents[:4]) + (", ..." if len(contents) > 4 else "")
    return UserError(
        f"the folder of this run is {run_dir}, which exists and holds {shown}; nothing was written; set resume=auto to "
        f"continue the run that it holds, or choose another {FOLDER_KEY}"
    )


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, str]:
    """Return a sentence for each key that differs."""
    flat_old, flat_new = flat(dict(old)), flat(dict(new))
    # None is a value that a key may have.
    absent = object()
    return {
        key: f"{key}: {_shown(flat_old, key)} there, {_shown(flat_new, key)} here"
        for key in dict.fromkeys([*flat_old, *flat_new])
        if has_effect(key) and flat_old.get(key, absent) != flat_new.get(key, absent)
    }


def _shown(flat: Mapping[str, object], key: str) -> str:
    return repr(flat[key]) if key in flat else "absent"


def write_config(run_dir: Path, config: Mapping[str, object]) -> None:
    """Write config.yaml, which makes the folder a run folder."""
    write_text(run_dir / CONFIG, yaml.safe_dump(without_secrets(config), allow_unicode=True, sort_keys=False))


def _read_config(run_dir: Path) -> dict[str, Any]:
    """Return the content of config.yaml. Raises UserError if it is damaged."""
    path = run_dir / CONFIG
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error).partition("\n")[0]) from error
    if not isinstance(found, dict):
        raise _damaged(path, "it does not map keys to values")
    return found


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} is damaged ({reason}); restore it from a copy, such as that of another run of the same command, or "
        f"choose another {FOLDER_KEY}"
    )


def keep_note(run_dir: Path, note: str | None) -> None:
    """Store the note that a command gives to an ended run, which it does not begin again; None keeps the former one."""
    there = _read_config(run_dir)
    if note is not None and there.get("note") != note:
        write_config(run_dir, {**there, "note": note})
        log.info("the note of %s is now %r", run_dir, note)
