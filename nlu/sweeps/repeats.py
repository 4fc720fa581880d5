"""Several runs of one configuration taken together: mean and standard deviation, and the folds' predictions joined.

Read from their folders, without torch, by the command that ran them one after another as by the report on a sweep that
spread them over jobs. Axes: N joined examples.
"""

import heapq
import inspect
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import yaml

from nlu.config.errors import DataError, UserError
from nlu.config.targets import import_target
from nlu.metrics.scores import Scorer
from nlu.runs.predictions import Predictions, Record, predictions_of

OUT_OF_FOLD = "out-of-fold"
HELD_OUT = "dev"
"""the set that holds the rows of a fold"""


def count_parts(config: Mapping[str, Any]) -> int:
    """Return how many runs a configuration consists of: its folds times its seeds."""
    count, fold = config["folds"]["count"], config["fold"]
    return config["seeds"] * (count if count is not None and fold is None else 1)


def summarise(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result.json of several runs, from the result.json of each by its name.

    `metrics` and `best.value` are means, `sd` and `best.sd` sample standard deviations (None for a single run); the
    means of a metric that some run lacks or has as NaN are None. Examples and times are sums. `parts` has a row for
    each run.
    """
    names, runs = list(results), list(results.values())
    best = runs[0]["best"]
    values = [run["best"]["value"] for run in runs]
    means, deviations = _over_runs(runs, mean_of), _over_runs(runs, deviation_of)
    return {
        "metrics": means,
        "sd": deviations,
        "best": {
            "set": best["set"], "metric": best["metric"], "value": mean_of(values), "sd": deviation_of(values),
        },
        "folds": runs[0]["folds"],
        "pruned": any(run["pruned"] for run in runs),
        "examples": sum(run["examples"] for run in runs),
        "steps": sum(run["steps"] for run in runs),
        "train_s": sum(run["train_s"] for run in runs),
        "parts": [
            {
                "name": name, **{key: run[key] for key in ("seed", "fold", "pruned", "examples")},
                **{key: run["best"][key] for key in ("value", "step")}, "metrics": run["metrics"],
            }
            for name, run in zip(names, runs, strict=True)
        ],
    }  # fmt: skip


def _over_runs(runs: Sequence[Mapping[str, Any]], combine: Any) -> dict[str, dict[str, float | None]]:
    sets = dict.fromkeys(name for run in runs for name in run["metrics"])
    found: dict[str, dict[str, float | None]] = {}
    for name in sets:
        metrics = dict.fromkeys(metric for run in runs for metric in run["metrics"].get(name, {}))
        found[name] = {
            metric: combine([run["metrics"].get(name, {}).get(metric) for run in runs]) for metric in metrics
        }
    return found


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where a value is missing or not a number."""
    numbers = _numbers(values)
    return statistics.fmean(numbers) if numbers else None


def deviation_of(values: Sequence[float | None]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values or where one is missing."""
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
    """what follows from the records: of tagging the scores of spans alone"""
    parts: dict[int, Predictions]
    """of each fold"""

    @property
    def header(self) -> dict[str, Any]:
        """What stands before the records in a file of them."""
        return {"folds": self.folds, "seed": self.seed, "metrics": self.metrics}

    def records(self) -> Iterator[Record]:
        """Give the records in order of `id`, each with its `fold`; read anew at each call, never all at once."""
        return heapq.merge(*(_of_fold(fold, part) for fold, part in self.parts.items()), key=_id_of)


def _of_fold(fold: int, part: Predictions) -> Iterator[Record]:
    records: Iterable[Record] = part
    # Whoever wrote them wrote them in order, save of old a person.
    if any(first["id"] > second["id"] for first, second in pairwise(part)):
        records = sorted(part, key=_id_of)
    return ({"fold": fold, **record} for record in records)


def _id_of(record: Record) -> int:
    return record["id"]


def join_folds(folders: Sequence[Path]) -> JoinedFolds:
    """Join the held-out predictions of all folds of one split.

    Raises UserError where a fold is missing, stands twice or belongs to another split, DataError for a damaged file.
    """
    runs = [_read(folder / "result.json") for folder in folders]
    split = {(run["folds"], run["seed"]) for run in runs}
    folds = sorted(run["fold"] for run in runs if run["fold"] is not None)
    if len(split) != 1 or not folds or folds != list(range(runs[0]["folds"])):
        shown = ", ".join(f"{folder} (fold {run['fold']} of {run['folds']}, seed {run['seed']})"
                          for folder, run in zip(folders, runs, strict=True))  # fmt: skip
        raise UserError(f"these are not all folds of one split, each once: {shown}; give a folder for each fold")
    parts = {run["fold"]: predictions_of(folder, HELD_OUT) for folder, run in zip(folders, runs, strict=True)}
    joined = JoinedFolds(runs[0]["folds"], runs[0]["seed"], {}, dict(sorted(parts.items())))
    sets = _read(folders[0] / "data.json")["sets"]
    wanted, held, last = sets["train"]["examples"] + sets[HELD_OUT]["examples"], 0, None
    distinct = 0
    for record in joined.records():
        held, distinct, last = held + 1, distinct + (record["id"] != last), record["id"]
    if held != wanted or distinct != wanted:
        raise UserError(
            f"the folds in {folders[0].parent} hold out {held} rows, but there are {wanted} training examples, "
            "each held out once; were the data changed between the folds? run them again"
        )
    names = _read(folders[0] / "data.json")["labels"]
    scorer = scorer_named(joined.parts[0].header.get("scorer"), names, _read_config(folders[0]))
    try:
        return replace(joined, metrics=scores_of(joined.records(), scorer, names))
    except KeyError as error:
        raise DataError(f"the predictions of the folds in {folders[0].parent} lack {error}; run them again") from error


def scorer_named(name: str | None, names: Sequence[str], config: Mapping[str, Any]) -> Scorer | None:
    """Return a new scorer of the kind that wrote predictions; None for those of earlier versions, which do not say.

    A threshold that the configuration sets is its threshold.
    """
    if not name:
        return None
    kind: Any = import_target(name, config.get("trusted_packages", ()))
    threshold = config.get("task", {}).get("threshold")
    takes_it = threshold is not None and "threshold" in inspect.signature(kind).parameters
    return kind(list(names), threshold) if takes_it else kind(list(names))


def scores_of(records: Iterable[Record], scorer: Scorer | None, names: Sequence[str]) -> dict[str, float]:
    """Return the scores of some predictions; nothing where what they were scored by is not kept with them.

    Memory is the scorer's.
    """
    records = iter(records)
    first = next(records)
    if scorer is None:
        scorer = _scorer_of_earlier_versions(first, names)
    if not getattr(scorer, "joins", True):
        return {}
    for record in chain([first], records):
        scorer.add(_complete(record, names))
    metrics = scorer.result().metrics
    return metrics if "units" in first or "spans" not in first else _spans_alone(metrics)


def _scorer_of_earlier_versions(record: Record, names: Sequence[str]) -> Scorer:
    from nlu.metrics.classes import ClassScorer
    from nlu.metrics.tagging import SpanScorer

    return SpanScorer(list(names)) if "spans" in record else ClassScorer(list(names))


def _complete(record: Record, names: Sequence[str]) -> dict[str, Any]:
    """Return a record with what earlier versions did not write; a loss that is not finite is null in a file."""
    completed = dict(record)
    if "loss" in record and record["loss"] is None:
        completed["loss"] = math.nan
    if "spans" in record:
        completed = {"units": 0, "units_right": 0, "units_scored": 0, "loss": 0.0, **completed}
    elif "probability" in record and "margin" not in record and len(names) == 2:
        p = record["probability"]
        completed["margin"] = p if record["prediction"] == names[1] else 1 - p
    return completed


def _spans_alone(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("span_")}


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
