"""Remove attention heads of a run: a new run without those on which the loss depends least.

The importance of a head is that of Michel et al. 2019 (https://arxiv.org/abs/1905.10650), section 4.1:
I_h = E_x |d L(x) / d m_h|, where m_h = 1 multiplies the output of head h. Values of a layer are divided by the root of
the sum of their squares, as there.

Axes: N examples, R rows of a batch (tokens, or first tokens of sequences), S sequences, H heads of a layer, E width of
a head.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from nlu.config.command_keys import Prune
from nlu.config.errors import CheckpointError, UserError
from nlu.config.mixtures import own_name
from nlu.config.schema import Run
from nlu.config.targets import build
from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples, sample
from nlu.data.opening import Store
from nlu.data.order import evaluation_batches
from nlu.display.console_tables import metric_text, numbers, print_table, table_of
from nlu.display.progress_bars import Progress
from nlu.inference.locate import LABELS, Located
from nlu.inference.trained import Trained, load_trained
from nlu.models.encoders.bert import Bert
from nlu.models.formats.pretrained import open_pretrained
from nlu.models.formats.smaller_weights import PRUNED_HEADS, Heads, as_written, kept_heads, without_heads
from nlu.models.task_model import TaskModel
from nlu.reports.runs import saved_config
from nlu.runs import logs
from nlu.runs.checkpoint import SCORE, Checkpoints
from nlu.runs.folder import CONFIG
from nlu.runs.state import Best
from nlu.storage.files import write_json, write_text
from nlu.storage.outputs import output_folder
from nlu.tasks.task import Task, comparing_loss
from nlu.training.build import assemble, build_data, build_task
from nlu.training.evaluation import Decisive, Evaluator, Scored, decisive, keep_predictions, score
from nlu.training.precision import Precision
from nlu.training.ranks import Ranks, process_group

Place = tuple[int, int]
"""a layer, and the place of a head among those that the layer has"""

ABOUT = "prune.json"
"""in the folder of a pruned run: how it was made, and the table"""
RESULT = "result.json"
Metrics = dict[str, dict[str, float]]


def require_own_losses(task: Task) -> None:
    """Raise UserError for a loss that compares examples, which then lack a loss of their own."""
    if (loss := comparing_loss(task, over_steps=True)) is not None:
        raise UserError(
            f"the run was trained with the loss {loss}, which depends on several rows at once, but the "
            "importance of heads is a mean over single rows; fine-tune the run with another loss, and prune that one"
        )


def importances(
    model: TaskModel,
    task: Task,
    part: Examples,
    device: torch.device,
    *,
    batch_size: int = 32,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[np.ndarray]:
    """Return the importance of each head of each layer, (H,) float64; the squares of a layer add up to 1.

    Each example counts once, with the sum of its own losses and without dropout, in fp32; so the values depend neither
    on padding nor on batches, except for rounding. The encoder is a native one without repeated layers. The task has a
    loss that is a sum over rows. A layer without any gradient has zeros.
    """
    backbone: Any = model.backbone
    counts = [backbone.heads_of(number) for number in range(backbone.sizes["layers"])]
    found_NH = [np.zeros((len(part), heads)) for heads in counts]
    model.eval().requires_grad_(False)
    for examples_B in evaluation_batches(part.lengths_N, batch_size=batch_size, rank=0, world_size=1):
        batch = collate(part, examples_B)
        for layer_NH, own_BH in zip(found_NH, _of_batch(model, task, batch, device, counts), strict=True):
            layer_NH[batch.examples_B] = own_BH
        advance(len(batch))
    # In the order of examples, whatever the batches were.
    means = [layer_NH.mean(0) for layer_NH in found_NH]
    return [mean_H / (np.linalg.norm(mean_H) or 1.0) for mean_H in means]


def _of_batch(
    model: TaskModel, task: Task, batch: Batch, device: torch.device, counts: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yield, for each layer, |dL/dm| of each example and head; (B, H)."""
    on_device = batch.to(device)
    with _outputs_of_heads(model) as mixed, torch.enable_grad():
        # The weights are frozen, so that the vectors of words start the graph.
        x_TD = model.backbone.embed(on_device).detach().requires_grad_()
        outputs = task.forward(model, on_device, x_TD)
        terms = task.terms(model, on_device, outputs)
        loss = sum(weight * terms[name] for name, weight in task.term_weights.items())
        assert isinstance(loss, Tensor), "a task has a term"
        # Pooling of lower layers uses none of the later ones, whose gradients are zeros.
        gradients = torch.autograd.grad(loss, mixed, allow_unused=True, materialize_grads=True)
    example_S, _ = batch.origin_S()
    example_T = np.repeat(example_S, batch.lengths)
    for output, gradient, heads in zip(mixed, gradients, counts, strict=True):
        # dL/dm is the product of the head's output and its gradient, summed over all places that m multiplies.
        product_RH = (output.detach().double() * gradient.double()).unflatten(1, (heads, -1)).sum(2).cpu().numpy()
        # In the last layer only the first token of each sequence may be computed. Rows after the tokens are padding.
        example_R = example_S if len(product_RH) == len(example_S) < len(example_T) else example_T
        summed_BH = np.zeros((len(batch), heads))
        np.add.at(summed_BH, example_R, product_RH[: len(example_R)])
        yield np.abs(summed_BH)


