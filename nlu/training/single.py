"""One run in one folder, on this rank: from its validated configuration to result.json.

If it ends before it is complete, its log says why.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from nlu.config import stopping
from nlu.config.errors import OutOfMemory, UserError
from nlu.config.schema import Run
from nlu.config.sentences import counted
from nlu.data.facts import describe, lines
from nlu.display.progress_bars import Progress
from nlu.runs import logs
from nlu.runs.checkpoint import remove_replaced
from nlu.runs.folder import CONFIG, checkpoint_to_continue, hold, keep_note, write_config
from nlu.runs.freeing import RESULT, remove_unkept
from nlu.runs.provenance import snapshot_code, write_overrides, write_provenance
from nlu.runs.records import (
    COST_COLUMNS,
    SAMPLE_COLUMNS,
    SCALE_COLUMNS,
    TRAIN,
    TRAIN_COLUMNS,
    VALID,
    VALID_COLUMNS,
    Table,
)
from nlu.runs.takeover import is_taken, make_own
from nlu.search.faults import lost_a_peer
from nlu.storage.files import write_json
from nlu.storage.settle import mark_whole
from nlu.training import batch_search
from nlu.training.auto import SPEEDS
from nlu.training.build import build_run
from nlu.training.loop import train
from nlu.training.memory import REMEDY, is_out_of_memory
from nlu.training.nonfinite import AboveMaxLoss, NonFinite
from nlu.training.parts import Training, Trial
from nlu.training.ranks import Ranks
from nlu.training.resuming import save_last

log = logging.getLogger(__name__)


def run_single(
    config: Run,
    run_dir: Path,
    overrides: list[str],
    ranks: Ranks,
    *,
    trial: Trial | None = None,
    before_training: Callable[[], None] = lambda: None,
    after_save: Callable[[], None] = lambda: None,
) -> int:
    """Run to the end, unless the run is already complete; returns the exit status: 0, or 75 or 130 when stopped.

    At the end of a stage (`trainer.stop_after`) the status is 0 too, but the run has no result.json yet.

    `before_training` is called when everything is built, before anything is written; `after_save` on rank 0 after each
    save of the last state. A signal during training saves the state first; at any other time it raises `Stopped` at
    once. Raises UserError for the user's mistakes, without touching a run folder that this command did not
    create.
    """
    logs.begin(run_dir, ranks.rank, standalone=config.is_standalone)
    shown = Progress(enabled=ranks.is_first, on_console=config.is_standalone)
    # Held until the end, so that a second command for the same folder is refused instead of mixing its files with
    # these.
    with hold(run_dir) if ranks.is_first else nullcontext(), shown as progress, ExitStack() as known:
        checkpoint = ranks.from_first(checkpoint_to_continue(run_dir, config.to_config()) if ranks.is_first else None)
        # Without a checkpoint too: a finished run may have kept none.
        if (run_dir / RESULT).is_file():
            if ranks.is_first:
                remove_unkept(run_dir)
                keep_note(run_dir, config.note)
            log.info("the run in %s is finished; nothing was done", run_dir)
            return 0
        # Only from here on is it known that the folder is that of this run.
        known.enter_context(reason_kept(run_dir, ranks))
        # Nothing was written so far: a mistake of the user leaves the folder as it was.
        run = build_run(config, run_dir, ranks, progress, checkpoint, trial, after_save)
        # From here on, a signal must save the state.
        with run.journal.closed_on_errors(), stopping.polled():
            before_training()
            if checkpoint is not None and is_taken(checkpoint):
                take_over(run_dir, checkpoint, config, ranks)
            begin_records(run, config, overrides)
            try:
                with run.journal.listening():
                    stopped = train(run)
            except Exception as error:
                save_what_is_intact(run, error)
                if is_out_of_memory(error):
                    raise OutOfMemory(f"memory ran out after step {run.state.step}; {REMEDY}") from None
                raise
        if stopped:
            saved = "state saved" if config.trainer.save else "nothing saved (trainer.save=false)"
            log.log(logs.STOPPED, "stopped after step %d, %s", run.state.step, saved)
            run.journal.end("stopped")
            return stopping.exit_code()
        if not run.is_complete:
            log.log(
                logs.STOPPED,
                "stopped after step %s of %s, as trainer.stop_after=%s asks; state saved",
                f"{run.state.step:,}",
                f"{run.due.total_steps:,}",
                config.trainer.stop_after,
            )
            run.journal.end("stopped")
            return 0
        # Figures and metrics take a second to import, which a stopped run does not need.
        from nlu.training.finish import finish

        # The state is saved, so a signal ends the command at once, also one that arrived just before.
        with run.journal.closed_on_errors(), stopping.at_once():
            finish(run)
    return 0


@contextmanager
def reason_kept(run_dir: Path, ranks: Ranks) -> Iterator[None]:
    """Write why the block ends early into the log of the run in this folder, which this process holds.

    A run that has not begun has no log yet. Each rank writes into its own log.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if (run_dir / CONFIG).is_file():
            is_stop = isinstance(error, KeyboardInterrupt)
            is_lost = not is_stop and lost_a_peer(error)
            if is_stop or (is_lost and stopping.received()):
                logs.record_end(run_dir, stopping.sentence(), ranks.rank, level=logs.STOPPED)
            elif is_lost:
                logs.record_end(run_dir, UserError(f"another rank has ended or did not answer ({error})"), ranks.rank)
            else:
                assert isinstance(error, Exception)
                logs.record_end(run_dir, error, ranks.rank)
        raise


