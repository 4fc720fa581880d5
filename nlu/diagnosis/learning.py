"""Reasons why a run may not learn, from its records: labels, loss, learning rate, gradient, settings.

The thresholds are rules of thumb: each names a common mistake, and none decides anything.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from nlu.config.choices import target_of
from nlu.config.words import counted
from nlu.diagnosis.check import Check, warning
from nlu.reports.runs import TRAIN, VALID, RunRecord, metric_of
from nlu.runs.provenance import starts_of
from nlu.runs.records import Cell, read_rows
from nlu.storage.files import read_json

Row = dict[str, Cell]

FEW_ROWS = 4
"""rows of train.tsv below which nothing is said of the course of the loss"""
ONE_CLASS = 0.95
CONFLICTS = 0.02
FALL = 0.05
"""share of the loss by which it has fallen at least in a run that learns"""
TWICE_CHANCE = 2.0
CLIPPED, CLIPPED_NORM = 0.95, 5.0
"""share of clipped steps, and the mean norm in units of trainer.clip_norm, from which on clipping decides the steps"""
VANISHED = 1e-6
BURST = 20.0
"""how many times the median norm of the gradient a row of train.tsv reaches in an unstable run"""
SKIPPED = 0.1
LAST_POINTS = 0.01
"""share of the best score by which the last one is worse if a run has overfitted"""
FEW_EXAMPLES = 16
FEW_STEPS = 300
HIGH_DROPOUT = 0.5
CUT = 0.2
LARGE = 60_000_000
"""parameters from which on a pretrained model takes the learning rates of BERT-base"""
RATES = {
    "random weights": (1e-4, 5e-3, "1e-3"),
    "small pretrained": (2e-5, 1e-3, "1e-4 to 5e-4"),
    "large pretrained": (3e-6, 1e-4, "1e-5 to 5e-5"),
    "an adapter": (5e-5, 5e-3, "1e-4 to 1e-3"),
}
"""the lowest and the highest learning rate without a warning, and usual ones, in words"""


def learning(run_dir: Path, run: RunRecord) -> Iterator[Check]:
    """Check labels, loss, learning rate, gradient and settings of a run."""
    facts = read_json(run_dir / "data.json") or {}
    rows = _rows(run_dir / TRAIN)
    yield from labels(run, facts)
    yield from course(run, facts, rows)
    yield from gradient(run.config, rows)
    yield from rate(run.config, rows, starts_of(run_dir)[-1:])
    yield from scores(run, facts, _rows(run_dir / VALID))
    yield from settings(run.config, facts, rows)


def _rows(path: Path) -> list[Row]:
    return list(read_rows(path)) if path.is_file() else []


def _numbers(rows: Sequence[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows if isinstance(row.get(column), int | float)]  # type: ignore[arg-type]


def _counts(facts: dict[str, Any], name: str | None) -> dict[str, int]:
    """Return the number of examples of each class of a set; empty if it has no classes."""
    own = (facts.get("sets") or {}).get(name or "", {})
    counts = own.get("labels") if (facts.get("target") or {}).get("kind") == "classes" else None
    return counts if isinstance(counts, dict) and sum(counts.values()) else {}


def labels(run: RunRecord, facts: dict[str, Any]) -> Iterator[Check]:
    """Check the labels of the training rows."""
    counts, own = _counts(facts, "train"), (facts.get("sets") or {}).get("train", {})
    if counts:
        most, total = max(counts, key=lambda name: counts[name]), sum(counts.values())
        says = f"{counts[most] / total:.0%} of the training rows are {most}"
        if counts[most] >= ONE_CLASS * total:
            yield warning(
                "labels", f"{says}, so predicting only that costs little", "add rows of other classes, or loss=focal"
            )
        elif absent := [name for name, count in counts.items() if not count]:
            names = f"{', '.join(absent[:3])}{', ...' if len(absent) > 3 else ''}"
            yield warning("labels", f"no training row is {names}", "add rows of it, or leave it out of data.labels")
        else:
            yield Check("labels", says)
    conflicts, examples = own.get("conflicts") or 0, own.get("examples") or 0
    if examples and conflicts > CONFLICTS * examples:
        says = f"{counted(conflicts, 'training text')} of {examples:,} with several labels"
        yield warning("conflicting labels", says, "python -m nlu.data lists them; correct them")


def course(run: RunRecord, facts: dict[str, Any], rows: Sequence[Row]) -> Iterator[Check]:
    """Check where the training loss begins, and whether it falls."""
    losses = _numbers(rows, "loss")
    if len(losses) < FEW_ROWS:
        yield Check("training loss", f"{counted(len(losses), 'row')} in {TRAIN}: too few to judge it")
        return
    part = max(1, len(losses) // 10)
    first, last = fmean(losses[:part]), fmean(losses[-part:])
    counts = _counts(facts, "train")
    is_plain = run.config.get("loss._target_") == target_of("loss", "cross_entropy") and run.config.get(
        "method._target_"
    ) == target_of("method", "plain")
    if is_plain and len(counts) > 1:
        chance = math.log(len(counts))
        says = f"{losses[0]:.3g}, and log({len(counts)}) = {chance:.3g} is that of equal probabilities"
        if losses[0] > TWICE_CHANCE * chance:
            remedy = "lower optimizer.lr or lengthen scheduler.warmup; look whether the weights fit the model"
            yield warning("first loss", says, remedy)
        else:
            yield Check("first loss", says)
    says = f"from {first:.3g} in the first tenth of the run to {last:.3g} in the last"
    if not math.isfinite(last) or last > first:
        yield warning("training loss", f"rises {says}", "lower optimizer.lr, or set trainer.clip_norm")
    elif first - last < FALL * abs(first):
        remedy = "try debug=overfit; if that learns, change optimizer.lr or train longer"
        yield warning("training loss", f"hardly falls: {says}", remedy)
    else:
        yield Check("training loss", f"falls {says}")


def gradient(config: dict[str, Any], rows: Sequence[Row]) -> Iterator[Check]:
    """Check the norm of the gradient, clipping, and steps that were skipped."""
    norms, clipped = _numbers(rows, "gnorm"), _numbers(rows, "clipped")
    if not norms:
        return
    mean, limit = fmean(norms), config.get("trainer.clip_norm") or 0.0
    share = fmean(clipped) if clipped else 0.0
    says = f"mean norm {mean:.3g}, largest {max(norms):.3g}, clipped in {share:.0%} of the steps"
    if mean < VANISHED:
        yield warning("gradient", says, "nothing flows back: look at optimizer.freeze, and at activations of yours")
    elif limit and share > CLIPPED and mean > CLIPPED_NORM * limit:
        remedy = "every step has the same length: lower optimizer.lr, or set trainer.clip_norm higher"
        yield warning("gradient", says, remedy)
    elif len(norms) >= FEW_ROWS and max(norms[1:]) > BURST * sorted(norms)[len(norms) // 2]:
        yield warning("gradient", f"{says}: it bursts", "lower optimizer.lr, or lengthen scheduler.warmup")
    else:
        yield Check("gradient", says)
    if skipped := sum(_numbers(rows, "skipped")):
        steps = max(_numbers(rows, "step"))
        says = f"{counted(int(skipped), 'step')} of {steps:,.0f} skipped, since the gradient overflowed"
        if skipped > SKIPPED * steps:
            yield warning("skipped steps", says, "choose precision=bf16 or fp32")
        else:
            yield Check("skipped steps", says)


def rate(config: dict[str, Any], rows: Sequence[Row], starts: Sequence[dict[str, Any]]) -> Iterator[Check]:
    """Check the learning rate against those that usually work for such weights, by the last start of a run."""
    rates = _numbers(rows, "lr")
    peak = config.get("optimizer.lr") if not rates else max(rates)
    sizes = starts[0].get("parameters") if starts else None
    if not isinstance(peak, float) or peak <= 0 or not sizes:
        return
    if config.get("adapter._target_") not in (None, target_of("adapter", "none")):
        kind = "an adapter"
    elif config.get("model.pretrained") is None:
        kind = "random weights"
    else:
        kind = "large pretrained" if sizes["all"] >= LARGE else "small pretrained"
    low, high, usual = RATES[kind]
    weights = kind if kind in ("an adapter", "random weights") else f"{kind.split()[0]} pretrained weights"
    says = f"at most {peak:.2g}; usual for {weights}: {usual}"
    if peak > high:
        yield warning("learning rate", says, "lower optimizer.lr")
    elif peak < low:
        yield warning("learning rate", says, "raise optimizer.lr")
    else:
        yield Check("learning rate", says)
    trained, everything = sizes["trained"], sizes["all"]
    yield Check("trained parameters", f"{trained:,} of {everything:,} ({trained / everything:.1%})")


def scores(run: RunRecord, facts: dict[str, Any], rows: Sequence[Row]) -> Iterator[Check]:
    """Check the scores against those of the most frequent class, and their course."""
    values = [
        float(row["value"])
        for row in rows
        if (row["set"], row["metric"]) == (run.set_name, run.metric) and isinstance(row["value"], int | float)
    ]
    counts = _counts(facts, run.set_name)
    if values and run.metric == "accuracy" and counts:
        most, total = max(counts, key=lambda name: counts[name]), sum(counts.values())
        says = f"accuracy {max(values):.4f}; predicting always {most} has {counts[most] / total:.4f}"
        if max(values) <= counts[most] / total + 1 / total:
            yield warning("against one class", says, "the model learns nothing from the texts; go through this list")
        else:
            yield Check("against one class", says)
    if len(values) >= FEW_ROWS and all(map(math.isfinite, values)):
        choose: Callable[..., int] = min if metric_of(run.config)[1] else max
        best = choose(range(len(values)), key=lambda place: values[place])
        says = f"{run.set_name} {run.metric} was best ({values[best]:.4f}) at evaluation {best + 1} of {len(values)}"
        if best < len(values) / 2 and abs(values[-1] - values[best]) > LAST_POINTS * abs(values[best]):
            remedy = "overfitting: more rows, a higher model.dropout, trainer.patience, or a shorter run"
            yield warning("course of the score", f"{says}, and {values[-1]:.4f} at the last", remedy)
        else:
            yield Check("course of the score", says)


def settings(config: dict[str, Any], facts: dict[str, Any], rows: Sequence[Row]) -> Iterator[Check]:
    """Check settings that are often the reason."""
    # A step that is filled by memory or tokens has more.
    is_given = isinstance(config.get("trainer.batch_size"), int) and not config.get("trainer.batch_tokens")
    batch = config["trainer.batch_size"] * (config.get("trainer.accumulation") or 1) if is_given else 0
    if batch and batch < FEW_EXAMPLES:
        says = f"{counted(batch, 'example')} in a step, whose gradient is noisy"
        yield warning("batch", says, "set trainer.batch_size or trainer.accumulation higher")
    steps = max(_numbers(rows, "step"), default=0)
    if config.get("trainer.ema_decay") and 0 < steps < FEW_STEPS:
        says = f"the average of the weights is scored, which lags behind in {counted(int(steps), 'step')}"
        yield warning("moving average", says, "set trainer.ema_decay=0 for short runs")
    for key, value in config.items():
        if key.rpartition(".")[2].endswith("dropout") and isinstance(value, float) and value >= HIGH_DROPOUT:
            yield warning("dropout", f"{key} is {value:g}", "usual are 0 to 0.3")
    own = (facts.get("sets") or {}).get("train", {})
    if (cut := own.get("cut_to_max_len") or 0) > CUT * (own.get("examples") or math.inf):
        share = f"{cut / own['examples']:.0%}"
        says = f"{share} of the training texts are longer than data.max_len={config.get('data.max_len')}"
        yield warning("texts cut", says, "set data.max_len higher, or data.long=windows if a row is one text")
