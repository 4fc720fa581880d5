"""What the records of a run say of it: whether it has begun to learn, and reasons why its score may differ.

Such reasons are its end, code, versions, machine and settings.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nlu.config.choices import target_of
from nlu.config.sentences import counted, path_text
from nlu.config.types import Config
from nlu.diagnosis.check import Check, broken, warning
from nlu.inference.locate import Located
from nlu.inference.trained import scores_at
from nlu.reports.runs import TRAIN, VALID, RunRecord, is_run
from nlu.runs.checkpoint import read_order
from nlu.runs.logs import LOG
from nlu.runs.provenance import code_changes, describe_code, starts_of
from nlu.runs.records import read_rows
from nlu.storage.files import read_json
from nlu.training.ranks import Ranks
from nlu.training.resuming import changes, machine_of

LISTED = 6
LOADED = "tensors of the model loaded"
AGAIN = "train it again with this version to be sure"


def learning(run_dir: Path, run: RunRecord, facts: Config) -> Iterator[Check]:
    """Compare the first loss with that of equal probabilities, and the best accuracy with that of one class.

    Both are of Karpathy 2019, "A Recipe for Training Neural Networks" (https://karpathy.github.io/2019/04/25/recipe/):
    "verify loss @ init", and baselines that see no input.
    """
    train, scored = _counts(facts, "train"), _counts(facts, run.set_name or "")
    plain = {"loss": "cross_entropy", "method": "plain"}
    is_plain = all(run.config.get(f"{group}._target_") == target_of(group, name) for group, name in plain.items())
    losses = [row["loss"] for row in _rows(run_dir / TRAIN) if isinstance(row.get("loss"), int | float)]
    if train and is_plain and losses:
        says = f"{losses[0]:.3g}, and log({len(train)}) = {math.log(len(train)):.3g} is that of equal probabilities"
        yield Check("first loss", says)
    values = [
        row["value"]
        for row in _rows(run_dir / VALID)
        if (row["set"], row["metric"]) == (run.set_name, run.metric) and isinstance(row["value"], int | float)
    ]
    if values and scored and run.metric == "accuracy":
        most, total = max(scored, key=lambda name: scored[name]), sum(scored.values())
        says = f"accuracy {max(values):.4f}; predicting always {most} has {scored[most] / total:.4f}"
        if max(values) <= scored[most] / total:
            remedy = "the model learns nothing from the texts: docs/troubleshooting.md, The model does not learn"
            yield warning("against one class", says, remedy)
        else:
            yield Check("against one class", says)


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(read_rows(path)) if path.is_file() else []


def _counts(facts: Config, name: str) -> dict[str, int]:
    """Return the number of examples of each class of a set; empty if it has no classes."""
    counts = ((facts.get("sets") or {}).get(name) or {}).get("labels")
    if (facts.get("target") or {}).get("kind") != "classes" or not isinstance(counts, dict):
        return {}
    return counts if sum(counts.values()) else {}


def ending(run: RunRecord) -> Check:
    """Report how the run ended. The score of a run that has not ended may still change."""
    if run.state == "failed":
        return broken("state", f"failed: {run.reason}", "correct that, then run its command with resume=auto")
    if run.state in ("running", "stopped", "unfinished"):
        remedy = "wait for its end" if run.state == "running" else "run its command again with resume=auto"
        return warning("state", f"{run.state}, so its best checkpoint may be replaced", remedy)
    return Check("state", f"{run.state}, {run.examples or 0:,} examples seen")


def scored_at(located: Located, run: RunRecord) -> Iterator[Check]:
    """Report the evaluation of the weights."""
    checkpoint = located.checkpoint
    step, (metrics, are_its_own) = _step_of(checkpoint), scores_at(checkpoint)
    value = metrics.get(run.set_name or "", {}).get(run.metric or "")
    shown = f"{checkpoint.name}: step {step}"
    if value is not None:
        shown += f", {run.set_name} {run.metric} {value:.4f}"
    if not are_its_own:
        says = f"{shown} is the score of an earlier step: last was trained since"
        yield warning("which weights", says, "name best, or wait for the next evaluation")
    elif run.best_step is not None and step != run.best_step:
        says = f"{shown}, but the score of the run is that of step {run.best_step}"
        yield warning("which weights", says, "name the run itself for its best weights")
    else:
        yield Check("which weights", shown)


def _step_of(checkpoint: Path) -> int | None:
    score = read_json(checkpoint / "score.json")
    if score is not None:
        return score.get("step")
    return ((read_json(checkpoint / "state.json") or {}).get("state") or {}).get("step")


def code(run_dir: Path, trusted: list[str]) -> Iterator[Check]:
    """Check whether the modules, and the commit of a checkout, are those that the run used."""
    snapshots = code_changes(run_dir, trusted)
    if not snapshots:
        yield warning("code", "the run kept no code.zip", AGAIN)
    else:
        # The last version of the code computed the final score.
        path, changed = list(snapshots.items())[-1]
        if changed:
            more = f" and {len(changed) - LISTED} more" if len(changed) > LISTED else ""
            first = ", ".join(f"{name} {how}" for name, how in list(changed.items())[:LISTED])
            says = f"{counted(len(changed), 'module')} not as in {path.name}: {first}{more}"
            commit = changed_commit(starts[-1]) if (starts := starts_of(run_dir)) else []
            remedy = f"unzip {path_text(path)} into an empty folder, and run the command there"
            yield warning("code", "; ".join([says, *commit]), remedy)
        else:
            yield Check("code", f"every module is as in {path.name}")


def versions(run_dir: Path) -> Iterator[Check]:
    """Compare the versions of packages, and the starts of a run that was continued."""
    starts = starts_of(run_dir)
    if not starts:
        yield warning("versions", "the run has no provenance.json", AGAIN)
        return
    there = starts[-1]["versions"]
    if changed := changed_versions(starts[-1]):
        wanted = " ".join(
            f"{name}=={version.partition('+')[0]}" for name, version in there.items() if name != "python" and version
        )
        yield warning("versions", "; ".join(changed), f"in a separate environment: pip install {wanted}")
    else:
        yield Check("versions", f"the same: {', '.join(f'{name} {version}' for name, version in there.items())}")
    # Each start is compared with the first one: a run that went back to its first machine has still been elsewhere.
    if differing := [
        name
        for name in ("versions", "devices", "world_size", "cpu")
        if any(start.get(name) != starts[0].get(name) for start in starts)
    ]:
        says = f"{len(starts)}, with other {', '.join(differing)}, so its bytes are not those of an uninterrupted run"
        yield warning("starts", says, "train it again without interruption if the score must be reproduced")


def computed_on(run_dir: Path, ranks: Ranks) -> Iterator[Check]:
    """Compare device, threads, kernels and number of processes with those that saved `last`."""
    last = run_dir / "checkpoints" / "last"
    if not (last / "state.json").is_file():
        says = "checkpoints/last, which records where it was trained, is missing"
        yield warning("machine", says, "score it on the machine where it was trained")
        return
    _, order = read_order(last)
    changed = changes(order, {**order, "world_size": ranks.world_size, "machine": machine_of(ranks)})
    for sentence in changed:
        remedy = "score it there, or expect differences in the last digits"
        yield warning("machine", sentence.replace("continued", "scored"), remedy)
    if not changed:
        machine = order["machine"]
        yield Check(
            "machine",
            f"as there: {machine['device']}, {counted(machine['threads'], 'thread')}, kernels for {machine['cpu']}, "
            f"{counted(order['world_size'], 'rank')}",
        )


def beginning(run_dir: Path, pretrained: str | None) -> Iterator[Check]:
    """Show the line of the log that counts the tensors of the pretrained weights, and those that were missing."""
    if pretrained is None:
        return
    folders = [run_dir, run_dir.parent] if is_run(run_dir.parent) else [run_dir]
    paths = [path for folder in folders if (path := folder / LOG).is_file()]
    lines = [line for path in paths for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    place = next((number for number, line in enumerate(lines) if LOADED in line), None)
    if place is not None:
        # The log lists what is missing and what is mismatched in the lines below the count.
        listed = [line.partition("   ")[2] for line in lines[place + 1 : place + 3] if "   m" in line]
        yield Check("pretrained weights", "; ".join([lines[place].partition(" pretrained ")[2], *listed]))


def settings(config: Config, facts: Config, set_name: str | None) -> Iterator[Check]:
    """Report settings by which a score is that of other rows than it seems."""
    own = (facts.get("sets") or {}).get(set_name or "", {})
    if config.get("data.max_rows"):
        says = f"data.max_rows={config['data.max_rows']}: only so many rows of each file, also of {set_name}"
        yield warning("rows read", says, "only compare it with scores of the same rows")
    if config.get("trainer.eval_rows"):
        says = f"trainer.eval_rows={config['trainer.eval_rows']}: evaluations on the way score a sample of {set_name}"
        yield Check("rows scored", says)
    if own.get("in_train"):
        says = f"{counted(own['in_train'], 'text')} of {set_name} in the training set too, so its score is optimistic"
        yield warning("rows in train", says, "remove them from one of the two")


def changed_versions(start: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each package whose version differs from the one that a run recorded when it started."""
    there = start["versions"]
    return [
        f"{name} {there.get(name)} there, {version} here"
        for name, version in describe_code()["versions"].items()
        if there.get(name) != version
    ]


def changed_commit(start: Mapping[str, Any]) -> list[str]:
    """Return a sentence if the commit differs from the one that a run recorded when it started, or has changes."""
    there, here = start.get("git") or {}, describe_code()["git"] or {}
    # A commit may be absent on both sides, such as for an installed package; then only the versions can tell.
    if there.get("commit") == here.get("commit") and not (there.get("dirty") or here.get("dirty")):
        return []
    return [f"code: commit {there.get('commit')} there, {here.get('commit')} here, or with uncommitted changes"]
