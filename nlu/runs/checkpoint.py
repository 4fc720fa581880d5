"""Checkpoints: folders that are whole or not there.

Each is settled as `nlu.storage.settle` does it. `last` is to continue from, `best-1` to `best-k` are to use; neither
ever replaces the other.
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nlu.config.errors import CheckpointError
from nlu.runs.state import Best, State
from nlu.storage.files import read_json, sync_folder, umask, write_json
from nlu.storage.settle import aside, candidates, find_whole, is_whole, remove, replace

log = logging.getLogger(__name__)

OrderKey = dict[str, Any]
"""what the order of examples and the best evaluations of a run depend on, by name"""

TAKEN = ".taken"
"""in a run's folder: the checkpoints of another run, until they are this one's"""
ORIGIN = "taken_from.json"
"""in a folder of checkpoints that began as another run's: `path`, as it was written, and `place`, where that lay"""
STEP = "step"
"""in the metadata of each file of tensors of `last`: the step that it was saved at"""
SCORE = "score.json"
"""in the folder of a best checkpoint: which evaluation it is"""


class Savable(Protocol):
    """What a checkpoint holds in a separate file beside the weights: a tokenizer."""

    def save(self, folder: Path) -> None:
        """Write it into a folder."""


class Checkpoints:
    """The checkpoints folder of one run; only rank 0 writes."""

    def __init__(self, run_dir: Path, *, config: dict[str, Any], labels: dict[str, Any], tokenizer: Savable):
        self.folder = run_dir / "checkpoints"
        self._config = config
        self._labels = labels
        self._tokenizer = tokenizer

    def save_last(self, tensors: Mapping[str, dict[str, Tensor]], state: State, order: OrderKey) -> None:
        """Replace `last`: tensors by part (model, optimizer, ...), state, and `order`, what the order of examples
        depends on.

        Raises CheckpointError where the disk is full or does not take it; the older checkpoint then stands.
        """
        document = {"state": state.to_json(), "order": order, "parts": sorted(tensors)}
        self._write("last", tensors, {"state.json": document}, step=state.step)

    def save_best(self, weights: dict[str, Tensor], best: list[Best]) -> None:
        """Write the newest of `best`, beside all that the saved state names: `arrange` drops some of these once a newer
        state is saved. What was written since that state and is not in `best` any more goes at once."""
        newest = max(best, key=lambda entry: entry.step)
        self._write(f".best-step-{newest.step}", {"model": weights}, {SCORE: _score(newest)})
        for path in self.folder.glob(".best-step-*"):
            # `arrange` has named those of the saved state best-1, best-2, ...
            if path.name.removeprefix(".best-step-") not in {str(entry.step) for entry in best}:
                remove(path)

    def arrange(self, best: list[Best]) -> None:
        """Put `best-1` ... in the order of the list; what is not in it goes, so the saved state must not want it."""
        arrange_best(self.folder, [entry.step for entry in best])

    def at(self, folder: Path) -> Self:
        """The same checkpoints in another folder."""
        elsewhere = copy(self)
        elsewhere.folder = folder
        return elsewhere

    def judge_anew(self, best: list[Best]) -> None:
        """Write down what these evaluations count for by now, and name their checkpoints by it; the others go."""
        held = held_steps(self.folder)
        for entry in best:
            write_json(held[entry.step] / SCORE, _score(entry))
        arrange_best(self.folder, [entry.step for entry in best])

    def _write(
        self, name: str, tensors: Mapping[str, dict[str, Tensor]], documents: dict[str, Any], step: int | None = None
    ) -> None:
        final = self.folder / name
        new = None
        try:
            new = aside(final)
            metadata = None if step is None else {STEP: str(step)}
            for part, values in tensors.items():
                save_file(_separate(values), new / f"{part}.safetensors", metadata)
                # The library makes files that only their owner can read; a run folder may be shared.
                (new / f"{part}.safetensors").chmod(0o666 & ~umask())
            for document, content in {"config.json": self._config, "labels.json": self._labels, **documents}.items():
                (new / document).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
            self._tokenizer.save(new)
            replace(new, final)
        except (OSError, SafetensorError) as error:
            if new is not None:
                with suppress(OSError):
                    remove(new)
            raise self._failure(final, error) from error

    def _failure(self, final: Path, error: Exception) -> CheckpointError:
        free_mb = shutil.disk_usage(self.folder.parent).free / 1e6
        stands = "the older one stands" if any(map(is_whole, candidates(final))) else "there is no older one"
        again = "again" if self.folder.name == TAKEN else "with resume=auto"
        return CheckpointError(
            f"{final} could not be saved: {error}; {free_mb:.0f} MB are free there and {stands}; free some space, "
            f"then run the same command {again}"
        )


