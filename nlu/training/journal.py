"""What a run writes beside train.tsv and valid.tsv: what its model recorded, and all numbers to its tracker.

Rank 0 writes. What `nlu.runs.summary` recorded is added up over the ranks at each row of train.tsv, and before a state
is saved, which holds the sums since that row: so a continued run writes the same rows.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from nlu.config.flat import WITHOUT_EFFECT, flat
from nlu.config.stopping import Stopped
from nlu.runs import summary
from nlu.runs.folder import is_repeat_or_job
from nlu.runs.records import HISTOGRAM_COLUMNS, HISTOGRAMS, SCALAR_COLUMNS, SCALARS, Cell, Table
from nlu.runs.state import State, Window
from nlu.storage.redaction import without_secrets
from nlu.tracking.guarded import Guarded
from nlu.tracking.nothing import Nothing
from nlu.tracking.points import of_histograms, of_scalars, of_train, of_valid, past_points
from nlu.tracking.tracker import Beginning, Outcome, Tracker
from nlu.training.ranks import Ranks

FOLDER = "tracker"
COLUMNS = {SCALARS: SCALAR_COLUMNS, HISTOGRAMS: HISTOGRAM_COLUMNS}


class Journal:
    """Of one run, on one rank."""

    def __init__(self, ranks: Ranks, tracker: Tracker):
        self._ranks = ranks
        self._tracker = Guarded(tracker if ranks.is_first else Nothing())
        self._collector = summary.Collector()
        self._tables: dict[str, Table] = {}

    def begin(self, run_dir: Path, config: Mapping[str, Any], state: State) -> None:
        """Mend its tables and open the tracker; on rank 0, once train.tsv and valid.tsv end at the state's step."""
        self._run_dir = run_dir
        for name in COLUMNS:
            if (run_dir / name).is_file():
                self._table(name).truncate_after(state.step)
        group, name = names_of(run_dir)
        shown = {key: value for key, value in config.items() if key not in WITHOUT_EFFECT and key != "tracker"}
        told = without_secrets(flat(shown))
        step = state.step
        self._tracker.start(
            Beginning(name, group, run_dir / FOLDER, told, step, past=lambda: past_points(run_dir, step))
        )

    def listening(self) -> AbstractContextManager[None]:
        """Record what the model calls within the block."""
        return summary.listening(self._collector)

    def gather(self, window: Window) -> None:
        """Add what was recorded on all ranks to rank 0's window; all ranks call it at the same steps."""
        means, histograms = self._collector.take()
        if self._ranks.sum_on_host([float(bool(means or histograms))])[0] == 0:
            return
        for each in self._ranks.gather_to_first((means, histograms)) or []:
            window.add_recorded(*each)

    def window(self, row: Mapping[str, Cell], window: Window) -> None:
        """Tell a row of train.tsv, and write what was recorded since the last; on rank 0."""
        self._tracker.log(of_train(row))
        place = {name: row[name] for name in ("step", "epoch", "examples")}
        for name, mean in sorted(window.recorded.items()):
            scalar: dict[str, Cell] = {**place, "name": name, "value": mean.value, "calls": mean.calls}
            self._table(SCALARS).append(**scalar)
            self._tracker.log(of_scalars(scalar))
        for name, histogram in sorted(window.histograms.items()):
            rows: list[dict[str, Cell]] = [
                {**place, "name": name, "low": low, "high": high, "count": count}
                for low, high, count in histogram.rows()
            ]
            for each in rows:
                self._table(HISTOGRAMS).append(**each)
            self._tracker.log(of_histograms(rows))

    def evaluation(self, row: Mapping[str, Cell]) -> None:
        """Tell a row of valid.tsv; on rank 0."""
        self._tracker.log(of_valid(row))

    def sync(self) -> None:
        """Have everything on the disk; on rank 0, before a state is saved that a run may continue from."""
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
        """Close the tracker where the block raises or is stopped."""
        try:
            yield
        except Stopped:
            self.end("stopped")
            raise
        except BaseException:
            self.end("failed")
            raise

    def _table(self, name: str) -> Table:
        """Return a table, made with its first row: most runs record nothing."""
        if name not in self._tables:
            self._tables[name] = Table(self._run_dir / name, COLUMNS[name])
        return self._tables[name]


def names_of(run_dir: Path) -> tuple[str | None, str]:
    """Return the group and the name of a run: of one among several the folder above them all, and its place there."""
    top = run_dir = run_dir.resolve()
    while is_repeat_or_job(top) and top.parent != top:
        top = top.parent
    if top == run_dir:
        return None, run_dir.name
    return top.name, f"{top.name}/{run_dir.relative_to(top).as_posix()}"
