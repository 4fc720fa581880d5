"""The experiment of a command on this rank: one run, or one for each fold and seed."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from nlu.config import stopping
from nlu.config.schema import Run
from nlu.runs import logs
from nlu.runs.folder import CONFIG, hold
from nlu.runs.mirror import Mirror, closed_at_the_end
from nlu.search.faults import lost_a_peer
from nlu.training.auto import GROUP, NAME, with_precision
from nlu.training.ranks import Ranks, process_group
from nlu.training.repeats import WholeTrial, repeats_of, run_repeats
from nlu.training.single import run_single

log = logging.getLogger(__name__)


def run_experiment(config: Run, run_dir: Path, overrides: list[str]) -> int:
    """Run on this rank; returns the exit status: 0 when complete or at the end of a stage (`trainer.stop_after`), 75 or
    130 when stopped with its state saved.

    The job of a search prints nothing to the console. Raises UserError for the user's mistakes, without touching
    a run folder that this command did not create.
    """
    with stopping.listening():
        try:
            try:
                status = _run(config, run_dir, overrides)
            except stopping.Stopped as stopped:
                status = stopping.exit_code(stopped)
            except RuntimeError as error:
                if not stopping.received() or not lost_a_peer(error):
                    raise
                # The other ranks were asked to stop too, and one of them has ended.
                status = stopping.exit_code()
            if status:
                log.log(logs.STOPPED, "%s", how_to_continue(config, run_dir))
        finally:
            if not config.is_standalone:
                logs.tear_down()
    return status


def choose_kernels(device: torch.device) -> None:
    """Make torch use kernels that give equal sums in every run, as far as it has them."""
    if device.type == "cuda":
        # On a CPU, equal threads give equal sums anyway, and the mode costs a fifth of the speed in bf16. The other
        # function, use_deterministic_algorithms, would import the compiler, which takes 1.5 s.
        torch.set_deterministic_debug_mode("warn")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def how_to_continue(config: Run, run_dir: Path) -> str:
    """Return why the run stopped, and what continues it, as a sentence."""
    # Without a signal, its trial was paused.
    name = stopping.sentence() if stopping.received() else "paused by the search"
    if not config.is_standalone:
        return f"{name}; the search continues it"
    if not (run_dir / CONFIG).is_file():
        return f"{name} before the run had begun; the same command begins it"
    how = "continues" if config.trainer.save else "starts again at step 0, since trainer.save is false"
    return f"{name}; the command with hydra.run.dir={run_dir} resume=auto {how}"


def _run(config: Run, run_dir: Path, overrides: list[str]) -> int:
    joined = process_group(config.trainer.device, timeout_min=config.trainer.timeout_min)
    with joined as ranks:
        # Rank 0 decides: the folder's name may contain the time, which the ranks read at different moments.
        run_dir = Path(ranks.from_first(str(run_dir)))
        # What a run kept that this process has refused before does not belong to this one.
        logs.tear_down()
        # As early as possible, so that what goes wrong while the run is built is in its log too.
        logs.begin(run_dir, ranks.rank, standalone=config.is_standalone)
        choose_kernels(ranks.device)
        trial = trial_of(config, ranks)
        with mirrored(config, run_dir, ranks) as after_save:
            # After the mirror has filled the folder, whose run keeps its precision.
            config = with_precision(config, ranks, run_dir)
            asked = f"{GROUP}={NAME}"
            # So that the run repeated by its overrides on other hardware has the same precision.
            overrides = [f"{GROUP}={config.choices[GROUP]}" if one == asked else one for one in overrides]
            if repeats := repeats_of(config, overrides):
                status = run_repeats(repeats, config, run_dir, overrides, ranks, trial, after_save)
            else:
                status = run_single(config, run_dir, overrides, ranks, trial=trial, after_save=after_save)
            if status and ranks.is_first:
                # Ask the queue to start the job again before the mirror is complete, which may take long.
                stopping.tell_saved()
    if status or not ranks.is_first:
        return status
    if not (run_dir / "result.json").is_file():
        log.log(
            logs.STOPPED,
            "unfinished; the command with hydra.run.dir=%s resume=auto continues, without trainer.stop_after or with a "
            "later one than %s",
            run_dir,
            config.trainer.stop_after,
        )
    elif config.is_standalone:
        from nlu.training.finish import show_result

        show_result(run_dir)
    return status


@contextmanager
def mirrored(config: Run, run_dir: Path, ranks: Ranks) -> Iterator[Callable[[], None]]:
    """Keep the folder in the mirror of the configuration, if any; yields a function to call after each save.

    Before the block, the folder becomes equal to the mirror; after it, the mirror becomes equal to the folder. Rank 0
    does this for all.
    """
    if config.mirror is None:
        yield lambda: None
        return
    mirror = None
    if ranks.is_first:
        mirror = Mirror(config.mirror, run_dir)
        # The mirror fills the folder before the run holds it, so two commands must not do so at once.
        with hold(run_dir):
            # The newest job of a trial is the one that its search counts on.
            mirror.open(may_hold_a_run=config.resume != "never", take=config.take or config.trial is not None)
    ranks.barrier()
    with closed_at_the_end(mirror) if mirror else nullcontext():
        yield mirror.saved if mirror else lambda: None
    ranks.barrier()


def trial_of(config: Run, ranks: Ranks) -> WholeTrial | None:
    """Return the trial of a search to which evaluations are reported, on rank 0; None elsewhere."""
    if config.trial is None or not ranks.is_first:
        return None
    from nlu.search.channel import open_trial

    return open_trial(config.trial)
