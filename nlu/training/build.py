"""Build the parts of a run from its validated configuration: data, task, model, optimizer, state."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlu.config.choices import target_of
from nlu.config.errors import UserError, keys_called
from nlu.config.keys import facts_of, target_for
from nlu.config.mixtures import MEAN
from nlu.config.schema import Run
from nlu.config.sentences import beyond_positions, listed
from nlu.config.targets import TARGET, build, import_target
from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.folds import Fold
from nlu.data.growing import Growth, open_stream
from nlu.data.mixture import MixedStore, mixed
from nlu.data.opening import Store
from nlu.data.prepare import prepare
from nlu.data.seeds import stable_seed
from nlu.data.store_plan import Plan, plan_of
from nlu.data.targets import Grade, Number, Target
from nlu.data.tokenizing import Tokenizer
from nlu.data.trimming import counts_of, require_trimmable, rows_of, trimmed
from nlu.display.progress_bars import Progress, bars
from nlu.methods.method import Context, Method
from nlu.metrics.kinds import kind_named
from nlu.models.adapters.lora import LoraLinear
from nlu.models.encoder import Encoder
from nlu.models.encoders.modern import ModernBert
from nlu.models.formats.pretrained import Pretrained, load_into, open_pretrained
from nlu.models.formats.sentence_folder import say_what_is_used
from nlu.models.formats.smaller_weights import with_layers
from nlu.models.head import wanted_by
from nlu.models.heads.modern import ModernHead
from nlu.models.heads.transformers import head_of_transformers
from nlu.models.task_model import LAYOUT, Adapter, CompositeModel, TaskModel
from nlu.optim.optimizer import Optimizer
from nlu.runs.checkpoint import Checkpoints, Unsaved
from nlu.runs.state import State
from nlu.storage.resources import fetch
from nlu.tasks.composite import Composite, task_of
from nlu.tasks.task import Task, undefined
from nlu.training.batch_search import largest_that_fits, size_of_start
from nlu.training.compiled import Compiled, eager_because
from nlu.training.evaluation import NAMED_ROWS, first_sets
from nlu.training.journal import Inspector, Journal
from nlu.training.ordering import clock_of, order_of, takes_queries
from nlu.training.parts import Training, Trial
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks
from nlu.training.resuming import order_key_of, resume, tokenizer_at
from nlu.training.step import Stepper
from nlu.training.word_vectors import is_trimmed, start_words, tokenizing_of

log = logging.getLogger(__name__)


@dataclass
class Data:
    """The inputs of a run: its rows and its initial weights."""

    store: Store
    source: Pretrained | None
    rows_V: np.ndarray | None = None
    """row of each token (V) in the table of word vectors of `source`, if the tokenizer is that of the weights"""


def build_run(
    config: Run,
    run_dir: Path,
    ranks: Ranks,
    progress: Progress,
    checkpoint: Path | None,
    trial: Trial | None = None,
    after_save: Callable[[], None] = lambda: None,
) -> Training:
    """Build every part of the run, and load the state of a checkpoint; `Training` explains the last arguments."""
    trainer = config.trainer
    data = build_data(config, ranks, progress, checkpoint, waits=True)
    store = data.store
    task = build_task(config, store)
    require_metric(config, task, store)
    # A state replaces all weights, so a continued run does without the file of word vectors.
    model = build_model(config, data, task, None if checkpoint else progress)
    stepper = build_stepper(config, model, task, store, ranks, progress)
    if trainer.batch_size == "auto":
        if any(takes_queries(config, part) for part in store.of_role("train").values()):
            raise UserError(
                "trainer.batch_size is auto, which tries rows, but the batches of this run have whole queries; set it "
                "to a number of queries"
            )
        found = size_of_start(run_dir, checkpoint, ranks)
        trainer = replace(
            trainer, batch_size=found or largest_that_fits(stepper, store, trainer.accumulation, progress)
        )
        config = replace(config, trainer=trainer)
    order_key = order_key_of(config, store, ranks, model)
    checkpoints = Checkpoints(
        run_dir,
        config=model.backbone.settings(),
        labels=labels_of(config, store),
        tokenizer=store.tokenizer,
    )
    if not trainer.save:
        checkpoints = Unsaved(run_dir, ranks, wanted=bool(trainer.eval_rows or store.of_role("test")))
    order = order_of(config, store, ranks)
    clock = clock_of(config, store, order)
    scheduler = build(config.scheduler)
    # Last, since it overwrites the initial weights, the optimizer's state and the moving average.
    state = resume(checkpoint, stepper, order_key, store.tokenizer) if checkpoint else State()
    return Training(
        trainer,
        config.seed,
        task,
        scheduler,
        stepper,
        store,
        order,
        state,
        clock,
        order_key,
        checkpoints,
        run_dir,
        progress,
        Journal(ranks, build(config.tracker)),
        config.trial is not None,
        trial,
        after_save,
        Inspector(stepper.model, stepper.own) if config.inspect else None,
    )


def build_task(config: Run, store: Store) -> Task:
    """Build the task and its loss, which gets the number of training rows of each label."""
    if isinstance(store, MixedStore):
        tasks = {name: build_task(own, store.members[name]) for name, own in config.members.items()}
        num_labels = {name: len(one.labels) for name, one in store.members.items()}
        several: Task = build(config.task, tasks, num_labels)
        return several
    loss, train, target = build(config.loss), store.sets["train"], store.target
    if train.is_growing:
        loss.bind(target.names, None, None)
    else:
        # Counted over the training rows of this fold, so that weights by frequency know nothing of held-out rows.
        loss.bind(target.names, target.facts(train.stored, train.rows_N).get("labels"), len(train))
    task: Task = build(config.task, loss, target)
    if hasattr(task, "compares_steps"):
        # Other methods compute their own passes over each micro-batch.
        task.compares_steps = config.method[TARGET] == target_of("method", "plain")
    # Import the kind of records now, so that an error does not appear when predictions are written hours later.
    kind_named(task.kind)
    return task


def labels_of(config: Run, store: Store) -> dict[str, object]:
    """Return the meaning of the outputs for a checkpoint: enough to score and to predict without the store."""
    adapter = {"adapter": config.adapter} if config.has_adapter else {}
    if isinstance(store, MixedStore):
        members = {name: labels_of(own, store.members[name]) for name, own in config.members.items()}
        return {"layout": LAYOUT, "labels": store.labels, "members": members, **adapter}
    target = {TARGET: target_of_data(config), "meta": store.target.meta()}
    return {"layout": store.layout.key, "labels": store.labels, "target": target, **adapter}


def build_model(config: Run, data: Data, task: Task, progress: Progress | None) -> TaskModel:
    """Build the encoder and its head with their initial weights, and apply the adapter.

    `progress` shows the reading of word vectors; None leaves them out.
    """
    store, source = data.store, data.source
    # Also with pretrained weights: the head, and what the weights lack, start from these numbers.
    torch.manual_seed(stable_seed(config.seed, "init"))
    if isinstance(store, MixedStore):
        models: dict[str, TaskModel] = {}
        for name, own in config.members.items():
            one, before = store.members[name], next(iter(models.values()), None)
            models[name] = assemble(
                own,
                task_of(task, name),
                one.target,
                one.layout.name,
                store.tokenizer,
                source,
                before.backbone if before else None,
            )
        model: TaskModel = CompositeModel(models)
    else:
        model = assemble(config, task, store.target, store.layout.name, store.tokenizer, source)
    # Only model=hf has `random_weights`: it takes the architecture from `source` but not its weights.
    if source is not None and not getattr(model.backbone, "random_weights", False):
        # Grades have no unit of their own.
        unit = (0.0, 1.0) if isinstance(store.target, Grade) else None
        scale = (store.target.mean, store.target.sd) if isinstance(store.target, Number) else unit
        load_into(model, source, labels=store.labels, rows_V=data.rows_V, scale=scale)
        if (after := getattr(model.backbone, "after", None)) is not None:
            longest = max(own.data["max_len"] for own in (config.members or {"": config}).values())
            say_what_is_used(source, after, config.model["pooling"], longest)
    if progress is not None:
        start_words(config, model.backbone, store, source, progress)
    adapter: Adapter = build(config.adapter)
    adapter.apply(model)
    if source is not None and source.new_tokens and config.has_adapter:
        log.warning(
            "an adapter freezes word vectors: those of tokenizer.added_tokens are trained with adapter=none only"
        )
    return model


def assemble(
    config: Run,
    task: Task,
    target: Target,
    layout: str,
    tokenizer: Tokenizer,
    source: Pretrained | None,
    encoder: Encoder | None = None,
) -> TaskModel:
    """Build the encoder and its head with random weights; the encoder takes its sizes from `source`.

    `encoder`: one that is there already, and only gets another head.
    """
    backbone = build(config.model, tokenizer.vocab_size, source) if encoder is None else encoder
    backbone.has_segments = tokenizer.has_segments
    # Known only here: for pretrained weights the limit is in their configuration, not in ours.
    if (limit := backbone.max_positions) and config.data["max_len"] > limit:
        raise UserError(beyond_positions(config.data["max_len"], limit, () if target.kind == "words" else (layout,)))
    # A head may ask how wide the vectors of sequences are.
    backbone.layout = layout
    is_auto = config.head[TARGET] == target_of("head", "auto")
    head_node = task.own_head() if is_auto else config.head
    # Masked words are predicted from the vectors of tokens, also in a pair.
    width = backbone.width_of("units" if wanted_by(target) == "units" else layout)
    head: Any = None
    if is_auto and head_node[TARGET] == target_of("head", "linear"):
        if isinstance(backbone, ModernBert):
            head = ModernHead(width, target, backbone)
        else:
            head = head_of_transformers(width, target, backbone)
    return TaskModel(backbone, head or build(head_node, width, target, backbone), layout)


def build_stepper(config: Run, model: TaskModel, task: Task, store: Store, ranks: Ranks, progress: Progress) -> Stepper:
    """Build the parts of a step: optimizer, method, precision and, if configured, the moving average of the weights."""
    trainer = config.trainer
    method: Method = build(config.method)
    # Seed again, since ranks may have drawn different amounts for the initial weights.
    torch.manual_seed(stable_seed(config.seed, "method"))
    # Before the precision, so that a method that copies the model, as a teacher, copies fp32 weights.
    own = method.prepare(model, Context(task, store, config.seed, ranks.device, progress))
    precision: NumberFormat = build(config.precision)
    model = model.to(ranks.device)
    own = None if own is None else own.to(ranks.device)
    chosen: Optimizer = build(config.optimizer)
    optimizer = chosen.build(model, own)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    # fp32, since small steps would be lost in fp16.
    average = {name: each.detach().clone().float() for name, each in trained.items()} if trainer.ema_decay else None
    return Stepper(
        model,
        optimizer,
        task,
        method,
        precision,
        ranks,
        config.seed,
        trainer.clip_norm,
        average,
        trainer.ema_decay,
        own,
        trainer.max_loss,
        compiled=compiled_by(config, model, task, method, ranks),
        detect_anomaly=trainer.detect_anomaly,
    )


def compiled_by(config: Run, model: TaskModel, task: Task, method: Method, ranks: Ranks) -> Compiled | None:
    """Return what computes the passes of trainer.compile=true; None, with a warning, where they run eagerly."""
    if not config.trainer.compile:
        return None
    reasons = [eager_because(model, task, own.data) for own in (config.members or {"": config}).values()]
    why = next(filter(None, reasons), None)
    # A method of a user's own may inherit from one that compiles, and look at rows of filling.
    if not (getattr(method, "compiles", False) and type(method).__module__.startswith("nlu.")):
        why = f"method={type(method).__name__} computes more than plain passes"
    elif config.trainer.detect_anomaly:
        why = "trainer.detect_anomaly looks at each operation"
    elif config.data.get("stream"):
        why = "rows of data.stream are still written, so that the shapes of batches are unknown"
    elif any(isinstance(each, LoraLinear) and each.dropout.probability for each in model.modules()):
        why = "adapter.dropout draws random numbers of the batch, which has rows of filling"
    if why is None:
        return Compiled(ranks.device)
    log.warning("trainer.compile is true, but this run is computed eagerly: %s", why)
    return None


def build_data(
    config: Run, ranks: Ranks, progress: Progress, checkpoint: Path | None = None, *, waits: bool = False
) -> Data:
    """Open the pretrained weights and the data store, which the leader of each node fetches and builds first.

    With `model.trim_vocab`, the vocabulary is that of `checkpoint`, or without one it is trimmed to the training rows.
    With `data.stream`, `waits` tells whether to wait for a writer that has not begun, instead of building the store.
    """
    fold = None
    if config.fold is not None and not config.members:
        assert config.folds.count is not None, "validated together"
        fold = Fold(config.fold, config.folds.count, config.seed)
    with ranks.leaders_go_first():
        plans: dict[str, Plan] = {}
        for name, own in (config.members or {"": config}).items():
            with naming(name):
                _, source, plans[name] = planned(own)
        whole = next(iter(plans.values())).tokenizer
        if is_trimmed(config, source, whole):
            plans = _trimmed(config, plans, fold, progress, checkpoint)
        if config.data.get("stream"):
            if not waits and Growth(plans[""]).place is None:
                _prepared(config, plans, fold, progress)
            store = open_stream(plans[""], ranks.sum_on_host)
        else:
            store = _prepared(config, plans, fold, progress)
    rows_V = None
    if source is not None and whole is not None:
        count = whole.vocab_size - whole.new_tokens
        # Another vocabulary than that of the weights must not grow to their size.
        if not config.tokenizer.get("vocab") or whole.new_tokens and source.config.get("vocab_size") == count:
            rows_V = rows_of(store.tokenizer, whole)
    return Data(store, source, rows_V)


def naming(name: str) -> AbstractContextManager[None]:
    """Return a context in which a problem of one set of several names the key that the user wrote for it."""
    return keys_called({"data.": f"data.sets.{name}."} if name else {})


def _prepared(config: Run, plans: Mapping[str, Plan], fold: Fold | None, progress: Progress) -> Store:
    stores = {}
    for name, plan in plans.items():
        with naming(name):
            stores[name] = prepare(plan, bars(progress), fold, config.seed)
    return mixed(stores) if config.members else stores[""]


def _trimmed(
    config: Run, plans: Mapping[str, Plan], fold: Fold | None, progress: Progress, checkpoint: Path | None
) -> dict[str, Plan]:
    """Return the plans with the tokenizer of a checkpoint, or with one of the pieces that the training rows use."""
    whole = next(iter(plans.values())).tokenizer
    assert whole is not None, "the weights have a tokenizer"
    require_trimmable(whole)
    tokenizer = None if checkpoint is None else tokenizer_at(checkpoint)
    if tokenizer is None:
        store = _prepared(config, plans, fold, progress)
        members = store.members.values() if isinstance(store, MixedStore) else [store]
        tokenizer = trimmed(whole, np.sum([counts_of(one) for one in members], axis=0))
    # Reading the rows has changed the target, so a second store needs a new one.
    return {
        name: replace(plan, tokenizer=tokenizer, target=type(plan.target)(plan.files)) for name, plan in plans.items()
    }


def planned(config: Run) -> tuple[type[Task], Pretrained | None, Plan]:
    """Return the task's class, the pretrained weights, and the plan of the data store."""
    task_class = task_class_of(config)
    reference, vocab = config.model.get("pretrained"), config.tokenizer.get("vocab")
    source = open_pretrained(reference) if reference else None
    if source is not None and (kept := config.model.get("keep_layers")) is not None:
        source = with_layers(source, kept)
    files: Files = build(config.data)
    tokenizing, folder = tokenizing_of(config, source)
    plan = plan_of(
        files,
        tokenizing,
        target_of_data(config),
        task_class.layouts,
        pretrained=folder,
        vocab=fetch(vocab, what="tokenizer.vocab") if vocab else None,
        group_by=config.folds.group_by,
        shared=config.stores,
    )
    if source is not None and plan.tokenizer is not None:
        source = replace(source, new_tokens=plan.tokenizer.new_tokens)
    return task_class, source, plan


