"""Several runs of one configuration together: means, standard deviations, and the joined predictions of folds.

Everything is read from their folders, without torch, because the runs may have been separate jobs.
"""

import heapq
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from nlu.config.errors import DataError, UserError
from nlu.config.targets import import_target, trust
from nlu.config.types import ConfigLike
from nlu.metrics.scores import Scorer
from nlu.runs.predictions import Predictions, Record, predictions_of
from nlu.search.goals import MEASURED

OUT_OF_FOLD = "out-of-fold"
HELD_OUT = "dev"
"""the set that holds the rows of a fold"""


def summarise(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result.json of several runs, given the result.json of each by name.

    `metrics` and `best.value` are means; `sd` and `best.sd` are sample standard deviations, None for a single run. If a
    run lacks a metric or has NaN, the mean is None. Examples and times are sums. `parts` has a row for each run.
    """
    names, runs = list(results), list(results.values())
    best = runs[0]["best"]
    values = [run["best"]["value"] for run in runs]
    measured = {name: mean_of([run[MEASURED][name] for run in runs]) for name in runs[0].get(MEASURED, {})}
    means, deviations = _over_runs(runs, mean_of), _over_runs(runs, deviation_of)
    return {
        "metrics": means,
        "sd": deviations,
        "best": {"set": best["set"], "metric": best["metric"], "value": mean_of(values), "sd": deviation_of(values)},
        "folds": runs[0]["folds"],
        "pruned": any(run["pruned"] for run in runs),
        "examples": sum(run["examples"] for run in runs),
        "steps": sum(run["steps"] for run in runs),
        "train_s": sum(run["train_s"] for run in runs),
        **({MEASURED: measured} if measured else {}),
        "parts": [
            {
                "name": name,
                **{key: run[key] for key in ("seed", "fold", "pruned", "examples")},
                **{key: run["best"][key] for key in ("value", "step")},
                "metrics": run["metrics"],
            }
            for name, run in zip(names, runs, strict=True)
        ],
    }


def _over_runs(
    runs: Sequence[Mapping[str, Any]], combine: Callable[[Sequence[float | None]], float | None]
) -> dict[str, dict[str, float | None]]:
    sets = dict.fromkeys(name for run in runs for name in run["metrics"])
    found: dict[str, dict[str, float | None]] = {}
    for name in sets:
        metrics = dict.fromkeys(metric for run in runs for metric in run["metrics"].get(name, {}))
        found[name] = {
            metric: combine([run["metrics"].get(name, {}).get(metric) for run in runs]) for metric in metrics
        }
    return found


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing or NaN."""
    numbers = _numbers(values)
    return statistics.fmean(numbers) if numbers else None


def deviation_of(values: Sequence[float | None]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values or if one is missing."""
    numbers = _numbers(values)
    return statistics.stdev(numbers) if len(numbers) > 1 else None


def _numbers(values: Sequence[float | None]) -> list[float]:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return numbers if len(numbers) == len(values) else []


@dataclass(frozen=True)
class JoinedFolds:
    """The held-out predictions of all folds of one split: every training example exactly once."""

    folds: int
    seed: int
    metrics: dict[str, float]
    """scores of the records of all folds"""
    parts: dict[int, Predictions]
    """of each fold"""

    @property
    def header(self) -> dict[str, Any]:
        """The header of a file of these records."""
        first = next(iter(self.parts.values())).header
        return {"folds": self.folds, "seed": self.seed, "kind": first.get("kind"), "metrics": self.metrics}

    def records(self) -> Iterator[Record]:
        """Yield the records in order of `id`, each with its `fold`. Each call reads the files again, as a stream."""
        return heapq.merge(*(_of_fold(fold, part) for fold, part in self.parts.items()), key=itemgetter("id"))


def _of_fold(fold: int, part: Predictions) -> Iterator[Record]:
    return ({"fold": fold, **record} for record in part)


def join_folds(folders: Sequence[Path]) -> JoinedFolds:
    """Join the held-out predictions of all folds of one split.

    Raises UserError if a fold is missing, given twice or from another split; DataError for a damaged file.
    """
    runs = [_read(folder / "result.json") for folder in folders]
    split = {(run["folds"], run["seed"]) for run in runs}
    folds = sorted(run["fold"] for run in runs if run["fold"] is not None)
    if len(split) != 1 or not folds or folds != list(range(runs[0]["folds"])):
        shown = ", ".join(
            f"{folder} (fold {run['fold']} of {run['folds']}, seed {run['seed']})"
            for folder, run in zip(folders, runs, strict=True)
        )
        raise UserError(f"these are not all folds of one split, each once: {shown}; give a folder for each fold")
    parts = {run["fold"]: predictions_of(folder, HELD_OUT) for folder, run in zip(folders, runs, strict=True)}
    joined = JoinedFolds(runs[0]["folds"], runs[0]["seed"], {}, dict(sorted(parts.items())))
    sets = _read(folders[0] / "data.json")["sets"]
    # The rows on which a fold trains and those that it holds out are all rows.
    wanted = sets["train"]["examples"] + sets[HELD_OUT]["examples"]
    held = [record["id"] for record in joined.records()]
    if not len(held) == len(set(held)) == wanted:
        raise UserError(
            f"the folds in {folders[0].parent} hold out {len(held)} rows, but there are {wanted} training examples, "
            "each held out once; if the data have changed between the folds, run them again"
        )
    names = _read(folders[0] / "data.json")["labels"]
    try:
        scorer = scorer_named(joined.parts[0].header["scorer"], names, _read_config(folders[0]))
        return replace(joined, metrics=scores_of(joined.records(), scorer))
    except KeyError as error:
        raise DataError(f"the predictions of the folds in {folders[0].parent} lack {error}; run them again") from error


def scorer_named(name: str, names: Sequence[str], config: ConfigLike) -> Scorer | None:
    """Return a new scorer of the class that scored predictions; None if it needs more than a configuration has.

    Options of the task that its scorer takes too, such as a threshold, are set as they are in the configuration.
    """
    trust(config)
    scorer = import_target(name)
    known = {**config.get("task", {}), "names": list(names)}
    wanted = signature(scorer).parameters.values()
    # Scorers of words have no labels.
    if any(one.default is one.empty and one.name not in known for one in wanted):
        return None
    return scorer(**{one.name: known[one.name] for one in wanted if one.name in known})


def scores_of(records: Iterable[Record], scorer: Scorer | None) -> dict[str, float]:
    """Return the scores of some predictions; none if the scorer needs more than predictions keep."""
    if scorer is None or not getattr(scorer, "joins", True):
        return {}
    for record in records:
        # A loss that is not finite is null in the file.
        scorer.add({**record, "loss": math.nan} if record.get("loss", 0.0) is None else record)
    return scorer.result().metrics


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
    except OSError:
        return {}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist, so this fold is not finished; finish the run with resume=auto"
        ) from None
