"""What a run recorded of its scores, and why another computation of them may differ."""

import json
from collections.abc import Mapping
from typing import Any

from nlu.config.inference import Evaluate
from nlu.inference.locate import Located
from nlu.inference.trained import config_of, scores_at
from nlu.runs.checkpoint import OrderKey, read_order
from nlu.runs.provenance import describe_code, starts_of
from nlu.training.ranks import Ranks
from nlu.training.resuming import changes, machine_as_recorded

Metrics = dict[str, dict[str, float | None]]


def recorded_scores(located: Located) -> Metrics:
    """Return the scores that the run wrote down for a checkpoint, by set and name; with those of test for its best."""
    checkpoint = located.checkpoint
    scores, are_its_own = scores_at(checkpoint)
    metrics: Metrics = {name: dict(values) for name, values in scores.items()} if are_its_own else {}
    result = located.run_dir / "result.json"
    if checkpoint.name == "best-1" and result.is_file():
        kept = json.loads(result.read_text(encoding="utf-8"))["metrics"]
        metrics |= {name: values for name, values in kept.items() if name == "test"}
    return metrics


def differences(config: Evaluate, located: Located, digests: dict[str, str], ranks: Ranks) -> list[str]:
    """Return a sentence for each thing that scores may hang on and that is another here than it was in the run."""
    found = []
    last = located.run_dir / "checkpoints" / "last"
    if (last / "state.json").is_file():
        _, order = read_order(last)
        found += changed_rows(order, digests)
        found += changes(order, {**order, "world_size": ranks.world_size, "machine": machine_as_recorded(ranks)})
    precision = config_of(located.run_dir).precision
    if config.precision != precision:
        found.append(f"precision: {precision} there, {config.precision} here")
    starts = starts_of(located.run_dir)
    return [*found, *changed_versions(starts[-1]), *changed_commit(starts[-1])] if starts else found


def changed_rows(order: OrderKey, digests: Mapping[str, str]) -> list[str]:
    """Return a sentence for each evaluated set whose rows, tokens or labels are others than a state recorded."""
    return [
        f"the rows of {name}, or what turns them into tokens and labels, have changed"
        for name, digest in order["evaluated"]
        if digests.get(name) != digest
    ]


def changed_versions(start: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each package of which a start of a run recorded another version."""
    there = start["versions"]
    return [
        f"{name} {there.get(name)} there, {version} here"
        for name, version in describe_code()["versions"].items()
        if there.get(name) != version
    ]


def changed_commit(start: Mapping[str, Any]) -> list[str]:
    """Return a sentence where a start of a run recorded another commit, or other changes to it."""
    there, here = start.get("git") or {}, describe_code()["git"] or {}
    if there.get("commit") == here.get("commit") and there.get("diff") == here.get("diff"):
        return []
    return [f"code: commit {there.get('commit')} there, {here.get('commit')} here, or with other changes to it"]
