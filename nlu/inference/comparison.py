"""What a run recorded of its scores, and why another computation of them may differ."""

import json
from pathlib import Path
from typing import Any

from nlu.config.inference import Evaluate
from nlu.inference.locate import Located
from nlu.inference.trained import config_of, scores_at
from nlu.runs.checkpoint import read_order
from nlu.runs.provenance import describe_code
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
        changed = [name for name, digest in order["evaluated"] if digests.get(name) != digest]
        found += [f"the rows of {name}, or what makes tokens and labels of them, are others now" for name in changed]
        found += changes(order, {**order, "world_size": ranks.world_size, "machine": machine_as_recorded(ranks)})
    precision = config_of(located.run_dir).precision
    if config.precision != precision:
        found.append(f"precision: {precision} there, {config.precision} here")
    return [*found, *_code(located.run_dir)]


def _code(run_dir: Path) -> list[str]:
    path = run_dir / "provenance.json"
    if not path.is_file():
        return []
    start: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["starts"][-1]
    here = describe_code()
    found = []
    for name, version in here["versions"].items():
        if start["versions"].get(name) != version:
            found.append(f"{name} {start['versions'].get(name)} there, {version} here")
    there, now = start.get("git") or {}, here["git"] or {}
    if there.get("commit") != now.get("commit") or there.get("diff") != now.get("diff"):
        found.append(f"code: commit {there.get('commit')} there, {now.get('commit')} here, or with other changes to it")
    return found