def find_last(run_dir: Path) -> Path | None:
    """Return the newest complete state of a run, repairing the names that a kill between two renames leaves."""
    return find_whole(run_dir / "checkpoints" / "last")


def source_of(path: Path) -> Path:
    """Where a checkpoint came from: of one that was just taken from another run, its place there."""
    known = read_json(path.parent / ORIGIN) if path.parent.name == TAKEN else None
    return Path(known["place"]) if known else path


def remove_replaced(folder: Path) -> None:
    """Delete what a kill left of replacing `last`; for the run that holds the folder, once `find_last` has looked."""
    for name in (".last.new", ".last.old"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _score(entry: Best) -> dict[str, Any]:
    return {"step": entry.step, "value": entry.value, "metrics": entry.metrics}


def arrange_best(folder: Path, steps: list[int]) -> None:
    """Name the best checkpoints of these steps best-1, best-2, ... and delete all others.

    Safe to repeat after a kill at any instant: folders are known by the step they hold, not by their name.
    """
    held = held_steps(folder)
    for path in [*folder.glob("best-*"), *folder.glob(".best-step-*")]:
        if path not in held.values():
            remove(path)
    for step, path in held.items():
        unnamed = folder / f".best-step-{step}"
        if path != unnamed:
            path.rename(unnamed)
        if step not in steps:
            remove(unnamed)
    for place, step in enumerate(steps, 1):
        if step in held:
            (folder / f".best-step-{step}").rename(folder / f"best-{place}")
    sync_folder(folder)


def best_of(last: Path) -> list[dict[str, Any]]:
    """The best evaluations that a saved state knows, best first."""
    saved = json.loads((last / "state.json").read_text(encoding="utf-8"))
    return saved.get("state", {}).get("best", [])


def held_steps(folder: Path) -> dict[int, Path]:
    """The complete best checkpoints of a folder, whatever they are named, by step."""
    held: dict[int, Path] = {}
    for path in [*folder.glob("best-*"), *folder.glob(".best-step-*")]:
        if is_whole(path):
            held.setdefault(json.loads((path / SCORE).read_text())["step"], path)
    return held


def read_order(path: Path) -> tuple[int, OrderKey]:
    """Return the step of a saved state and the `order` saved with it.

    Raises CheckpointError where it is damaged, or an earlier version saved it.
    """
    try:
        saved = json.loads((path / "state.json").read_text(encoding="utf-8"))
        step, order = saved["state"]["step"], saved["order"]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise damaged(path, error) from error
    try:
        State.from_json(saved["state"])
    except (KeyError, TypeError) as error:
        shown = source_of(path)
        raise CheckpointError(
            f"{shown} was saved by an earlier version, whose state has other parts ({error}); continue with that "
            f"version, or take only its weights with model.pretrained={shown.parent.parent}/last in another "
            "hydra.run.dir"
        ) from error
    return step, order


@dataclass(frozen=True)
class Saved:
    """A saved state, opened; its tensors are read part by part."""

    folder: Path
    state: State
    order: OrderKey
    parts: frozenset[str]

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Read the tensors of a part. Raises ValueError where they were saved at another step than the state."""
        file = self.folder / f"{part}.safetensors"
        with safe_open(file, "pt") as opened:
            step = (opened.metadata() or {}).get(STEP)
        if step != str(self.state.step):
            raise ValueError(f"{file.name} is of step {step}, state.json of step {self.state.step}")
        return load_file(file)


@contextmanager
def opened_last(path: Path) -> Iterator[Saved]:
    """Open a saved state for the block, which puts it in place.

    Raises CheckpointError where a file is damaged, or where the block fails because the state is of another model.
    """
    shown = source_of(path)
    if not (path / "optimizer.safetensors").is_file():
        raise CheckpointError(
            f"{shown} holds no state of the optimizer, which nlu.report clean removes from runs that have ended; start "
            f"a new run from its weights with model.pretrained={shown.parent.parent}/best"
        )
    try:
        saved = json.loads((path / "state.json").read_text())
        yield Saved(path, State.from_json(saved["state"]), saved["order"], frozenset(saved["parts"]))
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise damaged(shown, error) from error


def damaged(path: object, error: Exception) -> CheckpointError:
    """Return what is to be said of a state that cannot be read."""
    reason = str(error).partition("\n")[0].rstrip(": ") or type(error).__name__
    return CheckpointError(
        f"{path} cannot be continued from ({reason}): it is damaged, or of another model or labels; give another "
        "with resume=PATH, or start anew in another hydra.run.dir"
    )


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, each with its own memory: the format cannot hold one tensor under two names."""
    separate: dict[str, Tensor] = {}
    seen = set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        if value.numel() and value.untyped_storage().data_ptr() in seen:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        separate[name] = value
    return separate
