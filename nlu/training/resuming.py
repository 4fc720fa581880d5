"""Save `last` and continue from it: the tensors of every rank, and the differences that prevent it or change bytes."""

import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import CheckpointError
from nlu.config.schema import Run
from nlu.data.mixture import MixedStore
from nlu.data.opening import Store
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.optim.optimizer import named_parameters
from nlu.runs.checkpoint import OrderKey, damaged, opened_last, read_order, source_of
from nlu.runs.state import State
from nlu.tasks.composite import task_of
from nlu.training.evaluation import keep_predictions
from nlu.training.meter import count_costs
from nlu.training.parts import Training
from nlu.training.ranks import Ranks
from nlu.training.step import Stepper

log = logging.getLogger(__name__)

Tensors = dict[str, dict[str, Tensor]]
"""the tensors of each part, which becomes a file, by name"""

SET_BY = {
    "alpha": "data.alpha",
    "folds": "folds.count",
    "batch_size": "trainer.batch_size",
    "batch_tokens": "trainer.batch_tokens",
    "eval_rows": "trainer.eval_rows",
    "accumulation": "trainer.accumulation",
    "bucket_batches": "trainer.bucket_batches",
    "window_rows": "trainer.window_rows",
}
"""keys of the configuration that set an entry of the order under another name"""
PASSED_OVER = {"world_size", "store", "machine"}
"""differences that do not prevent a run from continuing: they are only logged, or contained in others"""


@dataclass(frozen=True)
class TrainedParts:
    """Everything that training changes, on this rank."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor] | None
    """the moving average of the model's weights, by parameter"""
    own: nn.Module | None = None
    """a module that the method trains in addition to the model"""

    def tensors(self) -> Tensors:
        """Return all tensors, which are equal on all ranks."""
        parts = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.model, self.own, self.optimizer),
        }
        if self.average is not None:
            parts["average"] = self.average
        if self.own is not None:
            parts["method"] = self.own.state_dict()
        return parts

    def load(self, path: Path) -> tuple[State, OrderKey]:
        """Load a saved state; returns the state and the `order` saved with it.

        What the saved run did not have, such as moments of weights that it had frozen, a moving average or the own
        module of a method, begins here; what this run does not have is left out. Raises CheckpointError if a file is
        damaged or belongs to another model.
        """
        with opened_last(path) as saved:
            load_weights(self.model, saved.tensors("model"))
            if self.own is not None and "method" in saved.parts:
                load_weights(self.own, saved.tensors("method"))
            load_optimizer_tensors(self.model, self.own, self.optimizer, saved.tensors("optimizer"))
            if self.average is not None:
                self._load_average(saved.tensors("average") if "average" in saved.parts else None)
                if "average" not in saved.parts:
                    log.info("%s has no moving average; the average starts from its weights", source_of(path))
            return saved.state, saved.order

    @torch.no_grad()
    def _load_average(self, saved: dict[str, Tensor] | None) -> None:
        """Set the moving average to a saved one, or to the current weights."""
        assert self.average is not None
        for name, parameter in self.model.named_parameters():
            if name in self.average:
                # A run that is continued with `trainer.ema_decay` set for the first time starts its average here.
                self.average[name].copy_(saved[name] if saved and name in saved else parameter)


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights and buffers. Raises ValueError, with nothing changed, if names or shapes are those of another."""
    own = module.state_dict()
    if own.keys() != weights.keys():
        raise ValueError(f"{min(own.keys() ^ weights.keys())} is in only one of the two")
    for name, value in own.items():
        if value.shape != weights[name].shape:
            raise ValueError(f"{name} has shape {tuple(weights[name].shape)} there, {tuple(value.shape)} here")
    # By the module itself, which may refuse a state.
    module.load_state_dict(weights)


def optimizer_tensors(model: nn.Module, own: nn.Module | None, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the optimizer by `<field>:<parameter name>`."""
    return {
        f"{key}:{name}": torch.as_tensor(value)
        # By name and not by torch's index of parameters, so that a state does not depend on the grouping of parameters.
        for name, parameter in named_parameters(model, own)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    model: nn.Module,
    own: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
) -> None:
    """Set the state of the optimizer from a result of `optimizer_tensors`."""
    parameters = dict(named_parameters(model, own))
    for full_name, value in tensors.items():
        key, _, name = full_name.partition(":")
        # A run that was begun with other frozen weights, or another method, has moments that this one does not use.
        if name in parameters and parameters[name].requires_grad:
            # The step counter and the moments of a fused optimizer are on the device of the parameter.
            optimizer.state[parameters[name]][key] = value.to(parameters[name].device)


