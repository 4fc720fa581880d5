"""Continue from a saved state: the conditions for it, and the differences that change bytes."""

import logging
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nlu.config.choices import choice_of
from nlu.config.errors import CheckpointError
from nlu.config.schema import Run
from nlu.config.targets import TARGET
from nlu.data.mixture import MixedStore
from nlu.data.opening import Store
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.runs.checkpoint import OrderKey, damaged, read_order, source_of
from nlu.runs.state import State
from nlu.training.ranks import Ranks
from nlu.training.saving import trained_parts
from nlu.training.step import Stepper

log = logging.getLogger(__name__)


def order_key_of(config: Run, store: Store, ranks: Ranks, model: nn.Module) -> OrderKey:
    """Return everything that determines the order of examples and the best evaluations; stored with the state."""
    trainer = config.trainer
    # The order in which several processes add numbers depends on it.
    strategy = {"parallel": choice_of("parallel", config.parallel[TARGET])} if ranks.world_size > 1 else {}
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
        "machine": machine_of(ranks) | versions_of(model) | strategy,
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
    found = []
    if saved["world_size"] != here["world_size"]:
        found.append(f"saved by {saved['world_size']} processes, continued by {here['world_size']}")
    names = {
        "device": "device",
        "torch": "version of torch",
        "threads": "number of threads",
        "cpu": "CPU's kernels",
        "parallel": "choice of parallel",
        "numpy": "version of numpy",
        "transformers": "version of transformers",
    }
    before, now = saved["machine"], here["machine"]
    return found + [
        f"saved with another {what} ({before[key]}), continued with {now[key]}"
        for key, what in names.items()
        if key in before and key in now and before[key] != now[key]
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
