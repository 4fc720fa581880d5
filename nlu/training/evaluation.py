"""Score a set, each example once, for any batch size and number of processes; decide by scores; keep predictions."""

import logging
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nlu.config.errors import UserError
from nlu.config.mixtures import MEAN
from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.opening import Store
from nlu.data.order import evaluation_batches
from nlu.data.store import chunks_of
from nlu.metrics.kinds import with_largest
from nlu.metrics.scores import Scorer, Scores
from nlu.models.task_model import TaskModel
from nlu.runs.predictions import write_predictions
from nlu.tasks.composite import Composite
from nlu.tasks.task import Outputs, Task
from nlu.training.compiled import Compiled, outputs_of
from nlu.training.memory import by_parts
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks

log = logging.getLogger(__name__)

CHUNK_RECORDS = 2048
Computed = tuple[np.ndarray, list[dict[str, object]]]
"""examples, and their records in the same order"""
NAMED_ROWS = 3
"""rows that a warning names"""


class Spool:
    """The records of one set on one rank, in a file without a name that vanishes with the process. N examples.

    No other process can access the file, so it can use pickle, which takes a fifth of the time of JSON. Memory: 12
    bytes per example.
    """

    def __init__(self, examples: int, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)
        self._offset_N = np.full(examples, -1, np.int64)
        self._bytes_N = np.zeros(examples, np.int32)
        self._end = 0

    def add(self, examples: Sequence[int] | np.ndarray, records: Sequence[Mapping[str, object]]) -> None:
        """Write the records of these examples, without arrays."""
        examples_B = np.asarray(examples, np.int64)
        assert (self._offset_N[examples_B] < 0).all(), "an example was scored twice"
        written = [pickle.dumps(_kept(record), pickle.HIGHEST_PROTOCOL) for record in records]
        bytes_B = np.fromiter(map(len, written), np.int64, len(examples_B))
        self._file.write(b"".join(written))
        self._offset_N[examples_B] = self._end + np.cumsum(bytes_B) - bytes_B
        self._bytes_N[examples_B] = bytes_B
        self._end += int(bytes_B.sum())

    def __len__(self) -> int:
        return int((self._offset_N >= 0).sum())

    def __iter__(self) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield examples and their records, in the order of examples."""
        self._file.flush()
        descriptor = self._file.fileno()
        for start in range(0, len(self._offset_N), CHUNK_RECORDS):
            chunk = slice(start, start + CHUNK_RECORDS)
            places = zip(self._offset_N[chunk].tolist(), self._bytes_N[chunk].tolist(), strict=True)
            for example, (offset, size) in enumerate(places, start):
                if offset >= 0:
                    yield example, pickle.loads(os.pread(descriptor, size, offset))

    def gather(self, ranks: Ranks) -> None:
        """Collect the records of all ranks on rank 0."""
        # Those of rank 0 are in its spool already.
        for received in (ranks.gather_to_first([] if ranks.is_first else list(self)) or [])[1:]:
            if received:
                self.add(*zip(*received, strict=True))

    def close(self) -> None:
        self._file.close()


def _kept(record: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in record.items() if not isinstance(value, np.ndarray)}


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
    compiled: Compiled | None = None
    """what computes outputs in few shapes; None: the model itself does"""

    def outputs(self, batch: Batch) -> Outputs:
        """Return the outputs of the model for a batch, which is on the host."""
        return outputs_of(self.compiled, self.task, self.model, batch, self.precision, self.ranks.device)


@dataclass
class Scored:
    """A scored set, whose records are on the ranks that computed them."""

    part: Examples
    scores: Scores
    """equal on every rank"""
    spool: Spool
    scorer: type[Scorer]
    """its class, so that predictions can be scored again without the model"""
    not_finite: int = 0
    """how many examples have numbers that are not finite, on all ranks; with any, every metric of the task is NaN"""


@torch.inference_mode()
def computed(evaluator: Evaluator, part: Examples, examples_N: np.ndarray | None = None) -> Iterator[Computed]:
    """Yield batches of examples with their records, of this rank and with the current weights; all or `examples_N`."""
    ranks = evaluator.ranks
    lengths_N = part.lengths_N if examples_N is None else part.lengths_N[examples_N]
    batches = evaluation_batches(
        lengths_N, batch_size=evaluator.batch_size, rank=ranks.rank, world_size=ranks.world_size
    )

    def passed(examples_B: np.ndarray) -> tuple[Batch, list[dict[str, object]]]:
        batch = collate(part, examples_B if examples_N is None else examples_N[examples_B])
        return batch, evaluator.task.records(part, batch, evaluator.model, evaluator.outputs(batch))

    with scoring(evaluator.model):
        for _, (batch, records) in by_parts(passed, batches, ranks.device):
            yield batch.examples_B, records


@torch.inference_mode()
def score(
    evaluator: Evaluator,
    part: Examples,
    decided: Mapping[str, float],
    advance: Callable[[int], None],
    found: Iterable[Computed] | None = None,
) -> Scored:
    """Score one set with the current weights. Memory: a few bytes per row.

    `decided` are the metrics of the run's first set, from which a task may take a threshold. A set has no score if the
    model computes a number that is not finite for one of its examples: then every metric of the task is NaN, and the
    rows are named in a warning. `found`: what several jobs have computed before.
    """
    task, ranks = evaluator.task, evaluator.ranks
    scorer, spool = task.scorer(decided), Spool(len(part), evaluator.folder)
    bad: list[int] = []
    for examples_B, records in computed(evaluator, part) if found is None else found:
        for example, record in zip(examples_B.tolist(), records, strict=True):
            if all(math.isfinite(value) for value in record.values() if isinstance(value, float)):
                scorer.add(record)
            else:
                bad.append(example)
        spool.add(examples_B, records)
        advance(len(records))
    total, not_finite = map(int, ranks.sum_on_host([float(len(spool)), float(len(bad))]))
    # A set scored twice or in part would give a plausible but wrong score.
    assert total == len(part), f"{total} of {len(part)} examples were scored"
    if not_finite:
        _name_rows(part, bad, not_finite, ranks)
        names = (*task.metrics, *(task.binary_metrics if len(part.target.names) == 2 else ()))
        scores = Scores(dict.fromkeys(names, math.nan))
    else:
        scores = scores_of_all(scorer, ranks)
    return Scored(part, scores, spool, type(scorer), not_finite)


def _name_rows(part: Examples, bad: list[int], count: int, ranks: Ranks) -> None:
    """Warn of `count` examples of all ranks whose numbers are not finite; `bad` are those of this rank."""
    named = ranks.gather_to_first(sorted(bad)[:NAMED_ROWS])
    if named is not None:
        rows = [part.place(example) for example in sorted(chain(*named))[:NAMED_ROWS]]
        log.warning(
            "%s: the model computes numbers that are not finite for %d of %d rows (%s%s), so it has no score; "
            "train with a lower optimizer.lr, or with precision=bf16 or fp32 if this is fp16",
            part.name,
            count,
            len(part),
            ", ".join(rows),
            ", ..." if count > len(rows) else "",
        )


def scores_of_all(scorer: Scorer, ranks: Ranks) -> Scores:
    """Return the scores over the records of all ranks, on every rank. Raises the same UserError on all of them."""
    scores, problems = None, None
    if (gathered := ranks.gather_to_first(scorer)) is not None:
        try:
            # Scorers add exactly, so neither the order of ranks nor their number changes a bit of the result.
            for other in gathered[1:]:
                scorer.merge(other)
            scores = scorer.result()
        except UserError as error:
            # The other ranks wait for the scores.
            problems = error.sentences
    scores, problems = ranks.from_first((scores, problems))
    if problems is not None:
        raise UserError(*problems)
    assert scores is not None
    return scores


@contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """Compute nothing by chance in the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def keep_predictions(
    run_dir: Path, name: str, scored: Scored, task: Task, ranks: Ranks, *, step: int | None,
    sampled_rows: int | None = None,
) -> None:  # fmt: skip
    """Write the records of a scored set in the order of its rows. Every rank must call it; rank 0 writes.

    Nothing is written for a set with numbers that are not finite, which predict nothing.
    `step` is that of the weights, None if it is unknown; `sampled_rows` the size of a sample of the set, None for the
    whole set.
    """
    if scored.not_finite:
        return
    scored.spool.gather(ranks)
    if ranks.is_first:
        scorer = f"{scored.scorer.__module__}.{scored.scorer.__qualname__}"
        scores = scored.scores
        header: dict[str, object] = {
            "step": step,
            "kind": task.kind,
            "scorer": scorer,
            "metrics": scores.metrics,
            "by_label": scores.by_label,
        }
        if sampled_rows is not None:
            header["sampled_rows"] = sampled_rows
        write_predictions(run_dir / "predictions" / f"{name}.jsonl", header, _records(scored, task))