def save_last(run: Training) -> None:
    """Replace checkpoints/last.

    Every rank must call it, since each may hold only a part of every tensor. Rank 0 writes, and the others wait, so
    that no rank runs ahead of the saved state.

    The predictions of the best evaluation are also replaced here, so that they match the best evaluation in the state.
    Best checkpoints that the new state no longer names are removed last: if the run is killed before, it continues from
    the old state, which still names them.
    """
    run.stepper.phases.begin("saving")
    run.journal.gather(run.state.window)
    # A continued run adds to them, so its next row has the time of all steps since this one.
    count_costs(run)
    # Equal on all ranks, since keep_predictions is a collective. After a kill between these files and the state, the
    # run reaches the same evaluation again and writes the same bytes.
    for name, one in run.unsaved.items():
        task = task_of(run.task, one.part.member)
        step, rows = run.state.best[0].step, run.sampled_rows.get(name)
        keep_predictions(run.run_dir, name, one, task, run.stepper.ranks, step=step, sampled_rows=rows)
        one.spool.close()
    run.unsaved = {}
    tensors = trained_parts(run.stepper).tensors() if run.trainer.save else {}
    run.state.precision = run.stepper.precision.state()
    if run.stepper.ranks.is_first:
        # A run that continues from this state does not write earlier rows again, so they must be on the disk.
        for table in run.tables.values():
            table.sync()
        run.journal.sync()
        run.checkpoints.save_last(tensors, run.state, run.order_key)
        run.checkpoints.arrange(run.state.best)
        run.after_save()
    run.stepper.ranks.barrier()
    run.stepper.phases.begin("other")


def trained_parts(stepper: Stepper) -> TrainedParts:
    """Return everything that training changes."""
    return TrainedParts(stepper.model, stepper.optimizer, stepper.average, stepper.own)


def order_key_of(config: Run, store: Store, ranks: Ranks, model: nn.Module) -> OrderKey:
    """Return everything that determines the order of examples and the best evaluations; stored with the state."""
    trainer = config.trainer
    return {
        **trained_on(config, store),
        # The best evaluations in the state are of these sets, ranked by the metric of the first one.
        "evaluated": [[name, store.digests[name]] for name in store.of_role("dev")],
        "eval_rows": trainer.eval_rows, "store": store.folder.name,
        # Of rows that are still written, the number is not known.
        "train_examples": None if config.data.get("stream") else sum(map(len, store.of_role("train").values())),
        "seed": config.seed, "folds": config.folds.count, "fold": config.fold,
        # It only decides the batches of evaluations where training counts tokens.
        "batch_size": None if trainer.batch_tokens else trainer.batch_rows, "batch_tokens": trainer.batch_tokens,
        "accumulation": trainer.accumulation,
        "bucket_batches": trainer.bucket_batches, "window_rows": trainer.window_rows, "world_size": ranks.world_size,
        "machine": machine_of(ranks) | versions_of(model),
    }  # fmt: skip


def trained_on(config: Run, store: Store) -> dict[str, object]:
    """Return what identifies the training rows and, of a mixture, how often each set is taken."""
    if not isinstance(store, MixedStore):
        return {"train": store.digests["train"]}
    return {"train": [[name, store.digests[name]] for name in store.of_role("train")], "alpha": config.data["alpha"]}