@contextmanager
def _outputs_of_heads(model: TaskModel) -> Iterator[list[Tensor]]:
    """Yield a list, to which each layer of a forward pass appends the outputs of its heads; (R, H * E)."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    backbone = model.backbone
    assert isinstance(backbone, Bert), "a native encoder"
    layers = backbone.encoder["layer"].children()
    hooks = [layer.get_submodule("attention.output").register_forward_pre_hook(keep) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def least_first(importance: Sequence[np.ndarray]) -> list[Place]:
    """Return all heads, the least important first; of equal ones, by layer and place."""
    return sorted(
        ((layer, place) for layer, own_H in enumerate(importance) for place in range(len(own_H))),
        key=lambda head: (importance[head[0]][head[1]], head),
    )


def to_remove(order: Sequence[Place], heads: Sequence[int], count: int) -> Heads:
    """Return `count` heads by layer, the first ones of `order`, except for the last one that a layer has."""
    found: Heads = {}
    for layer, place in order:
        if count and len(found.get(layer, [])) + 1 < heads[layer]:
            found.setdefault(layer, []).append(place)
            count -= 1
    assert not count, "the command has asked for fewer"
    return {layer: sorted(places) for layer, places in sorted(found.items())}


def of_layers(order: Sequence[Place], counts: Mapping[int, int]) -> Heads:
    """Return the least important heads of each layer, as many as `counts` has for it."""
    found: Heads = {}
    for layer, place in order:
        if len(found.get(layer, [])) < counts.get(layer, 0):
            found.setdefault(layer, []).append(place)
    return {layer: sorted(places) for layer, places in sorted(found.items())}


@dataclass(frozen=True)
class Candidate:
    """A run without some of its heads."""

    removed: int
    """heads that were removed"""
    heads: int
    """heads of the run before"""
    value: float
    """the metric that decides in the run"""
    parameters: int
    size_mb: float
    """of its weights on disk"""


@dataclass
class Subject:
    """A run whose heads are removed, and its rows."""

    trained: Trained
    backbone: Bert
    run: Run
    store: Store
    decisive: Decisive
    lower_is_better: bool
    ranks: Ranks
    progress: Progress

    @property
    def heads(self) -> list[int]:
        """The number of heads of each layer."""
        return [self.backbone.heads_of(layer) for layer in range(self.backbone.sizes["layers"])]

    @property
    def eval_set(self) -> Examples:
        """The evaluation set that decides."""
        return self.store.sets[self.decisive.set_name]


def run_prune(config: Prune, located: Located) -> int:
    """Compute importances, and write and score the smaller run; returns the exit status.

    Raises UserError for the user's mistakes; nothing is written then.
    """
    logs.set_up(None, 0)
    with process_group(config.device, keys="") as ranks, Progress() as progress:
        subject = _subject(config, located, ranks, progress)
        task = build_task(subject.run, subject.store)
        require_own_losses(task)
        train = subject.store.sets["train"]
        part = train if config.max_rows is None else sample(train, config.max_rows, subject.run.seed)
        model = subject.trained.model.to(ranks.device)
        with progress.task("importance of heads", len(part)) as bar:
            importance = importances(model, task, part, ranks.device, batch_size=config.batch_size, advance=bar.advance)
        places = _removed(config, subject, importance)
        with output_folder(config.out, "out", last=RESULT) as folder:
            found = _write(config, subject, places, importance, folder)
    _print(found, subject.decisive.metric)
    print_table("", config.out)
    return 0


def _subject(config: Prune, located: Located, ranks: Ranks, progress: Progress) -> Subject:
    trained = load_trained(located)
    backbone = trained.model.backbone
    assert isinstance(backbone, Bert), "the command has looked at the checkpoint"
    run = Run.of(saved_config(located.run_dir))
    # Rows are drawn from all of them, also for a run that read them while they were written.
    run = replace(run, data={**run.data, "stream": False}) if run.data.get("stream") else run
    store = build_data(run, ranks, progress, located.checkpoint).store
    if store.labels != trained.labels:
        raise CheckpointError(
            f"the rows of {located.run_dir} now have the labels {store.labels}, but it was trained for "
            f"{trained.labels}; put back its data"
        )
    if not store.of_role("dev"):
        raise UserError(f"run is {config.run}, which lacks an evaluation set; prune a run with data.dev or a dev split")
    chosen = decisive(trained.task, run.trainer.major_metric, store)
    is_lower = own_name(chosen.metric) in trained.task.lower_is_better
    return Subject(trained, backbone, run, store, chosen, is_lower, ranks, progress)


def _removed(config: Prune, subject: Subject, importance: list[np.ndarray]) -> Heads:
    """Return the places of the heads that the smaller run lacks."""
    order, heads = least_first(importance), subject.heads
    if config.heads is not None:
        return of_layers(order, {int(layer) % len(heads): count for layer, count in config.heads.items()})
    assert config.fraction is not None, "validated together"
    return to_remove(order, heads, round(config.fraction * sum(heads)))


def _candidate(subject: Subject, model: TaskModel, removed: int, value: float) -> Candidate:
    parameters = sum(one.numel() for one in model.parameters())
    size_mb = sum(one.numel() * one.element_size() for one in model.state_dict().values()) / 1e6
    return Candidate(removed, sum(subject.heads), value, parameters, size_mb)


def _print(found: list[Candidate], metric: str) -> None:
    lines = (
        [
            f"{one.removed / one.heads:.0%}",
            f"{one.heads - one.removed} of {one.heads}",
            metric_text(one.value),
            f"{one.parameters:,}",
            f"{one.size_mb:.1f}",
        ]
        for one in found
    )
    print_table("", table_of(numbers("removed", "heads", metric, "parameters", "MB"), lines))


def _score(
    config: Prune, subject: Subject, model: TaskModel, part: Examples, decided: Mapping[str, float], folder: Path
) -> Scored:
    precision: Precision = build(subject.run.precision)
    evaluator = Evaluator(model, subject.trained.task, subject.ranks, precision, config.batch_size, folder)
    with subject.progress.task(f"scoring {part.name}", len(part)) as bar:
        return score(evaluator, part, decided, bar.advance)


def pruned_with(subject: Subject, places: Heads) -> Heads:
    """Return the heads that the run lacks once it has also lost those at `places`, by their first numbers."""
    before, heads = subject.backbone.sizes["pruned_heads"], subject.backbone.sizes["heads"]
    after = {}
    for layer in range(subject.backbone.sizes["layers"]):
        there = kept_heads(before, layer, heads)
        if gone := [*before.get(layer, []), *(there[place] for place in places.get(layer, []))]:
            after[layer] = sorted(gone)
    return after


def without(subject: Subject, places: Heads) -> TaskModel:
    """Return the model of the run without the heads at these places of each layer."""
    trained, sizes = subject.trained, subject.backbone.sizes
    after = pruned_with(subject, places)
    source = open_pretrained(str(trained.located.checkpoint), "run")
    source = replace(source, config={**source.config, PRUNED_HEADS: as_written(after)})
    model = assemble(trained.config, trained.task, trained.target, trained.model.layout, trained.tokenizer, source)
    tensors = {name: value.cpu() for name, value in trained.model.state_dict().items()}
    model.load_state_dict(without_heads(tensors, sizes["layers"], sizes["heads"], sizes["pruned_heads"], after))
    return model.eval()


def _write(
    config: Prune, subject: Subject, places: Heads, importance: list[np.ndarray], folder: Path
) -> list[Candidate]:
    """Write a run folder: configuration, checkpoint, predictions, and result.json last; returns the run before and
    the smaller one."""
    trained, located, ranks = subject.trained, subject.trained.located, subject.ranks
    with TemporaryDirectory(prefix="nlu-prune-") as scratch:
        whole = _score(config, subject, trained.model, subject.eval_set, {}, Path(scratch))
        whole.spool.close()
    model = without(subject, places).to(ranks.device)
    metrics: Metrics = {}
    step = step_of(located.checkpoint)
    sets = subject.store.of_role("dev") | subject.store.of_role("test")
    for name, part in sets.items():
        # As in training, the first set decides a threshold for all.
        scored = _score(config, subject, model, part, next(iter(metrics.values()), {}), folder / "predictions")
        keep_predictions(folder, name, scored, trained.task, ranks, step=step)
        metrics[name] = scored.scores.metrics
        scored.spool.close()
    value = metrics[subject.decisive.set_name][subject.decisive.metric]
    before = whole.scores.metrics[subject.decisive.metric]
    found = [
        _candidate(subject, trained.model, 0, before),
        _candidate(subject, model, sum(map(len, places.values())), value),
    ]
    of_dev = {name: metrics[name] for name in subject.store.of_role("dev")}
    best = [Best(step, 0, 0.0, value, of_dev)]
    labels = json.loads((located.checkpoint / LABELS).read_text(encoding="utf-8"))
    checkpoints = Checkpoints(folder, config=model.backbone.settings(), labels=labels, tokenizer=trained.tokenizer)
    checkpoints.folder.mkdir()
    checkpoints.save_best({name: tensor.cpu() for name, tensor in model.state_dict().items()}, best)
    checkpoints.arrange(best)
    write_text(folder / CONFIG, yaml.safe_dump(_config(config, located), allow_unicode=True, sort_keys=False))
    about = {
        "run": str(located.run_dir),
        "checkpoint": located.checkpoint.name,
        "removed": as_written(pruned_with(subject, places)),
        "set": subject.decisive.set_name,
        "metric": subject.decisive.metric,
        "max_rows": config.max_rows,
        "importance": [own_H.tolist() for own_H in importance],
        "candidates": list(map(asdict, found)),
    }
    write_json(folder / ABOUT, about)
    write_json(
        folder / RESULT,
        {
            "metrics": metrics,
            "best": {
                "set": subject.decisive.set_name,
                "metric": subject.decisive.metric,
                "value": value,
                "step": step,
                "checkpoint": "checkpoints/best-1",
            },
            "seed": subject.run.seed,
            "pruned": False,
            "last": metrics,
        },
    )
    return found


def _config(config: Prune, located: Located) -> dict[str, object]:
    """Return the configuration of the smaller run: that of the run, started from the run's weights."""
    saved = yaml.safe_load((located.run_dir / CONFIG).read_text(encoding="utf-8"))
    # An address stays one: the path of its copy on this machine would be known only here.
    is_remote = "://" in config.run
    reference = str(located.checkpoint)
    if is_remote:
        reference = config.run if config.checkpoint == "best" else f"{config.run.rstrip('/')}/{config.checkpoint}"
    changed = {"pretrained": reference, "keep_layers": None}
    return {**saved, "model": {key: changed.get(key, value) for key, value in saved["model"].items()}}


def step_of(checkpoint: Path) -> int:
    """Return the step at which a checkpoint was saved."""
    if (checkpoint / SCORE).is_file():
        return int(json.loads((checkpoint / SCORE).read_text(encoding="utf-8"))["step"])
    return int(json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["state"]["step"])
