"""trainer.compile: encoder, head and loss as one graph of torch.compile, over batches of few shapes.

Numbers of rows are symbols in the graph, so it is compiled once and not for each shape. On CUDA, "reduce-overhead"
records a CUDA graph for each shape, which starts all kernels of a pass in one call of the host.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.data.shapes import Shapes, filled
from nlu.losses.loss import ClassWeights, RowLoss
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.modern import ModernBert
from nlu.models.heads.crf import CrfHead
from nlu.models.layers.dropout import next_pass
from nlu.models.task_model import TaskModel
from nlu.storage.cache import cache_dir
from nlu.tasks.composite import Composite
from nlu.tasks.task import Outputs, Task
from nlu.tasks.words_and_class import WordsAndClass
from nlu.training.precision import NumberFormat

ALLOWED_ON_CPU = "NLU_COMPILE_ON_CPU"
"""an environment variable: 1 = compile on a CPU too, as tests and `benchmarks/cuda.py --device cpu` do"""
POOLED = ("first", "last", "pooler", "mean")
"""the values of model.pooling that are computed with filling"""
OF_GRAPHS = "torch._inductor.cudagraph_utils.__cudagraphs"
"""torch's logger that says why a function is computed without CUDA graphs, or for how many shapes they are recorded"""
MOST_GRAPHS = 1000
"""graphs of one function: one for training and one for scoring, for each head of a mixture and for each run"""


def require_compilable(device: torch.device) -> None:
    """Raise UserError on a CPU, where a compiled run takes as long as another one."""
    if device.type == "cpu" and os.environ.get(ALLOWED_ON_CPU) != "1":
        raise UserError(
            "trainer.compile is true, but the device is a CPU, where compiled passes are not faster; set "
            "trainer.compile=false, or trainer.device=cuda on a machine with a GPU"
        )


def eager_because(model: TaskModel, task: Task, data: Mapping[str, object]) -> str | None:
    """Return why this model and task are not compiled, as a clause; None if they are. `data`: its configuration."""
    backbone, heads = model.backbone, [each for each in model.modules() if isinstance(each, CrfHead)]
    tasks = _members(task)
    losses = [getattr(each, "loss", None) for each in tasks]
    reasons = {
        "the encoder is none of BERT's family": not isinstance(backbone, Bert | ModernBert),
        "the vectors of texts are pooled by other means than " + ", ".join(POOLED): getattr(
            backbone, "pooling", POOLED[0]
        )
        not in POOLED,
        "layers are computed again for their gradient": getattr(backbone, "gradient_checkpointing", False),
        "a CRF computes tag by tag": bool(heads),
        "the loss of a row depends on other rows": not all(isinstance(loss, RowLoss) for loss in losses),
        "the task has words and classes": any(isinstance(each, WordsAndClass) for each in tasks),
        "long texts are cut into windows": data.get("long") == "windows",
        "code from outside of nlu may not leave out rows of filling": not all(
            type(each).__module__.startswith(("nlu.", "torch.")) for each in [*model.modules(), *tasks, *losses]
        ),
    }
    return next((why for why, is_so in reasons.items() if is_so), None)


def _members(task: Task) -> list[Task]:
    return list(task.members.values()) if isinstance(task, Composite) else [task]