def machine_of(ranks: Ranks) -> dict[str, object]:
    """Return the hardware and settings that affect the bytes of a run, besides its configuration and `versions_of`."""
    cuda = ranks.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(ranks.device) if cuda else f"cpu {platform.machine()}",
        "torch": torch.__version__,
        # They only matter on a CPU.
        "threads": 0 if cuda else torch.get_num_threads(),
        # The instruction sets of the matrix kernels.
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def versions_of(model: nn.Module) -> dict[str, str]:
    """Return the versions of libraries other than torch that affect the bytes of a run.

    numpy's generators determine the order of examples and the dropout masks on a CPU, and may change with a version.
    transformers is included if the model uses its modules.
    """
    uses_transformers = any(type(module).__module__.startswith("transformers.") for module in model.modules())
    return {"numpy": np.__version__} | ({"transformers": version("transformers")} if uses_transformers else {})


def resume(checkpoint: Path, stepper: Stepper, order_key: OrderKey, tokenizer: Tokenizer) -> State:
    """Load a saved state.

    Raises CheckpointError if its position belongs to another order of examples, if its best evaluations are of other
    sets, or if its tokens have other numbers. The rows are compared first, since a vocabulary may depend on them, and
    weights are read last.
    """
    step, saved = read_order(checkpoint)
    # By the keys of this version: an older state may lack one, which then counts as a difference.
    if differences := [key for key in order_key if key not in PASSED_OVER and saved.get(key) != order_key[key]]:
        raise CheckpointError(
            *(_difference(key, saved.get(key), order_key[key]) for key in differences),
            summary=f"{source_of(checkpoint)} stands at step {step} of a run that this one cannot continue",
            remedy="to continue, set the values that it has there and use the same files; or take only its weights "
            "with model.pretrained=RUN/last",
        )
    _require_vocabulary(checkpoint, tokenizer)
    # Weights last: what was checked before costs milliseconds, and a refusal must change nothing.
    state, _ = trained_parts(stepper).load(checkpoint)
    # Only afterwards, since building the precision has set its initial scale.
    stepper.precision.load_state(state.precision)
    for change in changes(saved, order_key):
        log.warning("%s, so the bytes may differ from an unbroken run", change)
    log.info("continuing from %s at step %d", source_of(checkpoint), state.step)
    return state


def _require_vocabulary(checkpoint: Path, tokenizer: Tokenizer) -> None:
    """Raise CheckpointError if tokens have other numbers than those with which the weights were trained.

    With the same rows, this happens if another version has built the vocabulary.
    """
    last, before = source_of(checkpoint), tokenizer_at(checkpoint)
    if before is not None and before.vocabulary != tokenizer.vocabulary:
        raise CheckpointError(
            f"{last} was trained with another vocabulary than the one that this version builds from the same rows; "
            f"continue it with the version that began it, or take its weights and its vocabulary with "
            f"model.pretrained={last.parent.parent}/last in another hydra.run.dir"
        )


def tokenizer_at(checkpoint: Path) -> Tokenizer | None:
    """Return the tokenizer of a saved state, None if it has none. Raises CheckpointError if it is damaged."""
    try:
        return load_tokenizer(checkpoint, None)
    except Exception as error:
        # The library raises different classes for files that it cannot read.
        raise damaged(source_of(checkpoint), error) from error


def changes(saved: OrderKey, here: OrderKey) -> list[str]:
    """Return a sentence for each difference from the saved state that affects the bytes of a run."""
    before, now = ({"processes": each["world_size"], **each["machine"]} for each in (saved, here))
    return [
        f"saved with {key} {before[key]}, continued with {now[key]}"
        for key in before
        if key in now and before[key] != now[key]
    ]


def _difference(key: str, there: object, here: object) -> str:
    """Return a sentence about a difference between the order of a saved state and that of this run."""
    if key == "train":
        return "the training rows, or what turns them into tokens and labels, are not those of that run"
    if key == "evaluated":
        return (
            "the rows that are scored while training, or what turns them into tokens and labels, are not those of that "
            "run; only those of data.test may differ"
        )
    return f"{SET_BY.get(key, key)}: {there} there, {here} here"
