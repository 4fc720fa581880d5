"""Further results of a scored set: confidence intervals, calibration, confusion matrix, scores of queries."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from nlu.config.command_keys import Evaluate
from nlu.config.errors import UserError
from nlu.data.examples import Examples
from nlu.display.progress_bars import Progress
from nlu.metrics.bootstrap import Blocks, Intervals, blocks_of, intervals_of_means, metrics_of
from nlu.metrics.calibration import AreaScorer, Bin, CalibrationScorer
from nlu.metrics.classes import ConfusionScorer
from nlu.metrics.kinds import kind_named
from nlu.metrics.ranking import QueryScorer
from nlu.metrics.scores import LabelRow, Record, Scorer
from nlu.tasks.task import Task
from nlu.training.evaluation import Scored


@dataclass
class Findings:
    """The results of one set."""

    rows: int
    own_metrics: dict[str, float]
    """the metrics of the task, as a run records them"""
    metrics: dict[str, float]
    """the metrics of the task and further ones"""
    by_label: list[LabelRow]
    intervals: Intervals = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    confusion: list[list[int]] | None = None
    """the number of rows by label (line) and prediction (column), in the order of `names`"""
    calibration: list[Bin] | None = None

    def about(self) -> dict[str, object]:
        """Return the content of result.json other than metrics and intervals."""
        return {
            "rows": self.rows,
            "by_label": self.by_label,
            "labels": self.names,
            "confusion": self.confusion,
            "calibration": self.calibration,
        }


def find(config: Evaluate, task: Task, part: Examples, scored: Scored, progress: Progress) -> Findings:
    """Compute the results from the records of a scored set; without a score there are no others.

    Raises UserError for groups of a task that has its own.
    """
    own = scored.scores.metrics
    names = part.target.names
    found = Findings(len(part), own, dict(own), scored.scores.by_label, names=names)
    if scored.not_finite:
        return found
    kind = kind_named(task.kind)
    has_probabilities = kind.is_one_label and kind.has_probabilities
    group_N = None if config.group_by is None else part.stored.scalars("group", part.rows_N)

    def resampled() -> list[Scorer]:
        # Resamples keep the threshold: an interval shows the effect of the rows, not of the choice of a threshold.
        asked: list[Scorer] = [QueryScorer(names)] if has_probabilities and group_N is not None else []
        more: list[Scorer] = [CalibrationScorer(names)] if has_probabilities else []
        # What the command asks for comes first, because a task may have scores of other classes under the same names.
        return [*asked, task.scorer(own), *more]

    # Retrieval cannot be scored again, since records do not contain vectors.
    joins = getattr(scored.scorer, "joins", True)
    # Without resamples all rows form one block: the scorers are still needed once, for the metrics of the whole set.
    block_N = blocks_of(len(part), config.seed, group_N) if config.resamples else np.zeros(len(part), np.int64)
    blocks = Blocks(resampled, block_N) if joins else None
    confusion = ConfusionScorer(names) if kind.is_one_label else None
    # With many classes, a thousand resamples of their areas would take minutes.
    by_class = AreaScorer(names) if has_probabilities and len(names) > 2 else None
    for row, (example, record) in enumerate(_records(task, part, scored)):
        with_group = {"id": row, "group": row, **record}
        if group_N is not None:
            with_group |= {"id": row, "group": int(group_N[example])}
        if blocks is not None:
            blocks.add(example, with_group)
        if confusion is not None:
            confusion.add(with_group)
        if by_class is not None:
            by_class.add(record)
    if confusion is not None:
        found.confusion = confusion.matrix()
    if by_class is not None:
        found.metrics |= by_class.result().metrics
    if blocks is None:
        by_query = scored.scores.by_query
        if by_query and config.group_by is not None:
            raise UserError("group_by is set, but retrieval is always scored by query; leave it out")
        if by_query and config.resamples:
            with progress.task(f"resampling {part.name}", config.resamples) as bar:
                found.intervals = intervals_of_means(by_query, config.resamples, config.seed, bar.advance)
        return found
    whole = blocks.whole()
    asked = [name for one in whole if isinstance(one, QueryScorer) for name in one.names]
    found.metrics |= {name: value for name, value in metrics_of(whole).items() if name not in own or name in asked}
    found.calibration = next((one.bins() for one in whole if isinstance(one, CalibrationScorer)), None)
    if config.resamples:
        with progress.task(f"resampling {part.name}", config.resamples) as bar:
            found.intervals = blocks.intervals(config.resamples, config.seed, bar.advance)
    return found


def _records(task: Task, part: Examples, scored: Scored) -> Iterator[tuple[int, Record]]:
    for example, record in scored.spool:
        yield example, task.finished(record, scored.scores.metrics)
