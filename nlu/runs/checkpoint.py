"""Checkpoints: folders that are complete or absent.

Each is written as `nlu.storage.settle` describes. `last` is for continuing a run, `best-1` to `best-k` are for using
it; neither ever replaces the other.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from torch import Tensor

from nlu.config.errors import CheckpointError
from nlu.runs.state import Best, State
from nlu.storage.files import read_json, sync_folder, umask
from nlu.storage.settle import aside, candidates, find_whole, is_whole, remove, replace
from nlu.storage.tensors import Damaged, load_tensors, origin_of, save_tensors

OrderKey = dict[str, Any]
"""by name, what the order of examples and the choice of the best evaluations depend on"""

TAKEN = ".taken"
"""in a run folder: checkpoints of another run, before they become those of this run"""
ORIGIN = "taken_from.json"
"""in checkpoints that were taken from another run: `path`, as it was written, and `place`, the folder it named"""
SCORE = "score.json"
"""in the folder of a best checkpoint: its evaluation"""


class Ranks(Protocol):
    """The part of `nlu.training.ranks.Ranks` that is needed here."""

    def from_first(self, value: Any) -> Any:
        """Return the value of rank 0 on every rank."""


class Savable(Protocol):
    """A part of a checkpoint that writes its own files: a tokenizer."""

    def save(self, folder: Path) -> None:
        """Write its files into a folder."""


class Checkpoints:
    """The checkpoints folder of one run; only rank 0 writes."""

    def __init__(
        self, run_dir: Path, *, config: Mapping[str, object], labels: Mapping[str, object], tokenizer: Savable
    ):
        self.folder = run_dir / "checkpoints"
        self._config = config
        self._labels = labels
        self._tokenizer = tokenizer

    def save_last(self, tensors: Mapping[str, dict[str, Tensor]], state: State, order: OrderKey) -> None:
        """Replace `last` by tensors of each part (model, optimizer, ...), the state, and the `order` of examples.

        Raises CheckpointError if the disk is full or refuses; the previous checkpoint then stays.
        """
        # In the same folder as the tensors, so that one rename replaces both.
        document = {"state": state.to_json(), "order": order, "parts": sorted(tensors)}
        self._write("last", tensors, {"state.json": document}, step=state.step)

    def save_best(self, weights: dict[str, Tensor], best: list[Best]) -> None:
        """Write the newest checkpoint of `best`, and keep all that the saved state names.

        `arrange` removes those that are not needed once a newer state is saved. Checkpoints that were written after the
        saved state and are not in `best` any more are removed at once.
        """
        # `best` is ordered by value, but only the evaluation that has just entered it lacks a checkpoint.
        newest = max(best, key=lambda entry: entry.step)
        self._write(f".best-step-{newest.step}", {"model": weights}, {SCORE: _score(newest)})
        for path in self.folder.glob(".best-step-*"):
            # Those of the saved state have the names best-1, best-2, ... since `arrange`.
            if path.name.removeprefix(".best-step-") not in {str(entry.step) for entry in best}:
                remove(path)

    def arrange(self, best: list[Best]) -> None:
        """Name the checkpoints `best-1`, ... in the order of the list. Others are removed, so save the state before."""
        arrange_best(self.folder, [entry.step for entry in best])

    def best_weights(self) -> dict[str, Tensor]:
        """Return the weights of the best evaluation. Every rank may call it."""
        return load_tensors(self.folder / "best-1" / "model.safetensors")

    def _write(
        self,
        name: str,
        tensors: Mapping[str, dict[str, Tensor]],
        documents: Mapping[str, object],
        step: int | None = None,
    ) -> None:
        final = self.folder / name
        new = None
        try:
            new = aside(final)
            for part, values in tensors.items():
                save_tensors(new / f"{part}.safetensors", _separate(values), step)
                # safetensors creates files that only their owner can read, but a run folder may be shared.
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
        stands = "the previous one stays" if any(map(is_whole, candidates(final))) else "a previous one does not exist"
        again = "again" if self.folder.name == TAKEN else "with resume=auto"
        return CheckpointError(
            f"{final} could not be saved: {error}; {free_mb:.0f} MB are free there and {stands}; free some space, "
            f"then run the same command {again}"
        )


class Unsaved(Checkpoints):
    """The checkpoints of a run that writes none; rank 0 keeps the best weights in memory if they are `wanted`."""

    def __init__(self, run_dir: Path, ranks: Ranks, *, wanted: bool):
        super().__init__(run_dir, config={}, labels={}, tokenizer=_Nothing())
        self._ranks, self._wanted = ranks, wanted
        self._best: dict[str, Tensor] = {}

    def save_last(self, tensors: Mapping[str, dict[str, Tensor]], state: State, order: OrderKey) -> None:
        """Do nothing."""

    def save_best(self, weights: dict[str, Tensor], best: list[Best]) -> None:
        """Keep the weights if the evaluation that has just entered `best` is the first of them."""
        if self._wanted and best[0].step == max(entry.step for entry in best):
            # Copied, since training changes the tensors in place; to the host, which has more memory.
            self._best = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}

    def arrange(self, best: list[Best]) -> None:
        """Do nothing."""

    def best_weights(self) -> dict[str, Tensor]:
        """Return the weights of the best evaluation, on the host. Every rank must call it."""
        found: dict[str, Tensor] = self._ranks.from_first(self._best)
        return found


class _Nothing:
    def save(self, folder: Path) -> None:
        """Write no file."""


def find_last(run_dir: Path) -> Path | None:
    """Return the newest complete state of a run, after repairing the names that a kill left; else None."""
    return find_whole(run_dir / "checkpoints" / "last")


def source_of(path: Path) -> Path:
    """Return the original path of a checkpoint, which differs for one that was just taken from another run."""
    known = read_json(path.parent / ORIGIN) if path.parent.name == TAKEN else None
    return Path(known["place"]) if known else path


def remove_replaced(folder: Path) -> None:
    """Delete what a kill left of replacing `last`. Only for the run that holds the folder, after `find_last`."""
    for name in (".last.new", ".last.old"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _score(entry: Best) -> dict[str, object]:
    known: dict[str, object] = {"step": entry.step, "value": entry.value, "metrics": entry.metrics}
    return known | ({"sampled_rows": entry.rows} if entry.rows else {})


def arrange_best(folder: Path, steps: list[int]) -> None:
    """Name the best checkpoints of these steps best-1, best-2, ... and delete all others.

    It can be repeated after a kill at any instant, since folders are identified by their step and not by their name.
    """
    held = held_steps(folder)
    for path in [*folder.glob("best-*"), *folder.glob(".best-step-*")]:
        # Incomplete ones, which a kill left, and a second one of the same step.
        if path not in held.values():
            remove(path)
    # First all get a name by their step, then by their place: a direct rename could meet a name that is still in use.
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


def held_steps(folder: Path) -> dict[int, Path]:
    """Return the complete best checkpoints of a folder by step, under any name."""
    held: dict[int, Path] = {}
    for path in [*folder.glob("best-*"), *folder.glob(".best-step-*")]:
        if is_whole(path):
            held.setdefault(json.loads((path / SCORE).read_text())["step"], path)
    return held


def read_order(path: Path) -> tuple[int, OrderKey]:
    """Return the step of a saved state and the `order` saved with it.

    Raises CheckpointError if it is damaged, or was saved by an earlier version.
    """
    try:
        saved = json.loads((path / "state.json").read_text(encoding="utf-8"))
        step, order = saved["state"]["step"], saved["order"]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise damaged(path, error) from error
    try:
        # Checked first, so that a state of an earlier version is refused before weights are read.
        State.from_json(saved["state"])
    except (KeyError, TypeError) as error:
        shown = source_of(path)
        raise CheckpointError(
            f"{shown} was saved by an earlier version, whose state has different parts ({error}); continue with that "
            f"version, or take only its weights with model.pretrained={shown.parent.parent}/last in another "
            "hydra.run.dir"
        ) from error
    return step, order


@dataclass(frozen=True)
class Saved:
    """An open saved state, whose tensors are read part by part."""

    folder: Path
    state: State
    order: OrderKey
    parts: frozenset[str]

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Read the tensors of a part, on the CPU. Raises ValueError if they are damaged or of another step."""
        file = self.folder / f"{part}.safetensors"
        found, step = origin_of(file)
        if found not in (part, None):
            raise ValueError(f"{file.name} has the tensors of {found}.safetensors")
        # Loading tensors of one save with the state of another would train on, with wrong results and without an error.
        if step != str(self.state.step):
            raise ValueError(f"{file.name} is of step {step}, state.json of step {self.state.step}")
        return load_tensors(file)


