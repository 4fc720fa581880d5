"""Write predictions/SET.jsonl: the prediction for each example of a set, with its text."""

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from nlu.data.examples import Examples
from nlu.data.store import chunks_of
from nlu.runs.predictions import write_predictions
from nlu.tasks.task import Task
from nlu.training.evaluation import Scored
from nlu.training.ranks import Ranks


def keep_predictions(run_dir: Path, name: str, scored: Scored, task: Task, ranks: Ranks, *, step: int | None) -> None:
    """Write the records of a scored set in the order of its rows. Every rank must call it; rank 0 writes.

    `step` is that of the weights, None if it is unknown.
    """
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
        if scores.by_query:
            header["by_query"] = scores.by_query
        write_predictions(run_dir / "predictions" / f"{name}.jsonl", header, _records(scored, task))


def _records(scored: Scored, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the record of each example after the fields that identify it.

    `id` counts the usable rows of all files of the set from 0, and is the same in every fold. `file` counts the files
    from 0, and `row` is the place in the file, as in errors. The text is left out if the file has changed.
    """
    part = scored.part
    texts = chain(part.texts(), repeat(None))
    for (_, record), place, text in zip(scored.spool, _places(part), texts, strict=False):
        yield {**place, **(text or {}), **task.finished(record, scored.scores.metrics)}


def _places(part: Examples) -> Iterator[dict[str, int]]:
    """Yield the fields that identify each example, by chunks of rows, so that whole columns are not in memory."""
    for rows_B in chunks_of(part.rows_N):
        columns = (part.stored.scalars(name, rows_B).tolist() for name in ("file", "number"))
        for row, file, number in zip(rows_B.tolist(), *columns, strict=True):
            yield {"id": row, "file": file, "row": number}
