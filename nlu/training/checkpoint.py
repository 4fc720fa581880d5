"""Checkpoints: folders that are whole or not there.

Each is written aside, synced to disk, marked COMPLETE and only then renamed into place. `last` is for going on,
`best-1` to `best-k` are for use; neither ever stands in for the other.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nlu.config.errors import CheckpointError
from nlu.data.tokenizing import Tokenizer
from nlu.storage.files import sync_folder
from nlu.training.state import Best, State

log = logging.getLogger(__name__)

COMPLETE = "COMPLETE"
SCORE = "score.json"
"""in the folder of a best checkpoint: which evaluation it is"""


class Checkpoints:
    """The checkpoints folder of one run; only rank 0 writes."""

    def __init__(self, run_dir: Path, *, config: dict[str, Any], labels: dict[str, Any], tokenizer: Tokenizer):
        self.folder = run_dir / "checkpoints"
        self._config = config
        self._labels = labels
        self._tokenizer = tokenizer

    def save_last(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None,
        state: State, order: dict[str, Any],
    ) -> None:  # fmt: skip
        """Replace `last`: weights, optimizer, moving average, state, and `order`, what the order of examples hangs on.

        Raises CheckpointError where the disk is full or does not take it; the older checkpoint then stands.
        """
        tensors = {"model": model.state_dict(), "optimizer": optimizer_tensors(model, optimizer)}
        if average is not None:
            tensors["average"] = average
        self._write("last", tensors, {"state.json": {"state": state.to_json(), "order": order}})

    def save_best(self, weights: dict[str, Tensor], best: list[Best]) -> None:
        """Write the newest of `best` and put `best-1` ... in the order of the list; what is not in it goes."""
        newest = max(best, key=lambda entry: entry.step)
        self._write(f".best-step-{newest.step}", {"model": weights}, {SCORE: _score(newest)})
        arrange_best(self.folder, [entry.step for entry in best])

    def take_over(self, checkpoints: Path, best: list[Best]) -> list[int]:
        """Copy the weights of these evaluations from another run's folder; returns the steps that it has.

        Raises CheckpointError where the disk does not take them; nothing of them then stays.
        """
        held = _held_steps(checkpoints)
        taken = [entry for entry in best if entry.step in held]
        try:
            for entry in taken:
                aside = self.folder / f".best-step-{entry.step}"
                shutil.copytree(held[entry.step], aside)
                (aside / SCORE).write_text(json.dumps(_score(entry), ensure_ascii=False, indent=1), encoding="utf-8")
                _sync(aside)
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise CheckpointError(
                f"{checkpoints} could not be copied to {self.folder}: {error}; free some space, or choose another "
                "hydra.run.dir"
            ) from error
        return [entry.step for entry in taken]

    def _write(self, name: str, tensors: dict[str, dict[str, Tensor]], documents: dict[str, Any]) -> None:
        new, final = self.folder / f".{name}.new", self.folder / name
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            for part, values in tensors.items():
                save_file(_contiguous(values), new / f"{part}.safetensors")
                # The library makes files for their owner alone; a run folder may be shared.
                (new / f"{part}.safetensors").chmod(0o666 & ~_umask())
            for document, content in {"config.json": self._config, "labels.json": self._labels, **documents}.items():
                (new / document).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
            self._tokenizer.save(new)
            _sync(new)
            (new / COMPLETE).touch()
            _sync(new)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(new, ignore_errors=True)
            raise self._failure(final, error) from error
        replace_folder(new, final)

    def _failure(self, final: Path, error: Exception) -> CheckpointError:
        free_mb = shutil.disk_usage(self.folder).free / 1e6
        stands = "the older one stands" if (final / COMPLETE).is_file() else "there is no older one"
        return CheckpointError(
            f"{final} could not be saved: {error}; {free_mb:.0f} MB are free there and {stands}; free some space, "
            "then run the same command with resume=auto"
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def replace_folder(new: Path, final: Path) -> None:
    """Put `new` in the place of `final`; at every instant one of `final`, `.NAME.new`, `.NAME.old` is complete."""
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    new.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(final.parent)


def find_last(run_dir: Path) -> Path | None:
    """Return the newest complete state of a run, mending the names that a kill between two renames leaves."""
    folder = run_dir / "checkpoints"
    for name in ("last", ".last.new", ".last.old"):
        if (folder / name / COMPLETE).is_file():
            if name != "last":
                shutil.rmtree(folder / "last", ignore_errors=True)
                (folder / name).rename(folder / "last")
                log.info("checkpoint %s was being replaced; %s is complete and stands for it", folder / "last", name)
            return folder / "last"
    return None


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
    held = _held_steps(folder)
    for path in [*folder.glob("best-*"), *folder.glob(".best-step-*")]:
        if path not in held.values():
            shutil.rmtree(path)
    for step, path in held.items():
        aside = folder / f".best-step-{step}"
        if path != aside:
            path.rename(aside)
        if step not in steps:
            shutil.rmtree(aside)
    for place, step in enumerate(steps, 1):
        if step in held:
            (folder / f".best-step-{step}").rename(folder / f"best-{place}")
    sync_folder(folder)


def _held_steps(folder: Path) -> dict[int, Path]:
    """The complete best checkpoints of a folder, whatever they are named, by step."""
    held: dict[int, Path] = {}
    for path in [*folder.glob("best-*"), *folder.glob(".best-step-*")]:
        if (path / COMPLETE).is_file():
            held.setdefault(json.loads((path / SCORE).read_text())["step"], path)
    return held


def load_last(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None
) -> tuple[State, dict[str, Any]]:
    """Put a saved state back in place; returns the state and the `order` it was saved with.

    Raises CheckpointError where a file is damaged or belongs to another model.
    """
    if not (path / "optimizer.safetensors").is_file():
        raise CheckpointError(
            f"{path} holds no state of the optimizer, which nlu.report clean removes from runs that have ended; start "
            f"anew from its weights with model.pretrained={path.parent.parent}/best"
        )
    try:
        saved = json.loads((path / "state.json").read_text())
        model.load_state_dict(load_file(path / "model.safetensors"))
        load_optimizer_tensors(model, optimizer, load_file(path / "optimizer.safetensors"))
        if average is not None:
            for name, value in load_file(path / "average.safetensors").items():
                average[name].copy_(value)
        return State.from_json(saved["state"]), saved["order"]
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).partition("\n")[0].rstrip(": ") or type(error).__name__
        raise CheckpointError(
            f"{path} cannot be continued from ({reason}): it is damaged, or of another model or labels; give another "
            "with resume=PATH, or start anew in another hydra.run.dir"
        ) from error


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as `<field>:<parameter name>`."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}:{name}"] = torch.as_tensor(value)
    return tensors


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Set the optimizer's state from what `optimizer_tensors` gave."""
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        key, _, name = full_name.partition(":")
        parameter = parameters[name]
        # The step counter of a fused optimizer lives with the parameter, and so do its moments.
        optimizer.state[parameter][key] = value.to(parameter.device)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
