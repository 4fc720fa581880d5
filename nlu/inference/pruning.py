"""Remove attention heads of a run: a new run without the least important ones.

Axes: H heads of a layer.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml

from nlu.config.command_keys import Prune
from nlu.config.errors import CheckpointError, UserError
from nlu.config.mixtures import own_name
from nlu.config.schema import Run
from nlu.config.targets import build
from nlu.data.examples import Examples
from nlu.data.opening import Store
from nlu.display.console_tables import metric_text, numbers, print_table, table_of
from nlu.display.progress_bars import Progress
from nlu.inference.evaluation import sample
from nlu.inference.importance import (
    importances,
    least_first,
    of_layers,
    require_own_losses,
    to_remove,
)
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
from nlu.training.build import assemble, build_data, build_task
from nlu.training.evaluation import Decisive, Evaluator, Scored, decisive, keep_predictions, score
from nlu.training.precision import Precision
from nlu.training.ranks import Ranks, process_group

ABOUT = "prune.json"
"""in the folder of a pruned run: how it was made, and the table"""
RESULT = "result.json"
Metrics = dict[str, dict[str, float]]


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
