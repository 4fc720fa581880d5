"""Profile the prediction of rows with a trained run: reading, tokenizing, forward passes, writing."""

import time
from itertools import islice
from pathlib import Path

from nlu.config.command_keys import STANDARD, Input, Predict, Profile
from nlu.data.examples import in_memory
from nlu.data.order import evaluation_batches
from nlu.data.reader import Row
from nlu.data.store import EncodedRows
from nlu.diagnosis.profiled import Profiled, device_name, memory_mb
from nlu.diagnosis.traced import Traced, trace
from nlu.display.progress_bars import Progress
from nlu.inference.cells import PredictedRow
from nlu.inference.locate import Located
from nlu.inference.prediction import Chunk, Work, work_of
from nlu.inference.source import found
from nlu.inference.trained import load_trained
from nlu.training.memory import peak_mb
from nlu.training.phases import HostPhases, phases_on
from nlu.training.ranks import Ranks


def profile_prediction(
    located: Located, config: Profile, ranks: Ranks, progress: Progress, path: Path | None
) -> tuple[Profiled, Traced]:
    """Measure batches of the rows of `config.rows`; `path` is the Chrome trace to write, or None."""
    assert config.run is not None and config.rows is not None, "validated together"
    batch_size = config.trainer.eval_batch_size or 64
    asked = Predict(run=config.run, input=Input(path=config.rows), output=STANDARD, batch_size=batch_size)
    trained = load_trained(located)
    with found(config.rows, "auto", "rows") as file, progress.task("profiling"):
        work = work_of(asked, trained, file, ranks)
        phases = phases_on(ranks.device)
        rows = iter(work.source.rows())
        first = list(islice(rows, config.warmup * batch_size))
        if first:
            _predict(work, first, phases)
        phases.catch_up()
        phases.start()
        began_s = time.perf_counter()
        with phases.within("reading"):
            chunk = list(islice(rows, config.steps * batch_size))
        # A small file is used up by the warm-up, so its rows are predicted again, without the time of reading them.
        encoded = _predict(work, chunk or first, phases)
        phases.catch_up()
        elapsed_s = time.perf_counter() - began_s
        part = in_memory(encoded, trained.layout)
        lengths_N = part.lengths_N
        batches = evaluation_batches(lengths_N, batch_size=batch_size, rank=0, world_size=1)
        pads = trained.model.backbone.pads
        computed = sum(lengths_N[each_B].max() * len(each_B) if pads else lengths_N[each_B].sum() for each_B in batches)
        profiled = Profiled(
            what="a batch of prediction",
            steps=len(batches),
            seconds={phase: value / len(batches) for phase, value in phases.take().items()},
            examples_per_s=len(part) / elapsed_s,
            real_tokens_per_s=int(lengths_N.sum()) / elapsed_s,
            computed_tokens_per_s=int(computed) / elapsed_s,
            peak_mb=peak_mb(ranks.device),
            device=device_name(ranks.device),
            limit_mb=memory_mb(ranks.device),
        )
        some = work.predictor.encode([row.values for row, _ in (chunk or first)[:batch_size] if isinstance(row, Row)])
        traced = trace(trained.model, ranks.device, lambda: work.predictor.predict(some), 1, path)
    profiled.busy = traced.busy(profiled.step_s)
    return profiled, traced


def _predict(work: Work, chunk: Chunk, phases: HostPhases) -> EncodedRows:
    """Predict rows, all of which can be used, and make the bytes that nlu.predict would write; returns their tokens."""
    rows = [(row, original) for row, original in chunk if isinstance(row, Row)]
    with phases.within("encoding"):
        encoded = work.predictor.encode([row.values for row, _ in rows])
    with phases.within("forward"):
        predictions = work.predictor.predict(encoded)
    with phases.within("writing"):
        cells = [work.columns.cells(row.values, one) for (row, _), one in zip(rows, predictions, strict=True)]
        work.output.piece([PredictedRow(original, own, "") for (_, original), own in zip(rows, cells, strict=True)])
    return encoded