def target_of_data(config: Run) -> str:
    """Return the dotted name of the target of the examples: the task's, or another one that its loss reads."""
    task, loss = task_class_of(config), facts_of(config.loss[TARGET])
    own = {"target": task.target, "other_targets": getattr(task, "other_targets", {})}
    return str(target_for(own, loss))


def task_class_of(config: Run) -> type[Task]:
    """Return the class of the task, whose constants are known before it is built."""
    found: Any = import_target(config.task[TARGET])
    return found


def require_metric(config: Run, task: Task, store: Store) -> None:
    """Raise UserError if the task and loss do not have the major metric, or no model could make it a number."""
    metric = config.trainer.major_metric
    if metric is not None and metric not in (*task.metrics, *task.binary_metrics):
        raise UserError(
            f"trainer.major_metric is {metric}, which this task and loss cannot produce; set it to one of "
            f"{', '.join(task.metrics)}"
        )
    if metric in task.binary_metrics and len(store.labels) != 2:
        raise UserError(
            f"trainer.major_metric is {metric}, which needs two classes, but the data has {len(store.labels)} "
            f"({', '.join(store.labels[:5])}, ...); set it to one of {', '.join(task.metrics)}"
        )
    for own, part in _deciding(task, metric, store):
        if (why := undefined(own, part)) is not None:
            given = f"is {metric}" if metric is not None else f"is null, which stands for {own}"
            key = "folds.count" if part in store.folds else "data.dev"
            places = [part.place(example) for example in range(min(len(part), NAMED_ROWS + 1))]
            raise UserError(
                f"trainer.major_metric {given}, but {why}, so it is never a number ({listed(places, NAMED_ROWS)}); set "
                f"{key} or trainer.major_metric"
            )


def _deciding(task: Task, metric: str | None, store: Store) -> Iterator[tuple[str, Examples]]:
    """Yield each metric that decides, and the sets that it is of: the first evaluation set, or every fold."""
    if isinstance(task, Composite) and metric in (None, MEAN):
        names = [f"{name}/{one.default_metric}" for name, one in task.members.items() if task.has_mean]
    else:
        names = [metric or task.default_metric]
    for name in names:
        member, _, own = name.rpartition("/")
        yield from ((own, part) for part in store.folds or [store.sets[first_sets(store)[member]]])
