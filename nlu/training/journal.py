"""Further outputs of a run: what the model recorded, what was seen inside of it, and all numbers for the tracker.

Rank 0 writes. The recordings of `nlu.runs.summary` are summed over the ranks at each row of train.tsv and before each
save. The state contains the sums since the last row, so a continued run writes the same rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from nlu.config.redaction import without_secrets
from nlu.config.schema import flat, has_effect
from nlu.config.stopping import Stopped
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

FOLDER = "tracker"
COLUMNS = {SCALARS: SCALAR_COLUMNS, INSPECT: INSPECT_COLUMNS}


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
        """Write what `nlu.training.inspection` saw at the step of a row of train.tsv; on rank 0."""
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
