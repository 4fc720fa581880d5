"""Further outputs of a run: what the model recorded, what was seen inside of it, and all numbers for the tracker.

Rank 0 writes. The recordings of `nlu.runs.summary` are summed over the ranks at each row of train.tsv and before each
save. The state contains the sums since the last row, so a continued run writes the same rows.

With `inspect=true`, the steps that write a row of train.tsv also write the norms of gradients, weights and updates by
module. Nothing that is trained changes: norms are read between the gradient and the update, and after it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from nlu.config.redaction import without_secrets
from nlu.config.schema import flat, has_effect
from nlu.config.stopping import Stopped
from nlu.models.task_model import TaskModel
from nlu.optim.optimizer import named_parameters
from nlu.runs import summary
from nlu.runs.folder import is_repeat_or_job
from nlu.runs.records import INSPECT, INSPECT_COLUMNS, SCALAR_COLUMNS, SCALARS, Cell, Table
from nlu.runs.state import State, Window
from nlu.tracking.guarded import Guarded
from nlu.tracking.nothing import Nothing
from nlu.tracking.tracker import (
    Beginning,
    Outcome,
    Tracker,
    of_inside,
    of_scalars,
    of_train,
    of_valid,
    past_points,
)
from nlu.training.ranks import Ranks

DIGITS = 6
"""of a norm in the table"""

FOLDER = "tracker"
COLUMNS = {SCALARS: SCALAR_COLUMNS, INSPECT: INSPECT_COLUMNS}


class Inspector:
    """Looks into the steps that write a row. Norms are those of this rank's gradients, weights and updates."""

    def __init__(self, model: TaskModel, own: nn.Module | None):
        self._trained: dict[str, list[nn.Parameter]] = {}
        """by the module that they belong to, in the order of the model, which is from the input to the output"""
        for name, parameter in named_parameters(model, own):
            if parameter.requires_grad:
                self._trained.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
        self._norms: dict[tuple[str, str], Tensor] = {}
        """by module and column, on the device"""
        self._before: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def before_update(self, loss_scale: Tensor | None) -> None:
        """Look at the gradient, of which `loss_scale` is a factor, and at the weights."""
        self._norms = {}
        for name, parameters in self._trained.items():
            if gradients := [one.grad for one in parameters if one.grad is not None]:
                norm = torch.nn.utils.get_total_norm(gradients)
                self._norms[name, "gradient"] = norm if loss_scale is None else norm / loss_scale
            self._norms[name, "weights"] = torch.nn.utils.get_total_norm([one.detach() for one in parameters])
        self._before = {name: [one.detach().clone() for one in each] for name, each in self._trained.items()}

    @torch.no_grad()
    def after_update(self) -> None:
        """Compare the updated weights with those before."""
        for name, before in self._before.items():
            changes = [now.detach() - then for now, then in zip(self._trained[name], before, strict=True)]
            self._norms[name, "update"] = torch.nn.utils.get_total_norm(changes)
        self._before = {}

    def rows(self) -> list[dict[str, Cell]]:
        """Return what was seen at the last inspected step, a row for each module with a gradient."""
        # The host waits for the device once.
        values = torch.stack([norm.double() for norm in self._norms.values()]).tolist() if self._norms else []
        rows: dict[str, dict[str, Cell]] = {}
        for (name, column), value in zip(self._norms, values, strict=True):
            rows.setdefault(name, {"name": name})[column] = float(f"{value:.{DIGITS}g}")
        return [row for row in rows.values() if "gradient" in row]


class Journal:
    """The further outputs of one run, on one rank."""

    def __init__(self, ranks: Ranks, tracker: Tracker):
        self._ranks = ranks
        # A tracker on each rank would create a run for each of them.
        self._tracker = Guarded(tracker if ranks.is_first else Nothing())
        self._collector = summary.Collector()
        self._tables: dict[str, Table] = {}

    def begin(self, run_dir: Path, config: Mapping[str, object], state: State) -> None:
        """Truncate its tables to the step of the state, and start the tracker. On rank 0, after train.tsv and valid.tsv
        were truncated."""
        self._run_dir = run_dir
        for name in COLUMNS:
            if (run_dir / name).is_file():
                self._table(name).truncate_after(state.step)
        group, name = names_of(run_dir)
        shown = {key: value for key, value in flat(dict(config)).items() if has_effect(key)}
        public = without_secrets(shown)
        step = state.step
        self._tracker.start(
            Beginning(name, group, run_dir / FOLDER, public, step, past=lambda: past_points(run_dir, step))
        )

    def listening(self) -> AbstractContextManager[None]:
        """Record the calls of the model within the block."""
        return summary.listening(self._collector)

    def gather(self, window: Window) -> None:
        """Add the recordings of all ranks to the window of rank 0. Every rank must call it at the same steps."""
        means = self._collector.take()
        # Most runs record nothing; one small sum is then all that this costs. All ranks must agree before the second
        # collective, because only some of them may have recorded something.
        if self._ranks.sum_on_host([float(bool(means))])[0] == 0:
            return
        for each in self._ranks.gather_to_first(means) or []:
            window.add_recorded(each)

    def window(self, row: Mapping[str, Cell], window: Window) -> None:
        """Log a row of train.tsv, and write the recordings since the last row; on rank 0."""
        self._tracker.log(of_train(row))
        place = {name: row[name] for name in ("step", "epoch", "examples")}
        for name, mean in sorted(window.recorded.items()):
            scalar: dict[str, Cell] = {**place, "name": name, "value": mean.value, "calls": mean.calls}
            self._table(SCALARS).append(**scalar)
            self._tracker.log(of_scalars(scalar))

    def inside(self, row: Mapping[str, Cell], rows: Iterable[Mapping[str, Cell]]) -> None:
        """Write what `nlu.training.journal` saw at the step of a row of train.tsv; on rank 0."""
        place = {name: row[name] for name in ("step", "epoch", "examples")}
        for one in rows:
            self._table(INSPECT).append(**place, **one)
            self._tracker.log(of_inside({**place, **one}))

    def evaluation(self, row: Mapping[str, Cell]) -> None:
        """Log a row of valid.tsv; on rank 0."""
        self._tracker.log(of_valid(row))

    def sync(self) -> None:
        """Write everything to the disk; on rank 0, before a state is saved."""
        for table in self._tables.values():
            table.sync()
        self._tracker.flush()

    def end(self, outcome: Outcome, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Close the tracker; `metrics` are those of the best weights, by set."""
        found = metrics or {}
        self._tracker.end(
            outcome, {f"best/{name}/{metric}": value for name, one in found.items() for metric, value in one.items()}
        )

    @contextmanager
    def closed_on_errors(self) -> Iterator[None]:
        """Close the tracker if the block raises an error or is stopped."""
        try:
            yield
        except Stopped:
            self.end("stopped")
            raise
        except BaseException:
            self.end("failed")
            raise

    def _table(self, name: str) -> Table:
        """Return a table, which is only created for its first row, since most runs record nothing."""
        if name not in self._tables:
            self._tables[name] = Table(self._run_dir / name, COLUMNS[name])
        return self._tables[name]


def names_of(run_dir: Path) -> tuple[str | None, str]:
    """Return group and name of a run: for one of several runs, the folder above them all and its place in there."""
    top = run_dir = run_dir.resolve()
    while is_repeat_or_job(top) and top.parent != top:
        top = top.parent
    if top == run_dir:
        return None, run_dir.name
    return top.name, f"{top.name}/{run_dir.relative_to(top).as_posix()}"