def save_what_is_intact(run: Training, error: Exception) -> None:
    """Save the state of the last step that was done, after an error before the weights of the next one changed.

    Of several ranks, only for an error that all of them raise together: they save together.
    """
    state, stepper, due = run.state, run.stepper, run.due
    # After such an error nothing was updated, also by steps that an accelerator had begun.
    is_refused = isinstance(error, NonFinite | AboveMaxLoss)
    if not state.step or not (is_refused or stepper.begun == state.step):
        return
    # A run that continues from this state would leave out what was due.
    if run.settled != state.step and (due.logs(state.step) or due.evaluates(state.step)):
        return
    if stepper.ranks.world_size > 1 and not is_refused:
        return
    stepper.passes.undo(state.step + 1)
    try:
        save_last(run)
    except Exception as failure:
        # The error that came first must be the one that is reported.
        log.error("the state of step %d could not be saved: %s", state.step, failure)
        return
    log.info("the state of step %d is saved%s", state.step, "" if run.trainer.save else " nowhere: trainer.save=false")


def take_over(run_dir: Path, checkpoint: Path, config: Run, ranks: Ranks) -> None:
    """Make the taken state of another run that of this one, once everything is built. Every rank must call it."""
    # Other ranks may still read the files that get another place now.
    ranks.barrier()
    if ranks.is_first:
        # After a kill before the mark, the same command takes the state over again.
        mark_whole(checkpoint.parent)
        write_config(run_dir, config.to_config())
        make_own(run_dir)
    ranks.barrier()


def begin_records(run: Training, config: Run, overrides: list[str]) -> None:
    """Write configuration, provenance and code, and open the tables; for a continued run, truncate them.

    All ranks return together: rank 0 renames best checkpoints here, which the others may read afterwards.
    """
    ranks, run_dir = run.stepper.ranks, run.run_dir
    facts = describe(run.store) if ranks.is_first else {}
    if ranks.is_first:
        # First, since a folder without it does not count as a run, and could not be continued after a kill.
        write_config(run_dir, config.to_config())
        if config.trainer.batch_size == "auto":
            batch_search.keep(run_dir, run.trainer.batch_rows)
    ranks.barrier()
    logs.set_up(run_dir, ranks.rank, on_console=config.is_standalone)
    if ranks.is_first:
        _write_records(run, config, overrides, facts)
    ranks.barrier()


def _write_records(run: Training, config: Run, overrides: list[str], facts: dict[str, object]) -> None:
    ranks, run_dir = run.stepper.ranks, run.run_dir
    stepper = run.stepper
    everything, trained, beside = (
        sum(parameter.numel() for parameter in part)
        for part in (
            stepper.model.parameters(),
            [one for one in stepper.model.parameters() if one.requires_grad],
            stepper.own.parameters() if stepper.own else (),
        )
    )
    write_command(run_dir, config, overrides, ranks)
    write_json(run_dir / "data.json", facts)
    terms = run.stepper.weights
    of_terms = [f"loss_{name}" for name in terms] if len(terms) > 1 else []
    of_scale = [] if run.stepper.precision.loss_scale(ranks.device) is None else SCALE_COLUMNS
    columns = (*TRAIN_COLUMNS, *of_terms, *of_scale, *COST_COLUMNS)
    of_valid = (*VALID_COLUMNS, *(SAMPLE_COLUMNS if run.sampled_rows else ()))
    run.tables = {"train": Table(run_dir / TRAIN, columns), "valid": Table(run_dir / VALID, of_valid)}
    # Rows after the saved state will be written again.
    for table in run.tables.values():
        table.truncate_after(run.state.step)
    run.journal.begin(run_dir, config.to_config(), run.state)
    if run.checkpoints.folder.is_dir():
        # A kill may have come between saving the state and naming the best checkpoints after it.
        remove_replaced(run.checkpoints.folder)
        run.checkpoints.arrange(run.state.best)
    log.info("run folder %s", run_dir)
    for line in lines(facts):
        log.info("%s", line)
    log.info(
        "model: %s parameters, %s of them trained%s; %s steps on %s",
        f"{everything:,}",
        f"{trained:,}",
        f", and {beside:,} of the method" if beside else "",
        f"{run.due.total_steps:,}",
        f"{ranks.world_size} x {ranks.device.type}",
    )
    if run.due.total_steps > run.due.asked_steps:
        log.info(
            "trainer.max_duration=%s would be %s; with so few rows the default length is %s; set it to another length "
            "in steps or epochs for that one",
            run.trainer.max_duration,
            counted(run.due.asked_steps, "step"),
            counted(run.due.total_steps, "step"),
        )
    if slow := stepper.precision.warning(ranks.device):
        log.warning("%s", slow)


def write_command(run_dir: Path, config: Run, overrides: list[str], ranks: Ranks) -> None:
    """Write everything that is needed to run the same again: overrides, provenance.json, code.zip."""
    write_overrides(run_dir, overrides)
    devices = [torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu"]
    write_provenance(
        run_dir, config.to_config(), devices=devices * ranks.world_size, world_size=ranks.world_size, speeds=SPEEDS
    )
    snapshot_code(run_dir, config.own_packages)
