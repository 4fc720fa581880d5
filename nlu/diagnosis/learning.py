"""Two facts that tell whether a classifier has begun to learn, each against a number that is known in advance."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nlu.config.choices import target_of
from nlu.diagnosis.check import Check, warning
from nlu.reports.runs import TRAIN, VALID, RunRecord
from nlu.runs.records import read_rows


def learning(run_dir: Path, run: RunRecord, facts: dict[str, Any]) -> Iterator[Check]:
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


def _counts(facts: dict[str, Any], name: str) -> dict[str, int]:
    """Return the number of examples of each class of a set; empty if it has no classes."""
    counts = ((facts.get("sets") or {}).get(name) or {}).get("labels")
    if (facts.get("target") or {}).get("kind") != "classes" or not isinstance(counts, dict):
        return {}
    return counts if sum(counts.values()) else {}