def _records(scored: Scored, task: Task) -> Iterator[dict[str, object]]:
    """Yield the record of each example after the fields that identify it.

    `id` counts the usable rows of all files of the set from 0, and is the same in every fold. `file` counts the files
    from 0, and `row` is the place in the file, as in errors. The text is left out if the file has changed, and of the
    probabilities of many labels all but the largest.
    """
    part = scored.part
    # A file that was shortened since it was read has fewer texts; the last records then have none.
    texts = chain(part.texts(), repeat(None))
    for (_, record), place, text in zip(scored.spool, _places(part), texts, strict=False):
        yield {**place, **(text or {}), **with_largest(task.finished(record, scored.scores.metrics))}


def _places(part: Examples) -> Iterator[dict[str, int]]:
    """Yield the fields that identify each example, by chunks of rows, so that whole columns are not in memory."""
    for rows_B in chunks_of(part.rows_N):
        columns = (part.stored.scalars(name, rows_B).tolist() for name in ("file", "number"))
        for row, file, number in zip(rows_B.tolist(), *columns, strict=True):
            yield {"id": row, "file": file, "row": number}


SUMMARY = "dev"
"""the name under which the metrics of all heads together are recorded"""
Metrics = Mapping[str, Mapping[str, float]]
"""by set, by name"""


