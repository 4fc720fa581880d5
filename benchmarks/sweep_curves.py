"""Regret of searches on the curves of real runs (benchmarks/curves): the pruners against each other, in seconds.

    python benchmarks/sweep_curves.py                                        # the tasks to tune on
    python benchmarks/sweep_curves.py --tasks judge --figure docs/images/regret_curves.png
    python benchmarks/sweep_curves.py --tasks sst2_static --methods asha+random --set min_resource=2

A trial is one of the 60 configurations of a task; a drawn one becomes the nearest that was not tried. Schedulers,
pruner, sampler and the log of steps are those of nlu.search. Regret is (best of all configurations - best value seen) /
(best - median of them), at any evaluation, after a number of full runs.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from simulated import METHODS, Simulation

from nlu.search.schedulers.encoding import Encoding
from nlu.search.space import Space, distribution_of, value_within

HERE = Path(__file__).resolve().parent / "curves"
TASKS = {
    "tune": ["sst2_static", "tnews_textcnn", "reviews_static"],
    "judge": ["reviews_textcnn", "tnews_simbert_tiny", "cluener_textcnn"],
}
AT = (1, 2, 3, 4, 6, 8, 10, 15, 20)


class TableSpace(Space):
    """The configurations of a table: whatever is drawn becomes the nearest one."""

    rows: list[dict[str, object]]

    def of(self, rows: list[dict[str, object]]) -> "TableSpace":
        """Set the configurations."""
        self.rows = rows
        self._encoding = Encoding({name: [each] for name, each in self.params.items()})
        self._points = self._encoding.rows(rows)
        self.used: set[int] = set()
        return self

    def nearest(self, values: Mapping[str, object], unused: bool) -> int:
        """Return the nearest configuration, if asked the nearest that no trial has."""
        apart = ((self._points - self._encoding.rows([values])) ** 2).sum(1)
        if unused and len(self.used) < len(self.rows):
            apart[list(self.used)] = np.inf
        return int(np.argmin(apart))

    def draw(self, suggest: Callable[[str, Any], object], composed: Callable[[str], str | None]) -> dict[str, object]:
        return dict(self.rows[self.nearest(super().draw(suggest, composed), unused=True)])


class Table:
    """The curves of a task."""

    def __init__(self, task: str, decides: str = "averaged"):
        content = json.loads((HERE / f"{task}.json").read_text(encoding="utf-8"))
        params = {}
        for text in content["space"]:
            override = OverridesParser.create().parse_overrides([text])[0]
            params[override.get_key_element()] = distribution_of(override)
        first = [run for run in content["runs"] if run["seed"] == 1]
        rows = [{name: value_within(params[name], text) for name, text in run["values"].items()} for run in first]
        self.space = TableSpace(params).of(rows)
        self._reported = [run[decides] for run in first]
        self._worth = [run["averaged"] for run in first]
        self.evaluations = min(map(len, self._worth))
        best = [max(each) for each in self._worth]
        self.best, self.median = max(best), statistics.median(best)

    def begin(self) -> None:
        """Forget which configurations were tried."""
        self.space.used.clear()

    def curve(self, values: Mapping[str, object]) -> tuple[Sequence[float], Sequence[float]]:
        """Return the curve of a configuration, which is tried from now on."""
        row = self.space.nearest(values, unused=False)
        self.space.used.add(row)
        return self._reported[row], self._worth[row]


def regrets(
    task: str, method: str, seeds: int, budget: int, jobs: int, decides: str, settings: dict[str, Any]
) -> tuple[np.ndarray, list[float], list[tuple[int, int]]]:
    """Return the regret of each seed after each evaluation, the seconds of decisions, and the counts of starts."""
    table = Table(task, decides)
    found, decision_s, counts = [], [], []
    for seed in range(seeds):
        table.begin()
        search = Simulation(table, task, method, seed, budget, jobs, len(table.space.rows), **settings)
        search.run()
        found.append([(table.best - value) / (table.best - table.median) for value in search.best])
        decision_s += search.decision_s
        counts.append((search.starts, search.steps))
    return np.array(found), decision_s, counts


def main() -> None:
    """Run the searches and print their regrets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="tune", help=f"tune, judge, or of {', '.join(sum(TASKS.values(), []))}")
    parser.add_argument(
        "--methods", default="random,hyperband,asha+random,freeze_thaw", help=f"of {', '.join(METHODS)}"
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=20, help="full runs of each search")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--decides", choices=["averaged", "raw"], default="averaged", help="weights that rungs score")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=NUMBER", help="a resource of the pruner")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tasks = TASKS.get(arguments.tasks) or arguments.tasks.split(",")
    settings = {key: int(number) for key, number in (each.split("=") for each in arguments.set)}
    at = [runs for runs in AT if runs <= arguments.budget]
    print(
        f"{arguments.seeds} searches on each, {arguments.jobs} at a time, {arguments.decides} weights; mean regret after"
    )
    for task in tasks:
        ends = Table(task).evaluations
        print(f"\n{task}, {ends} evaluations".ljust(38) + "".join(f"{runs:>8}" for runs in at))
        for method in arguments.methods.split(","):
            found, decision_s, counts = regrets(
                task, method, arguments.seeds, arguments.budget, arguments.jobs, arguments.decides,
                settings if METHODS[method][0] != "none" else {},
            )  # fmt: skip
            cells = "".join(f"{found[:, runs * ends - 1].mean():8.3f}" for runs in at)
            slow = (
                f"   decision {statistics.median(decision_s):.3f} s, at most {max(decision_s):.3f}"
                if decision_s
                else ""
            )
            print(method.ljust(37) + cells + slow, flush=True)


if __name__ == "__main__":
    main()