class Compiled:
    """Compiled functions, and the shapes of the batches that are trained on and of those that are scored."""

    def __init__(self, device: torch.device, *, backend: str = "inductor"):
        self.device, self.trained, self.scored = device, Shapes(), Shapes()
        self.pieces = 0
        """in how many pieces micro-batches were computed when their shapes were chosen; 0: they were not"""
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "inductor"))
        logging.getLogger(OF_GRAPHS).addFilter(_is_news)
        # Other layers have another gradient than the last one, of which only first tokens may be computed.
        warnings.filterwarnings("ignore", message="invoke_subgraph traced multiple backward graphs")
        # A CUDA graph is started in one call; elsewhere there is none.
        mode = "reduce-overhead" if device.type == "cuda" else None
        self._terms = torch.compile(_terms, fullgraph=True, backend=backend, mode=mode)
        self._outputs = torch.compile(_outputs, fullgraph=True, backend=backend, mode=mode)

    def terms(self, task: Task, model: TaskModel, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
        """Return the outputs and the terms of the loss for a filled batch on the device, with their graph."""
        assert batch.filling is not None
        given = replace(batch, filling=replace(batch.filling, keys_T=next_pass()))
        with _settings():
            return self._terms(task, model, _marked(given))

    def outputs(self, task: Task, model: TaskModel, batch: Batch) -> Outputs:
        """Return the outputs for a batch on the host without filling; rows are those of the batch."""
        given = filled(batch, self.scored).to(self.device)
        assert given.filling is not None
        with _settings():
            self.begin()
            outputs = self._outputs(task, model, _marked(given))
        return {name: values[: given.filling.rows] for name, values in outputs.items()}

    def eagerly(self) -> AbstractContextManager[object]:
        """Return a context in which the same is computed operation by operation, and hooks of modules are called."""
        stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return stance

    def begin(self) -> None:
        """Say that nothing of the passes before is needed any more, so that CUDA graphs may overwrite it."""
        if self.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()


def outputs_of(
    compiled: Compiled | None, task: Task, model: TaskModel, batch: Batch, precision: NumberFormat, device: torch.device
) -> Outputs:
    """Return the outputs for a batch on the host, compiled or by the model itself, in the precision of the run."""
    with precision.autocast(device):
        if compiled is not None:
            return compiled.outputs(task, model, batch)
        return task.forward(model, batch.to(device))


class GradientSums:
    """The sum of the gradients of passes, in memory that no CUDA graph overwrites."""

    def __init__(self, trained: Sequence[nn.Parameter]):
        self._trained = trained
        self._memory: dict[nn.Parameter, Tensor] = {}
        self._sums: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def take(self) -> None:
        """Add the gradients of a pass, and set them to None."""
        first: list[tuple[Tensor, Tensor]] = []
        more: list[tuple[Tensor, Tensor]] = []
        for each in self._trained:
            if (new := each.grad) is not None:
                if each not in self._memory:
                    self._memory[each] = torch.empty_like(new)
                (more if each in self._sums else first).append((self._memory[each], new))
                self._sums[each], each.grad = self._memory[each], None
        if first:
            torch._foreach_copy_([total for total, _ in first], [new for _, new in first])
        if more:
            torch._foreach_add_([total for total, _ in more], [new for _, new in more])

    def give(self) -> None:
        """Set the gradients of parameters to the sums, and begin again."""
        for each, total in self._sums.items():
            each.grad = total
        self._sums = {}


class CompiledTask:
    """A task whose forward pass and terms are computed together; anything else is that of the task."""

    def __init__(self, task: Task, compiled: Compiled):
        self._task, self._compiled = task, compiled
        # Not by the first pass: what it keeps would be in memory that CUDA graphs overwrite.
        for loss in (getattr(each, "loss", None) for each in _members(task)):
            for weights in vars(loss).values() if loss is not None else ():
                if isinstance(weights, ClassWeights):
                    weights.on(compiled.device)

    def __getattr__(self, name: str) -> object:
        return getattr(self._task, name)

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        """Return the outputs of a filled batch; those of rows of filling are zeros."""
        assert x_TD is None, "methods that change word vectors run eagerly"
        outputs, terms = self._compiled.terms(self._task, model, batch)
        return WithTerms(outputs, terms)

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> Mapping[str, Tensor]:
        """Return the terms that the forward pass has computed."""
        assert isinstance(outputs, WithTerms)
        return outputs.terms


class WithTerms(dict[str, Tensor]):
    """Outputs, with the terms of the loss."""

    def __init__(self, outputs: Outputs, terms: dict[str, Tensor]):
        super().__init__(outputs)
        self.terms = terms


def _outputs(task: Task, model: TaskModel, batch: Batch) -> Outputs:
    return task.forward(model, batch)


def _terms(task: Task, model: TaskModel, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
    filling = batch.filling
    assert filling is not None
    # Equal rows of two passes have no divergence, so what a method compares of filling is nothing either.
    outputs = {
        name: torch.where(filling.is_real_N[:, None], values, 0.0)
        for name, values in task.forward(model, batch).items()
    }
    with torch.autocast(batch.tokens_T.device.type, enabled=False):
        return outputs, task.terms(model, batch, outputs)


def _marked(batch: Batch) -> Batch:
    """Return the batch, whose numbers of rows are marked as symbols of the graph."""
    filling = batch.filling
    assert filling is not None
    by_row: list[Tensor | None] = [
        batch.tokens_T,
        batch.segments_T,
        batch.positions_T,
        batch.starts_S,
        *batch.targets.values(),
    ]
    by_row += [filling.slots_SL, filling.lengths_S, filling.slot_T, filling.is_real_N, batch.units_U, filling.keys_T]
    for tensor in by_row:
        if tensor is not None:
            torch._dynamo.mark_dynamic(tensor, 0)
    for by_column in (batch.sequences_KB, filling.slots_SL):
        torch._dynamo.mark_dynamic(by_column, 1)
    return batch


def _is_news(record: logging.LogRecord) -> bool:
    # From 9 shapes on torch advises to use few shapes, as is done here.
    return "distinct sizes" not in record.getMessage()


@contextmanager
def _settings() -> Iterator[None]:
    # At each call, since torch keeps them for each thread; not only in this block, since backward passes are compiled
    # when they are first computed.
    # Autocast is left before the backward pass, as in an eager one.
    torch._functorch.config.backward_pass_autocast = "off"
    # Kernels that decide the order of sums are not chosen by their speed, which differs each time.
    torch._inductor.config.deterministic = True
    limits = torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS, accumulated_recompile_limit=4 * MOST_GRAPHS)
    # Without "duck shapes": equal numbers of tokens and of units in the first batch would be taken for one symbol.
    with limits, torch.fx.experimental._config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        yield
