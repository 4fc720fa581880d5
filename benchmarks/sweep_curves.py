"""Regret of searches on the curves of real runs (benchmarks/curves): the pruners against each other, in seconds.

    python benchmarks/sweep_curves.py                                        # the tasks to tune on
    python benchmarks/sweep_curves.py --tasks judge --figure docs/images/regret_curves.png
    python benchmarks/sweep_curves.py --tasks sst2_static --methods asha+random --set min_resource=2

A trial is one of the configurations of a task; a drawn one becomes the nearest that was not tried. Schedulers, pruner,
sampler and the log of steps are those of nlu.search. Regret is (best of all configurations - best value seen) / (best -
median of them), at any evaluation, after a number of full runs. Each search knows 40 of the 60 configurations: with all
of them, a mean over searches would still be the luck of the single best one (--configurations 60).
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    "tune": ["sst2_static", "tnews_textcnn"],
    "judge": ["reviews_textcnn", "tnews_simbert_tiny", "cluener_textcnn"],
}
AT = (1, 2, 3, 4, 6, 8, 10, 15, 20)
RUNS, SHARE = 24, 0.35
"""a search is also compared with random search over so many whole trials, at this share of their examples"""


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
        self._rows, self._all = rows, [(run[decides], run["averaged"]) for run in first]
        self.space = TableSpace(params)
        self.evaluations = min(len(run["averaged"]) for run in first)
        self.begin(0, len(rows))

    def begin(self, seed: int, configurations: int) -> None:
        """Draw the configurations that the next search knows; none of them was tried."""
        kept = np.random.default_rng(seed).permutation(len(self._rows))[:configurations]
        self.space.of([self._rows[row] for row in kept])
        self._reported, self._worth = zip(*(self._all[row] for row in kept), strict=True)
        self._bests = [max(each) for each in self._worth]
        self.best, self.median = max(self._bests), statistics.median(self._bests)

    @property
    def curves(self) -> Sequence[Sequence[float]]:
        """What each configuration is worth after each evaluation."""
        return self._worth

    def best_of_random(self, seed: int) -> float:
        """Return the best of some configurations that are trained to their end."""
        return float(max(np.random.default_rng(seed).choice(self._bests, RUNS, replace=False)))

    def curve(self, values: Mapping[str, object]) -> tuple[Sequence[float], Sequence[float]]:
        """Return the curve of a configuration, which is tried from now on."""
        row = self.space.nearest(values, unused=False)
        self.space.used.add(row)
        return self._reported[row], self._worth[row]


@dataclass
class Searches:
    """The searches of one method on one task, with different seeds."""

    regret_SE: np.ndarray
    """by seed and evaluation"""
    lost_points_S: np.ndarray
    """what the best trial after 8.4 whole trials has less than the best of 24, in points; negative: more"""
    decision_s: list[float]


def searched(task: str, method: str, arguments: argparse.Namespace) -> Searches:
    """Run the searches of a method on a task."""
    table = Table(task, arguments.decides)
    settings = {key: int(number) for key, number in (each.split("=") for each in arguments.set)}
    found, lost, decision_s = [], [], []
    for seed in range(arguments.seeds):
        table.begin(seed, arguments.configurations)
        search = Simulation(
            table, task, method, seed, arguments.budget, arguments.jobs, len(table.space.rows),
            **(settings if METHODS[method][0] != "none" else {}),
        )  # fmt: skip
        search.run()
        found.append([(table.best - value) / (table.best - table.median) for value in search.best])
        cheap = search.best[round(SHARE * RUNS * table.evaluations) - 1]
        lost.append(100 * (table.best_of_random(seed) - cheap))
        decision_s += search.decision_s
    return Searches(np.array(found), np.array(lost), decision_s)


def draw(path: Path, tasks: Sequence[str], found: Mapping[tuple[str, str], Searches]) -> None:
    """Draw the curves of each task above the mean regrets on it, with their standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(tasks), 6.6), layout="constrained")
    grid = figure.subplots(2, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        table, (above, below) = Table(task), grid[:, column]
        shares = np.arange(1, table.evaluations + 1) / table.evaluations
        for curve in table.curves:
            above.plot(shares, curve[: table.evaluations], linewidth=0.7, alpha=0.7)
        above.set(title=task, xlabel="share of a run", ylabel="score")
        for (of, method), each in found.items():
            if of == task:
                runs = np.arange(1, each.regret_SE.shape[1] + 1) / table.evaluations
                mean = each.regret_SE.mean(0)
                error = each.regret_SE.std(0) / np.sqrt(len(each.regret_SE))
                (line,) = below.plot(runs, mean, label=method)
                below.fill_between(runs, mean - error, mean + error, alpha=0.2, color=line.get_color())
        below.set(xlabel="budget, full runs", ylabel="mean regret", yscale="log", ylim=(0.01, 2))
    grid[1, 0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the searches and print their regrets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(name for names in TASKS.values() for name in names)
    parser.add_argument("--tasks", default="tune", help=f"tune, judge, or of {known}")
    parser.add_argument("--methods", default="random,hyperband,asha+random,freeze_thaw", help=", ".join(METHODS))
    parser.add_argument("--seeds", type=int, default=20, help="searches on each task")
    parser.add_argument("--budget", type=int, default=10, help="full runs of each search")
    parser.add_argument("--configurations", type=int, default=40, help="those that a search knows, of 60")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--decides", choices=["averaged", "raw"], default="averaged", help="weights that rungs score")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=NUMBER", help="a resource of the pruner")
    parser.add_argument("--figure", type=Path, help="a picture of curves and regrets")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tasks, methods = TASKS.get(arguments.tasks) or arguments.tasks.split(","), arguments.methods.split(",")
    at = [runs for runs in AT if runs <= arguments.budget]
    print(f"{arguments.seeds} searches on each task, {arguments.jobs} at a time; mean regret after so many full runs")
    found = {}
    for task in tasks:
        ends = Table(task).evaluations
        print(f"{task} ({ends})".ljust(26) + "".join(f"{runs:>7}" for runs in at) + f"   points lost for {SHARE:.0%}")
        for method in methods:
            each = found[task, method] = searched(task, method, arguments)
            cells = "".join(f"{each.regret_SE[:, runs * ends - 1].mean():7.3f}" for runs in at)
            lost = (
                f"{each.lost_points_S.mean():+.2f} +- {each.lost_points_S.std() / len(each.lost_points_S) ** 0.5:.2f}"
            )
            print(method.ljust(26) + cells + f"   {lost}", flush=True)
    print("mean".ljust(26) + "".join(f"{runs:>7}" for runs in at))
    for method in methods:
        rows = [
            [found[task, method].regret_SE[:, runs * Table(task).evaluations - 1].mean() for runs in at]
            for task in tasks
        ]
        print(method.ljust(26) + "".join(f"{value:7.3f}" for value in np.mean(rows, 0)))
    for method in methods:
        if spent_s := [each_s for task in tasks for each_s in found[task, method].decision_s]:
            print(
                f"a decision of {method}: median {statistics.median(spent_s):.3f} s, longest {max(spent_s):.3f} s (CPU)"
            )
    if arguments.figure:
        draw(arguments.figure, tasks, found)


if __name__ == "__main__":
    main()
