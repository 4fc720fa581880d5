"""Find the checkpoint that a reference names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nlu.config.addresses import is_object
from nlu.config.command_keys import Encoding
from nlu.config.errors import UserError
from nlu.config.mixtures import names_of
from nlu.config.types import TARGET
from nlu.reports.runs import CONFIG, RESULT, VALID, RunRecord, find_runs, is_run, metric_of, parts, saved_config
from nlu.runs.freeing import reason_without_best
from nlu.storage.cache import file_digest
from nlu.storage.resources import fetch
from nlu.storage.run_copies import complete, records_of

SEARCH = "search.json"
"""a folder with this file is that of a search"""
NAMED = re.compile(r"best|last|best-\d+")
LABELS = "labels.json"
"""in each checkpoint"""
ABOUT = "export.json"
"""in each folder that nlu.export writes"""
USED = ("average.safetensors", LABELS, "model.safetensors", "tokenizer.json")
"""the files of a checkpoint that determine predictions"""
GONE = {"nlu.models.encoders.re2.Re2": "train model=match_cnn task=match in its place"}
"""what to do about runs of a class that earlier versions had"""
KINDS = "a run's folder, RUN/best-2, RUN/last, a checkpoint's folder, or the folder of a search"


@dataclass(frozen=True)
class Located:
    """A checkpoint and its run."""

    run_dir: Path
    checkpoint: Path
    head_name: str | None = None
    """which of several heads is meant"""

    def of_head(self, name: str | None) -> "Located":
        """Return the same with the head that is meant; None where the run has but one.

        Raises UserError where the run has no such head, naming those that it has.
        """
        saved = saved_config(self.run_dir)
        if (gone := saved["model"].get(TARGET)) in GONE:
            raise UserError(f"{self.run_dir} is a run of {gone}, which this version lacks; {GONE[gone]}")
        names = names_of(saved)
        if names and name not in names:
            raise UserError(
                f"head_name is {'null' if name is None else name}, but {self.run_dir} has several heads; set head_name "
                f"to one of {', '.join(names)}"
            )
        if name is not None and not names:
            raise UserError(f"head_name is {name}, but {self.run_dir} has one head only; leave out head_name")
        return replace(self, head_name=name)


def digests_of(checkpoint: Path) -> list[str]:
    """Return the sha256 of weights, their moving average, labels and tokenizer."""
    # The other files, such as the state of the optimizer in `last`, may change without an effect on predictions.
    return [file_digest(path) for path in sorted(checkpoint.iterdir()) if path.name in USED]


def locate(reference: str, checkpoint: str = "best") -> Located:
    """Return the checkpoint that `run` and `checkpoint` name; for a search, the best checkpoint of its best trial.

    Raises UserError if it does not exist, with the checkpoints that do.
    """
    path = _found(reference, "run")
    # RUN/last is short for RUN/checkpoints/last; the folder RUN/last does not exist.
    if NAMED.fullmatch(path.name) and is_run(path.parent):
        if checkpoint != "best":
            raise UserError(f"run is {reference}, which names a checkpoint, but checkpoint is {checkpoint}; give one")
        path, checkpoint = path.parent, path.name
    elif (path / LABELS).is_file():
        if checkpoint != "best":
            raise UserError(f"run is {reference}, which is a checkpoint, but checkpoint is {checkpoint}; give one")
        return _of_checkpoint(complete(path), f"run is {reference}")
    run_dir = _run_of(path, reference)
    if NAMED.fullmatch(checkpoint) is None:
        return _of_checkpoint(complete(_found(checkpoint, "checkpoint")), f"checkpoint is {checkpoint}")
    return Located(run_dir, complete(_checkpoint_of(run_dir, checkpoint)))


def locate_unless_weights(config: Encoding) -> Located | None:
    """Return the checkpoint that encodes, None for the pretrained weights of `model`.

    Raises UserError unless one of both is named, and as `locate` does.
    """
    if (config.run is None) == (config.model is None):
        said = "neither run nor model is set" if config.run is None else "run and model are both set"
        raise UserError(f"{said}; set run=RUN for a trained run, or model=NAME for pretrained weights")
    return None if config.run is None else locate(config.run, config.checkpoint).of_head(config.head_name)


def locate_all(reference: str, checkpoint: str = "best") -> list[Located]:
    """Return the same as `locate`; for a run with several folds or seeds, one checkpoint for each of them.

    Raises UserError as `locate` does, and if some of them have not ended.
    """
    path = _found(reference, "run")
    if not path.is_dir() or not is_run(path) or not (several := parts(path)):
        return [locate(reference, checkpoint)]
    if not (path / RESULT).is_file():
        raise UserError(f"run is {reference}, and some of its runs have not ended; wait for them, or name one of them")
    return [locate(str(folder), checkpoint) for folder in several]


def _found(reference: str, what: str) -> Path:
    """Return the local path of a reference; for an object store, that of a copy of its run, without weights yet."""
    if not is_object(reference):
        return fetch(reference, what=what) if "://" in reference else Path(reference).expanduser()
    # The copy is made of the whole run, since a checkpoint is read together with the configuration of its run.
    top, within = reference.rstrip("/"), ""
    for part in (r"/checkpoints/[^/]+", rf"/({NAMED.pattern})"):
        if match := re.search(f"{part}$", top):
            top, within = top[: match.start()], match[0].strip("/")
            break
    return records_of(top, what) / within


def _run_of(path: Path, reference: str) -> Path:
    if not path.is_dir():
        raise UserError(f"run is {reference}, which is not a folder here; give {KINDS}")
    if (path / SEARCH).is_file():
        return _best_trial(path)
    if not is_run(path):
        found, _ = find_runs([path])
        inside = f"; it holds {_listed([run.folder for run in found], path)}: name one of them" if found else ""
        raise UserError(f"run is {reference}, which lacks the {CONFIG} of a run{inside or f'; give {KINDS}'}")
    if several := parts(path):
        raise UserError(
            f"run is {reference}, which consists of {len(several)} runs ({_listed(several, path)}); name one of them"
        )
    return path


def _best_trial(path: Path) -> Path:
    found, _ = find_runs([path])
    ranked = [run for run in found if run.state == "complete" and _value(run) is not None]
    if not ranked:
        raise UserError(f"run is {path}, a search without a complete trial; wait for one, or name a run")
    _, lower_is_better = metric_of(ranked[0].config)
    sign = -1 if lower_is_better else 1
    # Of equal trials `max` returns the first one, and `find_runs` sorts them by number.
    best = max(ranked, key=lambda run: sign * (_value(run) or 0.0))
    if is_run(best.folder.parent):
        raise UserError(
            f"run is {path}, a search whose best trial, {best.folder.parent}, consists of several runs; name one"
        )
    return best.folder


def _value(run: RunRecord) -> float | None:
    return run.value(run.set_name, run.metric)


def _checkpoint_of(run_dir: Path, name: str) -> Path:
    checkpoint = run_dir / "checkpoints" / ("best-1" if name == "best" else name)
    if (checkpoint / LABELS).is_file():
        return checkpoint
    # A folder with a dot in front is a checkpoint that is being written or replaced.
    there = sorted(path.parent.name for path in run_dir.glob(f"checkpoints/*/{LABELS}") if path.parent.name[0] != ".")
    if reason := reason_without_best(run_dir):
        remedy = "; set checkpoint=last" if "last" in there else "; train it again without that"
        raise UserError(f"{run_dir} has no checkpoint {name}: {reason}{remedy}")
    remedy = f"set checkpoint to one of {', '.join(there)}" if there else "wait until it has evaluated, or train it"
    if not there and any((run_dir / name).is_file() for name in (RESULT, VALID)):
        remedy = "hydra.sweeper.keep=best removes those of trials, trainer.save=false writes none; train it again"
    raise UserError(f"{run_dir} lacks a checkpoint {name}; {remedy}")


def _of_checkpoint(path: Path, said: str) -> Located:
    # Resolved first, since the path may be a link from elsewhere to RUN/checkpoints/NAME.
    run_dir = path.resolve().parent.parent
    if not (path / LABELS).is_file():
        raise UserError(f"{said}, which is not a checkpoint: it lacks {LABELS}; give RUN/checkpoints/NAME")
    if not is_run(run_dir):
        raise UserError(f"{said}, but {run_dir / CONFIG} of its run is missing; keep a checkpoint within its run")
    return Located(run_dir, path)


def _listed(folders: Sequence[Path], within: Path) -> str:
    names = [str(folder.relative_to(within)) for folder in folders]
    return ", ".join([*names[:5], "..."] if len(names) > 5 else names)
