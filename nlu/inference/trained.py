"""A trained run without its data: task, weights, labels and tokenizer."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from nlu.config.choices import node_of, target_of
from nlu.config.errors import CheckpointError, UserError
from nlu.config.schema import Run
from nlu.config.targets import TARGET, build, import_target
from nlu.config.types import ConfigLike
from nlu.data.fields import IN_WINDOWS
from nlu.data.layouts import LAYOUTS, Layout, Problem, Values
from nlu.data.mixture import own_sets
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.data.windows import WINDOWS, Lengths
from nlu.inference.int8.precision import int8_of
from nlu.inference.locate import LABELS, Located
from nlu.metrics.kinds import Kind, kind_named
from nlu.metrics.thresholds import SETTING, is_setting
from nlu.models.formats.pretrained import open_pretrained
from nlu.models.task_model import Adapter, TaskModel, of_head
from nlu.reports.runs import saved_config
from nlu.runs.checkpoint import SCORE
from nlu.storage.settle import copy_whole
from nlu.storage.tensors import load_tensors
from nlu.tasks.task import Task
from nlu.training.build import assemble

AVERAGE = "average.safetensors"
"""the moving average in `last`, which is scored instead of the trained weights"""


@dataclass
class Trained:
    """A run that can predict."""

    located: Located
    config: Run
    task: Task
    model: TaskModel
    """on the host, not training"""
    target: Target
    layout: Layout
    tokenizer: Tokenizer
    decided: dict[str, float]
    """metrics of the run's first evaluation set, with the threshold of its task; {} if it was not evaluated"""

    @property
    def labels(self) -> list[str]:
        return self.target.names

    @property
    def data(self) -> ConfigLike:
        """The keys with which its own rows were read."""
        return self.config.data

    @cached_property
    def lengths(self) -> Lengths:
        """What becomes of rows that are longer than its sequences."""
        return Lengths.of(self.config.data)

    @property
    def can_window(self) -> bool:
        """Whether a row is one text, which can be read in windows."""
        return self.layout.name in IN_WINDOWS and self.config.data.get("layout") is None

    def problem(self, values: Values) -> Problem | None:
        """Return the text field of a row that the run cannot read, and the rule that its value breaks, or None."""
        return self.layout.problem(values) or self.lengths.problem(self.layout, self.tokenizer, values)

    @cached_property
    def kind(self) -> Kind:
        """The kind of its records."""
        return kind_named(self.task.kind)

    def without_adapter(self) -> "Trained":
        """Return the run with its adapter merged into its weights, for exports; itself if it has no adapter."""
        return load_trained(self.located, merged=True) if self.config.has_adapter else self


def load_trained(
    located: Located, *, merged: bool = False, precision: str | Mapping[str, Any] | None = None, long: str | None = None
) -> Trained:
    """Load a checkpoint. With `merged`, its adapter is merged into the weights, which computes the same up to rounding.

    `precision` is that in which the run predicts, a choice of the group or its keys; None = that of training. With
    int8, which has no layers for an adapter, that is merged and the weights are rounded. `long`: what becomes of texts
    that are longer than its sequences; None = as in training. Raises CheckpointError if a
    part is missing or does not fit the model of the run, and UserError if the run cannot predict in that precision.
    """
    located = located.of_head(located.head_name)
    config = config_of(located.run_dir)
    if located.head_name is not None:
        config = config.members[located.head_name]
    if precision is not None:
        node = node_of("precision", precision) if isinstance(precision, str) else dict(precision)
        if node[TARGET] == target_of("precision", "auto"):
            raise UserError(
                "precision is auto, which only nlu.train chooses; set it to fp32, bf16, int8 or int8_compiled"
            )
        config = replace(config, precision=node)
    if long is not None:
        config = replace(config, data={**config.data, "long": long})
    int8 = int8_of(config.precision)
    with _fixed_copy(located) as checkpoint:
        trained = _loaded(located, config, checkpoint, merged or int8 is not None)
    if trained.lengths.long == WINDOWS and not trained.can_window:
        why = "reads two texts, or has a layout of its own (data.layout)"
        raise UserError(f"long is windows, which reads one long text, but {located.run_dir} {why}; leave out long")
    if int8 is not None:
        int8.quantize(trained.model)
    return trained


@contextmanager
def _fixed_copy(located: Located) -> Iterator[Path]:
    """Yield a checkpoint that does not change: for a run that is still training, which may rename them, a copy."""
    # A run writes result.json at its end and no longer renames its checkpoints.
    if (located.run_dir / "result.json").is_file():
        yield located.checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="nlu-checkpoint-") as folder:
        copy = Path(folder) / located.checkpoint.name
        if not copy_whole(located.checkpoint, copy):
            raise CheckpointError(f"{located.checkpoint} has been removed; name another checkpoint")
        yield copy


