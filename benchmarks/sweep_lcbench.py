"""Regret of searches by budget on LCBench, simulated by the surrogate of YAHPO Gym: the schedulers against each other.

    python benchmarks/sweep_lcbench.py                                      # the even data sets, for tuning
    python benchmarks/sweep_lcbench.py --tasks odd --figure outputs/regret.png
    python benchmarks/sweep_lcbench.py --tasks 3945,7593 --methods freeze_thaw --jobs 4

A trial is a network with 7 parameters that is scored after each of 52 epochs; the surrogate predicts its curve.
Schedulers, pruner, sampler and the log of steps are those of nlu.search, over a study in memory. Regret is (best of
3,000 random configurations - best value seen) / (best - median of them), at any epoch, after a number of full runs.
Needs onnxruntime and the folder `lcbench` of the surrogate (model.onnx, encoding.json, config_space.json; from
github.com/slds-lmu/yahpo_data, Apache-2.0), in $NLU_DATA or --data.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from simulated import METHODS, Simulation

from nlu.search.schedulers.encoding import value_at
from nlu.search.space import Space

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("NLU_DATA", ROOT.parent / "shared" / "data")) / "lcbench"
EPOCHS = 52
AT = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
REFERENCE = 3000
SPACE = Space(
    {
        "batch_size": IntDistribution(16, 512, log=True), "learning_rate": FloatDistribution(1e-4, 0.1, log=True),
        "momentum": FloatDistribution(0.1, 0.99), "weight_decay": FloatDistribution(1e-5, 0.1),
        "num_layers": IntDistribution(1, 5), "max_units": IntDistribution(64, 1024, log=True),
        "max_dropout": FloatDistribution(0.0, 1.0),
    }
)  # fmt: skip


class Surrogate:
    """The curves of LCBench."""

    def __init__(self, folder: Path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        self._codes = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"]
        space = json.loads((folder / "config_space.json").read_text())["hyperparameters"]
        self.tasks: list[str] = next(each["choices"] for each in space if each["name"] == "OpenML_task_id")

    def curves(self, task: str, configurations: Sequence[Sequence[float]]) -> np.ndarray:
        """Return the validation accuracy of each configuration after each epoch, from 0 to 1."""
        found = []
        for first in range(0, len(configurations), 100):
            part = np.array(configurations[first : first + 100])
            epochs = np.tile(np.arange(1, EPOCHS + 1), len(part))[:, None]
            numbers = np.concatenate([epochs, np.repeat(part, EPOCHS, 0)], 1).astype(np.float32)
            codes = np.full((len(numbers), 1), self._codes[task], np.int32)
            found.append(self._session.run(None, {"x_cat": codes, "x_cont": numbers})[0][:, 1].reshape(-1, EPOCHS))
        return np.concatenate(found) / 100

    def reference(self, task: str) -> tuple[float, float]:
        """Return the best and the median value of random configurations."""
        shares = np.random.default_rng(123).random((REFERENCE, len(SPACE.params)))
        drawn = [[value_at(each, x) for each, x in zip(SPACE.params.values(), row, strict=True)] for row in shares]
        best = self.curves(task, drawn).max(1)
        return float(best.max()), float(np.median(best))


class Curves:
    """The curves of one data set."""

    space, evaluations = SPACE, EPOCHS

    def __init__(self, surrogate: Surrogate, task: str):
        self._surrogate, self._task = surrogate, task

    def curve(self, values: Mapping[str, object]) -> tuple[Sequence[float], Sequence[float]]:
        """Return the curve of a configuration: what it reports is what it is worth."""
        found = self._surrogate.curves(self._task, [list(values.values())])[0]  # type: ignore[arg-type]
        return found, found


def referenced(surrogate: Surrogate, task: str, file: Path | None) -> tuple[float, float]:
    """Return `Surrogate.reference`, which takes seconds, from a file that keeps it."""
    kept: dict[str, tuple[float, float]] = json.loads(file.read_text()) if file and file.is_file() else {}
    if task not in kept:
        kept[task] = surrogate.reference(task)
        if file:
            file.write_text(json.dumps(kept))
    return kept[task]


def kept_searches(file: Path | None) -> dict[str, dict[str, Any]]:
    """Return the searches that a file keeps, by what defines them."""
    lines = file.read_text().splitlines() if file and file.is_file() else []
    return {json.dumps(each["search"]): each for each in map(json.loads, lines)}


def share_for(curves: Sequence[Sequence[float]], goal: float) -> float | None:
    """Return the share of the budget after which the mean regret is no more than `goal`."""
    mean = np.mean(curves, 0)
    reached = np.flatnonzero(mean <= goal)
    return float(reached[0] + 1) / len(mean) if len(reached) else None


def draw(path: Path, searches: Iterable[Mapping[str, Any]], title: str) -> None:
    """Draw the mean regret of each method by budget, with its standard error, up to the budget that was searched."""
    from matplotlib.figure import Figure

    curves: dict[str, dict[int, list[list[float]]]] = {}
    for each in searches:
        _, _, method, jobs, _, budget = each["search"]
        label = method if jobs == 1 else f"{method}, {jobs} at a time"
        curves.setdefault(label, {}).setdefault(budget, []).append(each["regret"][: budget * EPOCHS])
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, by_budget in sorted(curves.items()):
        found = by_budget[max(by_budget)]
        runs = np.arange(1, len(found[0]) + 1) / EPOCHS
        mean, error = np.mean(found, 0), np.std(found, 0) / np.sqrt(len(found))
        (line,) = axes.plot(runs, mean, label=label)
        axes.fill_between(runs, mean - error, mean + error, alpha=0.2, color=line.get_color())
    axes.set_yscale("log")
    axes.set_ylim(0.03, 2)
    axes.set_xlabel("budget, full runs")
    axes.set_ylabel("mean regret")
    axes.set_title(title)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the searches and print their regrets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="even", help="even, odd, or the numbers of some data sets")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--budget", type=int, default=24, help="full runs of each search")
    parser.add_argument("--methods", default="random,hyperband,asha,freeze_thaw", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--trials", type=int, default=100000, help="trials that may begin (hydra.sweeper.n_trials)")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--references", type=Path, help="a file that keeps the values of random configurations")
    parser.add_argument("--figure", type=Path, help="a picture of these searches and of all others that --out keeps")
    parser.add_argument("--out", type=Path, help="a file that keeps each search; those in it are not run again")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    surrogate = Surrogate(arguments.data)
    parity = {"even": slice(0, None, 2), "odd": slice(1, None, 2)}
    listed = arguments.tasks.split(",")
    tasks = surrogate.tasks[parity[arguments.tasks]] if arguments.tasks in parity else listed
    at = [runs for runs in AT if runs <= arguments.budget]
    methods = arguments.methods.split(",")
    curves: dict[str, list[list[float]]] = {method: [] for method in methods}
    found: dict[str, list[list[float]]] = {method: [] for method in methods}
    decision_s: dict[str, list[float]] = {method: [] for method in methods}
    counts: dict[str, list[tuple[int, int]]] = {method: [] for method in methods}
    kept = kept_searches(arguments.out)
    for task in tasks:
        high, median = referenced(surrogate, task, arguments.references)
        for seed in map(int, arguments.seeds.split(",")):
            for method in methods:
                key = [task, seed, method, arguments.jobs, arguments.trials, arguments.budget]
                if json.dumps(key) not in kept:
                    search = Simulation(
                        Curves(surrogate, task), task, method, seed, arguments.budget, arguments.jobs, arguments.trials
                    )
                    search.run()
                    regret = [round((high - value) / (high - median), 5) for value in search.best]
                    record = {
                        "search": key, "regret": regret, "decision_s": search.decision_s,
                        "steps": search.steps, "starts": search.starts,
                    }  # fmt: skip
                    kept[json.dumps(key)] = record
                    if arguments.out:
                        with arguments.out.open("a") as file:
                            file.write(json.dumps(record) + "\n")
                record = kept[json.dumps(key)]
                curve = record["regret"][: arguments.budget * EPOCHS]
                curves[method].append(curve)
                found[method].append([curve[runs * EPOCHS - 1] for runs in at])
                decision_s[method] += record["decision_s"]
                # Files of a former version lack them.
                counts[method] += [(record["starts"], record["steps"])] if record.get("steps") else []
                line = f"{task} {seed} {method}: {' '.join(f'{regret:.3f}' for regret in found[method][-1])}"
                print(line, file=sys.stderr, flush=True)
    print(f"{len(tasks)} data sets, seeds {arguments.seeds}, {arguments.jobs} at a time; mean (median) regret after")
    print("full runs".ljust(18) + "".join(f"{runs:>15}" for runs in at))
    for method, rows in found.items():
        cells = [f"{statistics.fmean(each):.3f} ({statistics.median(each):.3f})" for each in zip(*rows, strict=True)]
        print(method.ljust(18) + "".join(cell.rjust(15) for cell in cells))
    if "random" in curves:
        goal = float(np.mean(curves["random"], 0)[-1])
        for method, each in curves.items():
            share = share_for(each, goal)
            print(
                f"{method} reaches the last regret of random search, {goal:.3f}, with "
                + ("more than its epochs" if share is None else f"{share:.0%} of its epochs")
            )
    for method, spent_s in decision_s.items():
        if spent_s:
            slow = np.quantile(spent_s, [0.5, 0.99, 1.0])
            print(
                f"a decision of {method}: median {slow[0]:.3f} s, 99 % {slow[1]:.3f} s, longest {slow[2]:.3f} s (CPU)"
            )
    for method, pairs in counts.items():
        if pairs:
            starts, of_steps = np.mean(pairs, 0)
            print(f"a search of {method}: {of_steps:.0f} steps, {starts:.0f} of which start a process")
    if arguments.figure:
        seeds = list(map(int, arguments.seeds.split(",")))
        drawn = [each for each in kept.values() if each["search"][0] in tasks and each["search"][1] in seeds]
        draw(arguments.figure, drawn, f"LCBench, {len(tasks)} data sets, {len(seeds)} searches on each")


if __name__ == "__main__":
    main()
