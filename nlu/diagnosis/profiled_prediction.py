"""Profile the prediction of rows with a trained run: reading, tokenizing, forward passes, writing."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.flop_counter import FlopCounterMode

from nlu.config.errors import UserError
from nlu.config.inference import STANDARD, Input, Predict, Profile
from nlu.data.examples import Examples, in_memory
from nlu.data.order import evaluation_batches
from nlu.diagnosis.bottlenecks import Measured, findings
from nlu.diagnosis.limits import limit_gflops
from nlu.diagnosis.profiled import Profiled
from nlu.diagnosis.traced import Traced, trace
from nlu.diagnosis.usable import device_name, with_machine
from nlu.display.progress import Progress
from nlu.inference.locate import Located
from nlu.inference.prediction import work_of
from nlu.inference.source import found
from nlu.inference.trained import load_trained
from nlu.training.phases import HostPhases, Phase, phases_on
from nlu.training.ranks import Ranks

MOST_TRACED = 3
"""batches under the profiler"""


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
        predictor = work.predictor
        phases = phases_on(ranks.device)
        encoded = _timed(work, trained.task, phases)
        rows = iter(work.source.rows())
        if first := list(islice(rows, config.warmup * batch_size)):
            work.piece(first)
        phases.catch_up()
        phases.start()
        began_s = time.perf_counter()
        encoded.clear()
        with phases.within("reading"):
            chunk = list(islice(rows, config.steps * batch_size))
        # A small file is used up by the warm-up, so its rows are predicted again, without the time of reading them.
        chunk = chunk or first
        if not chunk:
            raise UserError(f"rows is {config.rows}, which has no rows; give a file with rows")
        work.piece(chunk)
        phases.catch_up()
        elapsed_s = time.perf_counter() - began_s
        seconds = phases.take()
        part = in_memory(encoded[0], trained.layout)
        batches = evaluation_batches(part.lengths_N, batch_size=batch_size, rank=0, world_size=1)
        real, computed = int(part.lengths_N.sum()), tokens_with_padding(part, batches, trained.model.backbone.pads)
        measured = with_machine(
            Measured(
                {phase: value / len(batches) for phase, value in seconds.items()},
                real_tokens=real / len(batches),
                computed_tokens=computed / len(batches),
                is_prediction=True,
            ),
            ranks.device,
        )
        name = device_name(ranks.device)
        profiled = Profiled(
            "a batch of prediction",
            len(batches),
            name,
            measured,
            len(part) / elapsed_s,
            real / elapsed_s,
            computed / elapsed_s,
        )
        some = predictor.encode([row.values for row, _ in chunk[: MOST_TRACED * batch_size]])  # type: ignore[union-attr]
        with FlopCounterMode(display=False) as counter:
            predictor.predict(some)
        again = in_memory(some, trained.layout)
        tokens = tokens_with_padding(
            again,
            evaluation_batches(again.lengths_N, batch_size=batch_size, rank=0, world_size=1),
            trained.model.backbone.pads,
        )
        profiled.gflops = counter.get_total_flops() / max(1, tokens) * profiled.computed_tokens_per_s / 1e9
        profiled.limit_gflops = limit_gflops(predictor.precision, ranks.device)

        def predict(phases: HostPhases) -> None:
            phases.begin("forward")
            predictor.predict(some)
            phases.begin("other")

        traced = trace(trained.model, ranks.device, predict, 1, path)
    traced.scale(measured.computed_tokens / max(1, tokens))
    profiled.modules, profiled.operators = traced.modules, traced.operators
    profiled.measured = replace(
        measured, operators=traced.calls, computing_s=traced.computing_s, traced_s=traced.passes_s
    )
    profiled.findings = findings(profiled.measured)
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


def tokens_with_padding(part: Examples, batches: list[np.ndarray], pads: bool) -> int:
    """Return the tokens that an encoder computes for batches of examples."""
    lengths_N = part.lengths_N
    if not pads:
        return int(lengths_N.sum())
    return int(sum(lengths_N[examples_B].max() * len(examples_B) for examples_B in batches))
