"""Score a set: every example once, for any batch size and number of processes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nlu.data.collate import collate
from nlu.data.examples import Examples
from nlu.data.order import evaluation_batches, evaluation_passes
from nlu.metrics.scores import Scorer, Scores
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks
from nlu.training.spool import Spool


@dataclass
class Evaluator:
    """Everything for scoring that is the same for all sets."""

    model: TaskModel
    task: Task
    ranks: Ranks
    precision: NumberFormat
    batch_size: int
    """the number of examples of a batch, over all ranks"""
    folder: Path
    """the folder of records while a set is scored"""


@dataclass
class Scored:
    """A scored set, whose records are on the ranks that computed them."""

    part: Examples
    scores: Scores
    """equal on every rank"""
    spool: Spool
    scorer: type[Scorer]
    """its class, so that predictions can be scored again without the model"""


@torch.inference_mode()
def score(evaluator: Evaluator, part: Examples, decided: Mapping[str, float], advance: Callable[[int], None]) -> Scored:
    """Score one set with the current weights. Memory: a few bytes per row.

    `decided` are the metrics of the run's first set, from which a task may take a threshold.
    """
    task, ranks = evaluator.task, evaluator.ranks
    scorer, spool = task.scorer(decided), Spool(len(part), evaluator.folder)
    batches = evaluation_batches(
        part.lengths_N, batch_size=evaluator.batch_size, rank=ranks.rank, world_size=ranks.world_size
    )
    # All ranks run the same number of passes, since a strategy may communicate within each; without rows, a rank runs a
    # placeholder.
    passes = evaluation_passes(len(part), batch_size=evaluator.batch_size, world_size=ranks.world_size)
    with _scoring(evaluator.model):
        for number in range(passes):
            is_own = number < len(batches)
            batch = collate(part, batches[number] if is_own else np.zeros(1, np.int64))
            with evaluator.precision.autocast(ranks.device):
                outputs = task.forward(evaluator.model, batch.to(ranks.device))
            if not is_own:
                continue
            records = task.records(part, batch, evaluator.model, outputs)
            for record in records:
                scorer.add(record)
            spool.add(batch.examples_B, records)
            advance(len(batch))
    total = ranks.sum_on_host([float(len(spool))])[0]
    assert total == len(part), f"{total:.0f} of {len(part)} examples were scored"
    scores = None
    if (scorers := ranks.gather_to_first(scorer)) is not None:
        for other in scorers[1:]:
            scorer.merge(other)
        scores = scorer.result()
    return Scored(part, ranks.from_first(scores), spool, type(scorer))


@contextmanager
def _scoring(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
