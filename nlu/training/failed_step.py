"""The folder of a step whose loss or gradient is not finite, from which it runs again, also on another machine.

    RUN/nonfinite-STEP/report.json              where the first number was not finite, rows and texts, loss scales
                       run.json                 the configuration
                       model.safetensors, ...   the weights before the step, tokenizer and labels, as in a checkpoint
                       method.safetensors       what the method trains besides, if anything
                       batch-N.safetensors      the tokens and targets of each recorded micro-batch

Neither the data nor the store is needed to repeat it.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

import nlu
from nlu.config.errors import CheckpointError, UserError
from nlu.config.schema import Run
from nlu.data.collate import Batch
from nlu.data.mixture import MixedStore
from nlu.runs.failed_step import CONFIG, KEY, REPORT
from nlu.runs.freeing import NONFINITE
from nlu.storage.redaction import without_secrets
from nlu.training.build import frequencies
from nlu.training.nonfinite import NonFinite, RecordedPass, written
from nlu.training.parts import Training
from nlu.training.resuming import machine_as_recorded

ON_HOST = ("examples_B", "unit_counts_B", "unit_ends_U")
"""the arrays of a batch that are no tensors"""
TARGET, OF_METHOD = "target.", "method."
"""prefixes of the names of a batch's targets, and of what the method keeps for it"""


def keep_step(run: Training, config: Run, error: NonFinite) -> UserError:
    """Write the folder of a step that failed, and return the error with the command that repeats it.

    All ranks must call it with their own error. A disk that is full only changes the message.
    """
    stepper, ranks = run.stepper, run.stepper.ranks
    if not run.trainer.save:
        return _with(error, "the step is not saved for a replay, since trainer.save is false")
    tensors = {"model": stepper.parallel.state_dict(stepper.model)}
    if stepper.own is not None:
        tensors["method"] = stepper.parallel.state_dict(stepper.own)
    step, rank = ranks.from_first((error.report["step"], error.report["rank"]) if ranks.is_first else None)
    if rank and not stepper.parallel.sums_gradients(step):
        # Until the ranks meet, each has weights of its own.
        there = ranks.gather_to_first(_on_host(tensors) if ranks.rank == rank else None)
        tensors = tensors if there is None else there[rank]
    said = ""
    if ranks.is_first:
        batches = {f"batch-{number}": tensors_of(one) for number, one in enumerate(error.passes)}
        documents = {REPORT: _report(run, config, error), CONFIG: without_secrets(config.to_config())}
        try:
            folder = run.checkpoints.save_beside(f"{NONFINITE}{step}", {**tensors, **batches}, documents, step)
            said = f"the step is saved: python -m nlu.train {KEY}={folder} runs it again, also on another machine"
        except CheckpointError as refused:
            said = str(refused)
    return _with(error, ranks.from_first(said))


def _on_host(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    return {part: {name: value.cpu() for name, value in named.items()} for part, named in tensors.items()}


def _with(error: NonFinite, said: str) -> UserError:
    # Without the batches, since another process may print it.
    return UserError(*error.problems, said, summary=error.summary, remedy=error.remedy)


def _report(run: Training, config: Run, error: NonFinite) -> dict[str, Any]:
    members = run.store.members if isinstance(run.store, MixedStore) else {"": run.store}
    found: dict[str, Any] = written(
        {
            "version": nlu.__version__,
            "machine": machine_as_recorded(run.stepper.ranks),
            "run": str(run.run_dir.absolute()),
            "precision": config.choices.get("precision"),
            **error.report,
            "passes": [_facts_of(one) for one in error.passes],
            "frequencies": {name: frequencies(one) for name, one in members.items()},
        }
    )
    return found


def _facts_of(one: RecordedPass) -> dict[str, Any]:
    seed, epoch = one.batch.key
    return {
        "rank": one.rank, "micro_batch": one.micro, "is_own": one.is_own, "member": one.batch.member,
        "seed": seed, "epoch": epoch, "examples": one.batch.examples_B.tolist(),
    }  # fmt: skip


def tensors_of(one: RecordedPass) -> dict[str, Tensor]:
    """Return the tensors of a pass by name."""
    batch = one.batch
    found = {item.name: getattr(batch, item.name) for item in fields(batch)}
    found = {
        name: torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
        for name, value in found.items()
    } | {"lengths": torch.tensor(batch.lengths, dtype=torch.int64)}
    return {
        **{name: value for name, value in found.items() if isinstance(value, Tensor)},
        **{TARGET + name: value for name, value in batch.targets.items()},
        **{OF_METHOD + name: value for name, value in one.kept.items()},
    }


def passes_at(folder: Path, report: Mapping[str, Any]) -> list[RecordedPass]:
    """Return the recorded passes of a folder."""
    return [
        _pass_of(load_file(folder / f"batch-{number}.safetensors"), facts)
        for number, facts in enumerate(report["passes"])
    ]


def _pass_of(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> RecordedPass:
    of_batch: dict[str, Any] = {
        name: value.numpy() if name in ON_HOST else value for name, value in tensors.items() if "." not in name
    }
    batch = Batch(
        **of_batch
        | {
            "lengths": tensors["lengths"].tolist(),
            "targets": _below(TARGET, tensors),
            "key": (facts["seed"], facts["epoch"]),
            "member": facts["member"],
        }
    )
    return RecordedPass(batch, facts["rank"], facts["micro_batch"], facts["is_own"], _below(OF_METHOD, tensors))


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
