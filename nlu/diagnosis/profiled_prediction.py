"""Profile the prediction of rows with a trained run: reading, tokenizing, forward passes, writing."""

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.inference import STANDARD, Input, Predict, Profile
from nlu.data.examples import in_memory
from nlu.data.order import evaluation_batches
from nlu.diagnosis.profiled import Profiled, device_name, memory_mb
from nlu.diagnosis.traced import Traced, trace
from nlu.display.progress import Progress
from nlu.inference.locate import Located
from nlu.inference.prediction import work_of
from nlu.inference.source import found
from nlu.inference.trained import load_trained
from nlu.training.memory import peak_mb
from nlu.training.phases import HostPhases, Phase, phases_on
from nlu.training.ranks import Ranks


def profile_prediction(
    located: Located, config: Profile, ranks: Ranks, progress: Progress, path: Path | None
) -> tuple[Profiled, Traced]:
    """Measure batches of the rows of `config.rows`; `path` is the Chrome trace to write, or None."""
    assert config.run is not None and config.rows is not None, "validated together"
    batch_size = config.trainer.eval_batch_size or 64
    asked = Predict(run=config.run, input=Input(path=config.rows), output=STANDARD, batch_size=batch_size)
    trained = load_trained(located)
    with found(config.rows, "auto", "rows") as file, progress.task("profiling") as bar:
        work = work_of(asked, trained, file, ranks)
        work.bar = bar
        phases = phases_on(ranks.device)
        encoded = _timed(work, trained.task, phases)
        rows = iter(work.source.rows())
        if first := list(islice(rows, config.warmup * batch_size)):
            work.piece(first)
        phases.catch_up()
        phases.start()
        encoded.clear()
        began_s = time.perf_counter()
        with phases.within("reading"):
            chunk = list(islice(rows, config.steps * batch_size))
        # A small file is used up by the warm-up, so its rows are predicted again, without the time of reading them.
        chunk = chunk or first
        if not chunk:
            raise UserError(f"rows is {config.rows}, which has no rows; give a file with rows")
        work.piece(chunk)
        phases.catch_up()
        elapsed_s = time.perf_counter() - began_s
        part = in_memory(encoded[0], trained.layout)
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
        some = work.predictor.encode([row.values for row, _ in chunk[:batch_size]])  # type: ignore[union-attr]
        traced = trace(trained.model, ranks.device, lambda: work.predictor.predict(some), 1, path)  # type: ignore[union-attr]
    profiled.busy = traced.busy(profiled.step_s)
    return profiled, traced


def _timed(work: Any, task: Any, phases: HostPhases) -> list[Any]:
    """Time the parts of a prediction as phases; returns a list of what `encode` will have returned."""
    encoded: list[Any] = []

    def within(phase: Phase, holder: Any, name: str, keep: Callable[[Any], None] = lambda result: None) -> None:
        function = getattr(holder, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            with phases.within(phase):
                result = function(*arguments, **named)
            keep(result)
            return result

        setattr(holder, name, timed)

    within("encoding", work.predictor, "encode", encoded.append)
    # What a prediction does beside forward passes and their outputs is to gather batches.
    within("data", work.predictor, "predict")
    within("forward", task, "forward")
    within("output", task, "predictions")
    within("writing", work.output, "piece")
    return encoded
