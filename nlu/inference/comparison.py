"""The scores that a run recorded, and the reasons why recomputed scores may differ."""

import json
from collections.abc import Mapping
from typing import Any

from nlu.config.inference import Evaluate
from nlu.data.mixture import own_sets
from nlu.inference.locate import Located
from nlu.inference.trained import config_of, scores_at
from nlu.runs.checkpoint import OrderKey, read_order
from nlu.runs.provenance import describe_code, starts_of
from nlu.training.ranks import Ranks
from nlu.training.resuming import changes, machine_as_recorded

Metrics = dict[str, dict[str, float | None]]


def recorded_scores(located: Located) -> Metrics:
    """Return the recorded scores of a checkpoint, by set and name; for the best one also those of the test set."""
    checkpoint = located.checkpoint
    scores, are_its_own = scores_at(checkpoint, located.head_name)
    metrics: Metrics = {name: dict(values) for name, values in scores.items()} if are_its_own else {}
    result = located.run_dir / "result.json"
    if checkpoint.name == "best-1" and result.is_file():
        kept = json.loads(result.read_text(encoding="utf-8"))["metrics"]
        kept = kept if located.head_name is None else own_sets(kept, located.head_name)
        metrics |= {name: values for name, values in kept.items() if name == "test"}
    return metrics


def differences(config: Evaluate, located: Located, digests: dict[str, str], ranks: Ranks) -> list[str]:
    """Return a sentence for each difference between this machine and the run that may affect scores."""
    found = []
    last = located.run_dir / "checkpoints" / "last"
    if (last / "state.json").is_file():
        _, order = read_order(last)
        if located.head_name is not None:
            order = {**order, "evaluated": list(own_sets(dict(order["evaluated"]), located.head_name).items())}
        found += changed_rows(order, digests)
        found += changes(order, {**order, "world_size": ranks.world_size, "machine": machine_as_recorded(ranks)})
    precision = config_of(located.run_dir).precision
    if config.precision != precision:
        found.append(f"precision: {precision} there, {config.precision} here")
    starts = starts_of(located.run_dir)
    return [*found, *changed_versions(starts[-1]), *changed_commit(starts[-1])] if starts else found


def changed_rows(order: OrderKey, digests: Mapping[str, str]) -> list[str]:
    """Return a sentence for each evaluated set whose rows, tokens or labels differ from those of a saved state."""
    return [
        f"the rows of {name}, or what turns them into tokens and labels, have changed"
        for name, digest in order["evaluated"]
        if digests.get(name) != digest
    ]


def changed_versions(start: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each package whose version differs from the one that a run recorded when it started."""
    there = start["versions"]
    return [
        f"{name} {there.get(name)} there, {version} here"
        for name, version in describe_code()["versions"].items()
        if there.get(name) != version
    ]


def changed_commit(start: Mapping[str, Any]) -> list[str]:
    """Return a sentence if the commit, or the changes to it, differ from those that a run recorded when it started."""
    there, here = start.get("git") or {}, describe_code()["git"] or {}
    if there.get("commit") == here.get("commit") and there.get("diff") == here.get("diff"):
        return []
    return [f"code: commit {there.get('commit')} there, {here.get('commit')} here, or with other changes to it"]
