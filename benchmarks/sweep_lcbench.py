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
import heapq
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import Trial, TrialState, create_trial

from nlu.search import steps
from nlu.search.pruners import PRUNER, HalvingPruner
from nlu.search.sampling import SeededByTrial, stable_seed
from nlu.search.schedulers.choosing import build
from nlu.search.schedulers.encoding import value_at
from nlu.search.schedulers.scheduler import PAUSING
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
METHODS = {
    "random": ("none", "random"), "tpe": ("none", "tpe"), "hyperband": ("hyperband", "tpe"),
    "hyperband+random": ("hyperband", "random"), "asha": ("asha", "tpe"), "asha+random": ("asha", "random"),
    "freeze_thaw": ("freeze_thaw", "random"),
}  # fmt: skip
"""pruner and sampler of each method"""


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


class Simulation:
    """A search whose jobs take a unit of time for each epoch."""

    def __init__(self, surrogate: Surrogate, task: str, method: str, seed: int, budget: int, jobs: int, trials: int):
        self._surrogate, self._task, self._budget, self._jobs, self._trials = surrogate, task, budget, jobs, trials
        pruner, sampler = METHODS[method]
        name = f"{task}_{seed}"
        # With the same first configurations on all data sets, a mean over them would still be the luck of a few draws.
        seed = stable_seed(task, seed)
        kinds: dict[str, Any] = {"random": RandomSampler, "tpe": TPESampler}
        self._study = optuna.create_study(
            study_name=name, direction="maximize", sampler=SeededByTrial(lambda own: kinds[sampler](seed=own), seed)
        )
        spec: dict[str, Any] = {"name": pruner}
        if pruner != "none":
            spec |= {"min_resource": 1, "max_resource": EPOCHS, "reduction_factor": 3}
        # In memory: the storage has no other way to it.
        self._storage = self._study._storage
        self._study.set_user_attr(PRUNER, spec)
        self._pruner = None if pruner in PAUSING else HalvingPruner(spec, self._storage)
        self._scheduler = build({**spec, "max_examples": None, "parts": 1}, SPACE, lambda key: None, seed)
        self._curves: dict[int, np.ndarray] = {}
        self.best: list[float] = []
        """after each epoch of any trial"""
        self.decision_s: list[float] = []
        self.steps = self.starts = 0
        """steps of all trials; those that start a process: their trial is not the one whose step has just ended"""
        self._asking: int | None = None

    def run(self) -> None:
        """Search until the budget is spent."""
        running: list[tuple[float, int, int]] = []
        now, launched = 0.0, 0
        while len(self.best) < self._budget * EPOCHS:
            while len(running) < self._jobs and (number := self._next()) is not None:
                launched += 1
                heapq.heappush(running, (now + self._length(number), launched, number))
            if not running:
                return
            now, _, number = heapq.heappop(running)
            self._advance(number)

    def _next(self) -> int | None:
        trials = self._study.get_trials(deepcopy=False)
        may_begin = len(trials) < self._trials
        if self._pruner is not None:
            return self._begun(self._study.ask().number) if may_begin else None
        began_s = time.process_time()
        log = steps.log_of(trials)
        asking, self._asking = self._asking, None
        decision = self._scheduler.decide(
            steps.standings(trials, maximize=True, asking=asking), log, may_begin=may_begin
        )
        self.decision_s.append(time.process_time() - began_s)
        if decision is None:
            return None
        self.steps += 1
        self.starts += decision.number is None or decision.number != asking
        name, step = steps.step_of(decision, len(log), answers=True)
        if decision.number is not None:
            self._storage.set_trial_system_attr(decision.number, name, step)
            return decision.number
        fixed = {} if decision.values is None else {steps.FIXED: dict(decision.values)}
        trial = create_trial(state=TrialState.RUNNING, system_attrs={name: step, **fixed})
        return self._begun(self._storage.create_new_trial(self._study._study_id, trial))

    def _begun(self, number: int) -> int:
        trial = Trial(self._study, number)
        values = SPACE.draw(trial._suggest, lambda key: None)
        trial.set_user_attr(steps.VALUES, values)
        self._curves[number] = self._surrogate.curves(self._task, [list(values.values())])[0]  # type: ignore[arg-type]
        return number

    def _length(self, number: int) -> int:
        """Return the epochs until the next decision about a trial."""
        trial = self._storage.get_trial(number)
        seen = trial.last_step or 0
        if (until := steps.until_of(trial)) is not None:
            return until - seen
        return 1

    def _advance(self, number: int) -> None:
        trial = self._storage.get_trial(number)
        seen = trial.last_step or 0
        until = seen + self._length(number) if self._pruner is None else EPOCHS
        for epoch in range(seen + 1, until + 1):
            value = float(self._curves[number][epoch - 1])
            self._storage.set_trial_intermediate_value(number, epoch, value)
            self.best.append(max(value, self.best[-1] if self.best else value))
            if self._pruner is not None and epoch < EPOCHS:
                if self._pruner.prune(self._study, self._storage.get_trial(number)):
                    self._study.tell(number, state=TrialState.PRUNED)
                    return
        if until == EPOCHS:
            self._study.tell(number, float(self._curves[number].max()))
        else:
            self._storage.set_trial_system_attr(number, *steps.pause_of(until, self.steps))
            self._asking = number


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
                        surrogate, task, method, seed, arguments.budget, arguments.jobs, arguments.trials
                    )
                    search.run()
                    values = search.best + search.best[-1:] * (arguments.budget * EPOCHS - len(search.best))
                    regret = [round((high - value) / (high - median), 5) for value in values]
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
