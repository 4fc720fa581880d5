"""The parts of a run from its validated configuration: data, model, optimizer, state."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nlu.config.durations import Clock
from nlu.config.errors import CheckpointError, UserError
from nlu.config.schema import Trainer
from nlu.config.targets import build
from nlu.data.dataset import Files
from nlu.data.folds import Fold
from nlu.data.prepare import Store, prepare
from nlu.data.seeds import stable_seed
from nlu.display.progress import Progress
from nlu.models.pretrained import Pretrained, load_into, open_pretrained
from nlu.models.task_model import TaskModel
from nlu.storage.resources import fetch
from nlu.training.checkpoint import Checkpoints, load_last
from nlu.training.distributed import Ranks
from nlu.training.loop import Training
from nlu.training.state import State
from nlu.training.step import Stepper

log = logging.getLogger(__name__)


def build_run(
    config: dict[str, Any], trainer: Trainer, run_dir: Path, ranks: Ranks, progress: Progress,
    checkpoint: Path | None,
) -> Training:  # fmt: skip
    """Build every part of the run and, from a checkpoint, put its state in place."""
    trusted = config["trusted_packages"]
    task, store, source = build_data(config, ranks, progress)
    require_metric(trainer, task, store)
    torch.manual_seed(stable_seed(config["seed"], "init"))
    backbone = build(config["model"], store.tokenizer.vocab_size, source, trusted=trusted)
    model = TaskModel(backbone, task.layout, len(store.labels))
    if (limit := backbone.max_positions) and config["data"]["max_len"] > limit:
        raise UserError(
            f"data.max_len is {config['data']['max_len']}, but the model has {limit} positions; set it lower"
        )
    if source is not None and not getattr(backbone, "random_weights", False):
        load_into(model, source, labels=store.labels)
    stepper = build_stepper(config, trainer, model.to(ranks.device), ranks)
    labels = {"layout": task.layout, "labels": store.labels}
    checkpoints = Checkpoints(run_dir, config=backbone.settings(), labels=labels, tokenizer=store.tokenizer)
    order_key = {
        "train": store.digests["train"],
        # The best evaluations so far, which the state holds, are of these sets and of the first one's metric.
        "evaluated": [[name, digest] for name, digest in store.digests.items() if name not in ("train", "test")],
        "store": store.folder.name, "train_examples": len(store.sets["train"]), "seed": config["seed"],
        "folds": config["folds"]["count"], "fold": config["fold"],
        "batch_size": trainer.batch_size, "accumulation": trainer.accumulation,
        "bucket_batches": trainer.bucket_batches, "world_size": ranks.world_size,
    }  # fmt: skip
    clock = Clock(len(store.sets["train"]), trainer.batch_size * trainer.accumulation)
    scheduler = build(config["scheduler"], trusted=trusted)
    state = resume(checkpoint, stepper, order_key) if checkpoint else State()
    return Training(
        trainer, config["seed"], task, scheduler, stepper, store, state, clock, order_key, checkpoints, run_dir,
        progress,
    )  # fmt: skip


def build_stepper(config: dict[str, Any], trainer: Trainer, model: TaskModel, ranks: Ranks) -> Stepper:
    """Build what does one step: optimizer, loss, precision and, if asked for, the moving average of the weights."""
    trusted = config["trusted_packages"]
    optimizer = build(config["optimizer"], trusted=trusted).build(model)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    average = {name: parameter.detach().clone() for name, parameter in trained.items()} if trainer.ema_decay else None
    return Stepper(
        model, optimizer, build(config["loss"], trusted=trusted), build(config["precision"], trusted=trusted), ranks,
        config["seed"], trainer.clip_norm, average, trainer.ema_decay,
    )  # fmt: skip


def build_data(config: dict[str, Any], ranks: Ranks, progress: Progress) -> tuple[Any, Store, Pretrained | None]:
    """Build the task, open the pretrained weights and the data store; rank 0 fetches and builds, the others find."""
    trusted = config["trusted_packages"]
    task = build(config["task"], trusted=trusted)
    fold, count = config["fold"], config["folds"]["count"]
    reference, vocab = config["model"].get("pretrained"), config["tokenizer"].get("vocab")
    with ranks.first_goes_first():
        source = open_pretrained(reference) if reference else None
        files: Files = build(config["data"], trusted=trusted)
        tokenizing = build(config["tokenizer"], trusted=trusted)
        store = prepare(
            files, tokenizing, task.layout, pretrained=source.folder if source else None,
            vocab=fetch(vocab, what="tokenizer.vocab") if vocab else None, progress=bars(progress),
            group_by=config["folds"]["group_by"],
            fold=Fold(fold, count, config["seed"]) if fold is not None else None,
        )  # fmt: skip
    return task, store, source


def bars(progress: Progress) -> Callable[[str], Any]:
    """Return what `prepare` shows its progress with."""

    @contextmanager
    def bar(description: str) -> Iterator[Callable[[int], None]]:
        with progress.task(description) as shown:
            yield shown.advance

    return bar


def require_metric(trainer: Trainer, task: Any, store: Store) -> None:
    """Raise UserError where the major metric needs two classes and there are more."""
    metric = trainer.major_metric
    if metric in task.binary_metrics and len(store.labels) != 2:
        raise UserError(
            f"trainer.major_metric is {metric}, which needs two classes, but the data has {len(store.labels)} "
            f"({', '.join(store.labels[:5])}, ...); set it to one of {', '.join(task.metrics)}"
        )


def resume(checkpoint: Path, stepper: Stepper, order_key: dict[str, Any]) -> State:
    """Load a saved state. Raises CheckpointError where its position means another order of examples, or its best
    evaluations are of other sets."""
    state, saved = load_last(checkpoint, stepper.model, stepper.optimizer, stepper.average)
    # Older states know the whole store alone, in which the test set has its share.
    passed_over = {"world_size", "store"} if "train" in saved else {"world_size", "train", "evaluated"}
    if differences := [key for key in order_key if key not in passed_over and saved.get(key) != order_key[key]]:
        raise CheckpointError(
            *(_difference(key, saved.get(key), order_key[key]) for key in differences),
            summary=f"{checkpoint} stands at step {state.step} of a run that this one cannot go on with",
            remedy="write the values of its config.yaml, with the same files, to go on, or take only its weights with "
            "model.pretrained=RUN/last",
        )
    if saved["world_size"] != order_key["world_size"]:
        log.warning("saved by %s processes, continued by %s: sums round otherwise, so the bytes will differ from an "
                    "unbroken run", saved["world_size"], order_key["world_size"])  # fmt: skip
    log.info("continuing from %s at step %d", checkpoint, state.step)
    return state


def _difference(key: str, there: Any, here: Any) -> str:
    """A sentence on a part of the order in which a saved state and this run differ."""
    if key == "train":
        return "the training rows, or what makes tokens and labels of them, are others than there"
    if key == "evaluated":
        return "the rows that are scored while training are others than there; those of data.test alone may differ"
    if key == "store":
        return "the rows are others than there, or data.test is: this state is older and tells no sets apart"
    return f"{key}: {there} there, {here} here"
