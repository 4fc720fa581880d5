"""The verdict of debug=overfit: whether the training loss shows that the model can learn the repeated rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from nlu.config.choices import target_of
from nlu.config.schema import Run
from nlu.config.targets import TARGET
from nlu.config.words import counted
from nlu.data.facts import describe
from nlu.optim.optimizer import named_parameters
from nlu.runs.records import TRAIN, Cell, read_rows
from nlu.training.parts import Training

CHOICE = ("debug", "overfit")
LEARNED = 0.1
"""largest share of the loss of a model that ignores the texts that is left if the rows were learned"""
FALLING = 0.1
"""share by which the loss still falls from the third quarter of the run to the last one if more steps would help"""
MOST_CLIPPED = 0.9

Rows = Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class Chance:
    """Cross-entropy losses of models that ignore the texts; nats."""

    classes: int
    equal: float
    """of equal probabilities, log C"""
    frequencies: float
    """of the shares of the labels in the rows, the lowest that such a model reaches"""
    least: float
    """the lowest of any model: 0 without label smoothing"""


@dataclass(frozen=True)
class Course:
    """How the training loss of a run went."""

    first: float
    """of the first row of train.tsv"""
    last: float
    """the mean over the last epoch"""
    falls: bool
    """whether it still fell at the end"""
    chance: Chance | None
    """None if the loss is not plain cross-entropy over classes"""

    @property
    def left(self) -> float:
        """The share that is left of the loss of a model that ignores the texts, or if that is unknown of the first one;
        NaN if neither is above the lowest possible loss."""
        least = self.chance.least if self.chance else 0.0
        before = self.chance.frequencies if self.chance else self.first
        return (self.last - least) / (before - least) if before > least else math.nan

    @property
    def verdict(self) -> str:
        """learned, not learned, or unknown without anything to compare with."""
        if math.isnan(self.left):
            return "unknown"
        return "learned" if self.left <= LEARNED else "not learned"

    def to_json(self) -> dict[str, Any]:
        known = asdict(self) | {"left": None if math.isnan(self.left) else self.left}
        return {"verdict": self.verdict, **known}


def is_overfitting(config: Run) -> bool:
    """Return whether a run was started with debug=overfit."""
    group, choice = CHOICE
    return config.choices.get(group) == choice


def chance_of(counts: Sequence[int], smoothing: float = 0.0) -> Chance:
    """Return the losses of models that ignore the texts, for rows with these numbers of each class.

    With label smoothing e the target of a row is (1 - e) onehot + e / C.
    """
    classes, total = len(counts), sum(counts)
    spread = smoothing / classes
    shares = [(1 - smoothing) * count / total + spread for count in counts]
    target = [1 - smoothing + spread, *[spread] * (classes - 1)]
    return Chance(classes, math.log(classes), _entropy(shares), _entropy(target))


def _entropy(shares: Sequence[float]) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)


def course_of(rows: Rows, epoch_examples: int, chance: Chance | None) -> Course | None:
    """Return the course of the loss in the rows of train.tsv; None without a loss."""
    losses = [(int(row["examples"] or 0), float(loss)) for row in rows if isinstance(loss := row["loss"], int | float)]
    if not losses:
        return None
    ends = [0, *(at for at, _ in losses)]
    # Each row is a mean over the examples since the row before.
    sizes = [end - before for before, end in zip(ends, ends[1:], strict=False)]
    first = next(place for place, (at, _) in enumerate(losses) if at > ends[-1] - epoch_examples)
    last = sum(size * loss for size, (_, loss) in zip(sizes[first:], losses[first:], strict=True)) / sum(sizes[first:])
    quarter = max(1, len(losses) // 4)
    third = fmean(loss for _, loss in losses[-2 * quarter : -quarter] or losses)
    fourth = fmean(loss for _, loss in losses[-quarter:])
    return Course(losses[0][1], last, third - fourth > FALLING * abs(third), chance)


def judge(run: Training, config: Run) -> tuple[Course, list[str]] | None:
    """Return the course of the loss of a run, and the verdict in sentences; None without a loss in train.tsv."""
    rows = read_rows(run.run_dir / TRAIN)
    course = course_of(rows, run.clock.num_examples, _chance(run, config))
    if course is None:
        return None
    suspects = list(_suspects(run, course, rows)) if course.verdict == "not learned" else []
    return course, list(sentences(course, run.clock.num_examples, run.state.step, suspects))


def _chance(run: Training, config: Run) -> Chance | None:
    is_plain = (
        config.loss[TARGET] == target_of("loss", "cross_entropy")
        and config.loss.get("class_weights") is None
        and config.method[TARGET] == target_of("method", "plain")
        and run.store.target.kind == "classes"
    )
    train = run.store.sets.get("train")
    if not is_plain or train is None or train.is_growing:
        return None
    counts = run.store.target.facts(train.stored, train.rows_N).get("labels")
    if not isinstance(counts, Mapping) or len(counts) < 2 or not sum(counts.values()):
        return None
    return chance_of(list(counts.values()), float(config.loss.get("label_smoothing") or 0.0))


def sentences(course: Course, examples: int, steps: int, suspects: Sequence[str]) -> Iterator[str]:
    """Yield the verdict on rows that were repeated, and what to look at first if they were not learned."""
    chance, rows = course.chance, counted(examples, "row")
    said = f"the training loss went from {course.first:.3g} to {course.last:.3g} in {counted(steps, 'step')}"
    if chance is not None:
        said += f"; log({chance.classes}), that of equal probabilities, is {chance.equal:.3g}"
    yield said
    if course.verdict == "unknown":
        yield (
            f"all {rows} have the same label, so this says nothing; set data.max_rows higher"
            if chance is not None
            else "a loss that begins at 0 or below does not show whether the model can learn"
        )
        return
    whose = "this" if chance is None else f"the loss of a model that ignores the texts, {chance.frequencies:.3g},"
    left = f"{max(0.0, course.left):.1%} of {whose} is left"
    if course.verdict == "learned":
        yield f"{left}: the model can learn these {rows}"
        return
    yield f"{left}: the model has not learned these {rows}; look first at"
    yield from (f"  - {suspect}" for suspect in suspects)


def _suspects(run: Training, course: Course, rows: Rows) -> Iterator[str]:
    """Yield what may keep the model from learning, the most certain reasons first."""
    if course.falls:
        yield f"the length, since the loss still falls: trainer.max_duration={2 * run.due.total_steps}st"
    if conflicts := describe(run.store)["sets"].get("train", {}).get("conflicts"):
        yield f"the labels: {counted(conflicts, 'text')} with several (python -m nlu.data)"
    named = list(named_parameters(run.stepper.model, run.stepper.own))
    everything = sum(parameter.numel() for _, parameter in named)
    trained = sum(parameter.numel() for _, parameter in named if parameter.requires_grad)
    if trained < everything:
        yield f"frozen parameters: {trained:,} of {everything:,} are trained (optimizer.freeze, adapter)"
    if rates := _numbers(rows, "lr"):
        why = ", which may be too high, since the loss rises" if course.last > course.first else ""
        yield f"the learning rate, {max(rates):.2g}{why} (python -m nlu.scan of=lr)"
    clipped = _numbers(rows, "clipped")
    if clipped and fmean(clipped) > MOST_CLIPPED:
        yield f"the gradient, clipped in {fmean(clipped):.0%} of the steps (trainer.clip_norm)"
    if not conflicts:
        yield "the labels: whether they follow from the texts (python -m nlu.preprocess show=5)"


def _numbers(rows: Rows, column: str) -> list[float]:
    return [float(value) for row in rows if isinstance(value := row.get(column), int | float)]