@contextmanager
def opened_last(path: Path) -> Iterator[Saved]:
    """Open a saved state for the block, which loads it.

    Raises CheckpointError if a file is damaged, or if the block fails because the state is that of another model.
    """
    shown = source_of(path)
    if not (path / "optimizer.safetensors").is_file():
        raise CheckpointError(
            f"{shown} holds no state of the optimizer, which nlu.report clean removes from finished runs; start a "
            f"new run from its weights with model.pretrained={shown.parent.parent}/best"
        )
    try:
        saved = json.loads((path / "state.json").read_text())
        yield Saved(path, State.from_json(saved["state"]), saved["order"], frozenset(saved["parts"]))
    # torch raises RuntimeError for weights with other names or shapes.
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise damaged(shown, error) from error


def damaged(path: object, error: Exception) -> CheckpointError:
    """Return the error for a state that cannot be read."""
    reason = str(error).partition("\n")[0].rstrip(": ") or type(error).__name__
    what = "it is damaged" if isinstance(error, Damaged) else "it is damaged, or has another model or other labels"
    return CheckpointError(
        f"{path} cannot be continued from ({reason}): {what}; give another with resume=PATH, or start from step 0 in "
        "another hydra.run.dir"
    )


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, each with its own memory, since safetensors rejects tensors that share memory."""
    separate: dict[str, Tensor] = {}
    seen = set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        if value.numel() and value.untyped_storage().data_ptr() in seen:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        separate[name] = value
    return separate