@dataclass(frozen=True)
class Decisive:
    """A metric of a set."""

    set_name: str
    metric: str


def decisive(task: Task, major_metric: str | None, store: Store) -> Decisive:
    """Return what decides: the metric on the first evaluation set, of several heads their mean or one head's."""
    metric = major_metric or task.default_metric
    if not isinstance(task, Composite):
        return Decisive(first_sets(store)[""], metric)
    if metric == MEAN:
        return Decisive(SUMMARY, MEAN)
    member, _, own = metric.partition("/")
    return Decisive(first_sets(store)[member], own)


def first_sets(store: Store) -> dict[str, str]:
    """Return the first evaluation set of each set of a mixture; without one, of the empty name."""
    found: dict[str, str] = {}
    for name, part in store.of_role("dev").items():
        found.setdefault(part.member, name)
    return found


def decided_for(store: Store, name: str, metrics: Metrics) -> Mapping[str, float]:
    """Return the metrics from which a set takes its threshold, {} for the set that has them decided."""
    return metrics.get(first_sets(store)[store.sets[name].member], {})


def with_summary(task: Task, store: Store, metrics: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the metrics of an evaluation with those of all heads together, which come first."""
    if not isinstance(task, Composite):
        return metrics
    own = task.summary({member: metrics[name] for member, name in first_sets(store).items()})
    return {SUMMARY: own, **metrics} if own else metrics
