"""One run in one folder, on this process's rank: from its validated configuration to result.json."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from nlu.config.schema import Trainer
from nlu.data.report import describe, lines
from nlu.display.progress import Progress
from nlu.runs.provenance import snapshot_code, write_overrides, write_provenance
from nlu.runs.records import TRAIN_COLUMNS, VALID_COLUMNS, Table
from nlu.storage.cache import read_json
from nlu.storage.files import write_json
from nlu.training import logs
from nlu.training.build import build_run
from nlu.training.checkpoint import arrange_best
from nlu.training.distributed import Ranks
from nlu.training.loop import Report, Training, save_last, train
from nlu.training.run_folder import checkpoint_to_continue, hold, write_config
from nlu.training.stopping import StopSignals

log = logging.getLogger(__name__)


def run_single(
    config: dict[str, Any], run_dir: Path, overrides: list[str], ranks: Ranks, *, report: Report | None = None,
    signals: StopSignals | None = None, before_training: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Run to the end, or find the run finished; returns the exit status: 0, or 75 or 130 when stopped and saved.

    `before_training` is called once everything is built, before anything is written. `signals` are a caller's, who
    listens by then; without them the run listens itself, while it trains. Raises UserError for whatever the user must
    change; a run folder that this command did not begin stays untouched.
    """
    logs.begin(config, run_dir, ranks.rank)
    shown = Progress(enabled=ranks.is_first, on_console=logs.is_alone(config))
    with hold(run_dir) if ranks.is_first else nullcontext(), shown as progress:
        checkpoint = ranks.from_first(checkpoint_to_continue(run_dir, config) if ranks.is_first else None)
        if checkpoint is not None and (run_dir / "result.json").is_file():
            log.info("the run in %s is finished; nothing was done", run_dir)
            return 0
        run = build_run(config, Trainer(**config["trainer"]), run_dir, ranks, progress, checkpoint)
        run.report = report
        run.signals = signals or run.signals
        # Until here there is nothing to save, and a signal ends the process as usual.
        with run.signals if signals is None else nullcontext():
            before_training()
            if checkpoint is not None and checkpoint.parent.parent != run_dir:
                take_over(run, checkpoint.parent)
            begin_records(run, config, overrides)
            stopped = train(run)
        if stopped:
            log.info("stopped after step %d, state saved", run.state.step)
            return run.signals.exit_code
        # Figures and metrics cost a second to import, which a stopped run need not pay.
        from nlu.training.finish import finish

        finish(run)
    return 0


def take_over(run: Training, checkpoints: Path) -> None:
    """Make another run's state this folder's own, with the weights and predictions of its best evaluations.

    From then on the run goes on from here alone, and its best is there even if nothing better comes. That run's metric
    may have been another; what is best is judged anew.
    """
    ranks, state, held = run.stepper.ranks, run.state, None
    for entry in state.best:
        entry.value = run.value_of(entry.metrics)
    state.best = run.ranked(state.best)
    if ranks.is_first:
        held = run.checkpoints.take_over(checkpoints, state.best)
        for name in run.eval_sets:
            known = read_json(checkpoints.parent / "predictions" / f"{name}.json")
            if known is not None and state.best and known.get("step") == state.best[0].step:
                write_json(run.run_dir / "predictions" / f"{name}.json", known)
    held = ranks.from_first(held)
    if state.best and state.best[0].step not in held:
        log.warning("%s lacks the weights of its best evaluation, at step %d; the best counts from here on",
                    checkpoints, state.best[0].step)  # fmt: skip
        state.best = []
    state.best = [entry for entry in state.best if entry.step in held]
    save_last(run)


def begin_records(run: Training, config: dict[str, Any], overrides: list[str]) -> None:
    """Make the folder this run's: configuration, provenance, code, tables; on a continued run, mend them."""
    ranks, run_dir = run.stepper.ranks, run.run_dir
    facts = describe(run.store) if ranks.is_first else {}
    if ranks.is_first:
        write_config(run_dir, config)
    ranks.barrier()
    logs.set_up(run_dir, ranks.rank, on_console=logs.is_alone(config))
    if not ranks.is_first:
        return
    write_command(run_dir, config, overrides, ranks)
    write_json(run_dir / "data.json", facts)
    run.tables = {
        "train": Table(run_dir / "train.tsv", TRAIN_COLUMNS), "valid": Table(run_dir / "valid.tsv", VALID_COLUMNS),
    }  # fmt: skip
    for table in run.tables.values():
        table.truncate_after(run.state.step)
    if (run_dir / "checkpoints").is_dir():
        arrange_best(run_dir / "checkpoints", [entry.step for entry in run.state.best])
    log.info("run folder %s", run_dir)
    for line in lines(facts):
        log.info("%s", line)
    model = run.stepper.model
    log.info(
        "model: %s parameters, %s of them trained; %s steps of %s examples on %s",
        *(f"{sum(p.numel() for p in part):,}" for part in (list(model.parameters()), run.stepper.trained)),
        f"{run.total_steps:,}", run.trainer.batch_size * run.trainer.accumulation,
        f"{ranks.world_size} x {ranks.device.type}",
    )  # fmt: skip


def write_command(run_dir: Path, config: dict[str, Any], overrides: list[str], ranks: Ranks) -> None:
    """Write what ran, so that it can be run again: overrides, provenance.json, code.zip."""
    write_overrides(run_dir, overrides)
    devices = [torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu"]
    write_provenance(run_dir, config, devices=devices * ranks.world_size, world_size=ranks.world_size)
    snapshot_code(run_dir, config["trusted_packages"])