def _loaded(located: Located, config: Run, checkpoint: Path, merged: bool) -> Trained:
    known = json.loads((checkpoint / LABELS).read_text(encoding="utf-8"))
    known = known["members"][located.head_name] if located.head_name is not None else known
    if "target" not in known:
        raise CheckpointError(
            f"{located.checkpoint} was saved by an earlier version, without the meaning of its labels; train it again"
        )
    target_class: Any = import_target(known["target"][TARGET])
    target: Target = target_class.from_meta(known["target"]["meta"])
    # A loss may need the training set, for example to weigh classes; predicting does not need that.
    task: Task = build(config.task, build(config.loss), target)
    tokenizer = load_tokenizer(checkpoint, None)
    if tokenizer is None:
        raise CheckpointError(f"{located.checkpoint} lacks its tokenizer; give another checkpoint of the run")
    source = open_pretrained(str(checkpoint), "run")
    # The average has the names of the weights that it replaces. Weights without an average stay as they are.
    tensors = dict(source.tensors())
    for name, value in _average(checkpoint, located.checkpoint).items():
        # Scored while training in the type of the weights, which may be fp16.
        tensors[name] = value.to(tensors[name].dtype)
    if located.head_name is not None:
        tensors = of_head(tensors, located.head_name)
    if "head.linear.weight" in tensors and config.head[TARGET] == target_of("head", "auto"):
        # Earlier versions chose a linear layer for an encoder of transformers too.
        config = replace(config, head=task.own_head())
    own = config.data.get("layout")
    layout: Layout = LAYOUTS[known["layout"]] if own is None else build(own)
    model = assemble(config, task, target, layout.name, tokenizer, source)
    adapter: Adapter = build(config.adapter)
    # Merged before loading, since `apply` changes the layers of the model; a merged model has those of the encoder
    # without an adapter.
    if merged:
        tensors = adapter.merged(tensors)
    else:
        adapter.apply(model)
    _load(model, tensors, located.checkpoint)
    model.eval()
    decided = decided_at(checkpoint, located.head_name)
    # Without the threshold of the run, predictions would be decided by another rule than its scores.
    by_class = getattr(task, "aim", None) is not None
    is_there = any(map(is_setting, decided)) if by_class else decided.get(SETTING) is not None
    if (by_class or SETTING in task.metrics) and not is_there:
        raise CheckpointError(
            f"{located.checkpoint} was saved before the first evaluation of the run, which sets its threshold; wait "
            "for an evaluation, or name another checkpoint"
        )
    return Trained(located, config, task, model, target, layout, tokenizer, decided)


def config_of(run_dir: Path) -> Run:
    """Return the configuration of a run, with a model that takes its sizes from the checkpoint.

    Raises DataError if it is damaged.
    """
    return with_saved_weights(Run.of(saved_config(run_dir)))


def with_saved_weights(run: Run) -> Run:
    """Return the configuration of a run, with a model that takes its sizes from a checkpoint."""
    # These keys name the initial weights, which the checkpoint replaces.
    begun = {"pretrained": "the run's own checkpoint", "keep_layers": None, "random_weights": False, "embeddings": None}
    adapter = {key: None if key == "pretrained" else value for key, value in run.adapter.items()}
    return replace(run, model={key: begun.get(key, value) for key, value in run.model.items()}, adapter=adapter)


def decided_at(checkpoint: Path, head_name: str | None = None) -> dict[str, float]:
    """Return the metrics of the first evaluation set, of the run or of a head, when a checkpoint was saved."""
    metrics, _ = scores_at(checkpoint, head_name)
    return next(iter(metrics.values()), {})


def scores_at(checkpoint: Path, head_name: str | None = None) -> tuple[dict[str, dict[str, float]], bool]:
    """Return the scores saved with a checkpoint, by set and name, and whether its weights have these scores.

    The weights of `last` may have been trained since the last evaluation, and an evaluation may have scored only a
    sample of each set. `head_name` selects the sets of one head.
    """
    if (checkpoint / SCORE).is_file():
        score = json.loads((checkpoint / SCORE).read_text(encoding="utf-8"))
        metrics, are_its_own = score["metrics"], not score.get("sampled_rows")
    else:
        saved = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        state = saved["state"]
        metrics, are_its_own = state["last_metrics"] or {}, state["evaluated_at"] == state["step"]
        are_its_own &= not saved["order"].get("eval_rows")
    return (metrics if head_name is None else own_sets(metrics, head_name)), are_its_own


def _average(checkpoint: Path, shown: Path) -> dict[str, Tensor]:
    """Return the moving average of a checkpoint, {} if it has none.

    Raises CheckpointError if its file is missing: the weights of the last step would predict something else.
    """
    if (checkpoint / AVERAGE).is_file():
        try:
            return load_tensors(checkpoint / AVERAGE)
        except (ValueError, SafetensorError) as error:
            raise CheckpointError(f"{shown}: {AVERAGE} is damaged ({error}); give another checkpoint") from error
    state = checkpoint / "state.json"
    if state.is_file() and "average" in json.loads(state.read_text(encoding="utf-8"))["parts"]:
        raise CheckpointError(
            f"{shown} was saved with {AVERAGE}, the moving average that it predicts with, but the file is missing; use "
            "the run's best checkpoint, or train it again"
        )
    return {}


def _load(model: TaskModel, tensors: dict[str, Tensor], checkpoint: Path) -> None:
    own = model.state_dict()
    if wrong := [name for name in own if name not in tensors or tensors[name].shape != own[name].shape]:
        raise CheckpointError(
            f"{checkpoint} lacks {len(wrong)} of the {len(own)} tensors of its run's model, such as {wrong[0]}; give "
            "another checkpoint of the run"
        )
    # A checkpoint may have more tensors than the model, such as those of the other heads.
    model.load_state_dict({name: tensors[name] for name in own})
