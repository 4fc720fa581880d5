"""The experiment of a command on this rank: one run, or its repeats, one for each fold and seed.

Repeats run one after another in their own folders. A repeat is an ordinary run, with the same bytes as `fold=K seed=S`.
The folder above contains the configuration, the means over the repeats and the joined predictions of the folds.
"""

import json
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from nlu.config import stopping
from nlu.config.schema import Run
from nlu.metrics.repeats import OUT_OF_FOLD, join_folds, summarise
from nlu.runs import logs
from nlu.runs.folder import CONFIG, checkpoint_to_continue, hold, keep_note, write_config
from nlu.runs.mirror import Mirror, closed_at_the_end
from nlu.runs.predictions import write_predictions
from nlu.search.faults import lost_a_peer
from nlu.storage.files import write_json
from nlu.training.auto import GROUP, NAME, with_precision
from nlu.training.compiled import require_compilable
from nlu.training.memory import release
from nlu.training.parts import Trial
from nlu.training.ranks import Ranks, process_group
from nlu.training.single import reason_kept, run_single, write_command

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repeat:
    """One fold of one seed: the name of its folder, its configuration, and the overrides that run only this repeat."""

    name: str
    config: Run
    overrides: list[str]


def repeats_of(config: Run, overrides: list[str]) -> list[Repeat]:
    """Return the repeats of a configuration, by seed and then by fold; none if it is a single run."""
    if config.num_repeats == 1:
        return []
    folds, seeds = config.folds_to_run, range(config.seed, config.seed + config.seeds)
    repeats = []
    for seed in seeds:
        for number in folds:
            named = {"seed": seed if len(seeds) > 1 else None, "fold": number if len(folds) > 1 else None}
            name = "-".join(f"{key}-{value}" for key, value in named.items() if value is not None)
            own = {"seed": seed, "seeds": 1, "fold": number}
            written = [f"{key}={'null' if value is None else value}" for key, value in own.items()]
            repeats.append(Repeat(name, config.repeat(seed=seed, fold=number), [*overrides, *written]))
    return repeats


class WholeTrial(Trial, Protocol):
    """The trial of a search, as seen by the repeats of its configuration."""

    def end_part(self, examples: int, value: float) -> None:
        """Note that a fold or seed of the trial has ended after `examples` examples in all.

        `value` is the mean of the best values of all that have ended.
        """


class RunningMean:
    """Reports to a trial the mean over its repeats: the best values of finished ones and the current value."""

    def __init__(self, trial: WholeTrial):
        self.asked_to_prune = False
        self._trial = trial
        self._heard = False
        self._values: list[float] = []
        self._examples = 0

    def report(self, examples: int, value: float) -> bool:
        """Report an evaluation of the running repeat; returns whether the trial should be pruned."""
        mean = statistics.fmean([*self._values, value])
        self.asked_to_prune, self._heard = self._trial.report(self._examples + examples, mean), True
        return self.asked_to_prune

    def pauses(self, examples: int) -> bool:
        """Return whether the trial is paused; after the first repeat this is only decided between two of them."""
        return not self._values and self._trial.pauses(examples)

    def pauses_between(self) -> bool:
        """Return whether the trial is paused after the last repeat that was added."""
        self._trial.end_part(self._examples, statistics.fmean(self._values))
        return self._trial.pauses(self._examples)

    def ask_again(self, result: dict[str, Any]) -> None:
        """Report again the end of a repeat that an earlier process has run, from its result.json."""
        if not self._heard:
            self.report(result["examples"], _last_value(result))

    @property
    def quantities(self) -> Sequence[str]:
        return self._trial.quantities

    def add(self, result: dict[str, Any]) -> None:
        """Add a finished repeat, from its result.json."""
        best = result["best"]["value"]
        self._values.append(math.nan if best is None else best)
        self._examples += result["examples"]
        self._heard = False


def _last_value(result: dict[str, Any]) -> float:
    best = result["best"]
    # The trial gets the scores that were computed while training.
    last = result["sample"]["last"] if "sample" in result else result["last"][best["set"]][best["metric"]]
    return math.nan if last is None else last


def run_repeats(
    repeats: list[Repeat],
    config: Run,
    run_dir: Path,
    overrides: list[str],
    ranks: Ranks,
    trial: WholeTrial | None,
    after_save: Callable[[], None] = lambda: None,
) -> int:
    """Run the repeats that are not finished yet, then write their joint result; returns the exit status.

    A pruned trial keeps its finished repeats, without joined predictions. With `trainer.stop_after` each repeat is
    trained to the end of this stage, and the joint result is written once all are finished.
    """
    # Of a trial, on rank 0.
    mean = None if trial is None else RunningMean(trial)
    with hold(run_dir) if ranks.is_first else nullcontext(), ExitStack() as known:
        # Called for its checks: the folder must be empty or belong to this command. A repeat finds its own checkpoint.
        ranks.from_first(checkpoint_to_continue(run_dir, config.to_config()) if ranks.is_first else None)
        if ranks.from_first((run_dir / "result.json").is_file()):
            for folder in (run_dir, *(run_dir / repeat.name for repeat in repeats)) if ranks.is_first else ():
                if (folder / CONFIG).is_file():
                    keep_note(folder, config.note)
            log.info("the runs in %s are finished; nothing was done", run_dir)
            return 0
        known.enter_context(reason_kept(run_dir, ranks))
        begun = False

        def begin() -> None:
            nonlocal begun
            # Only when the first repeat is built: a mistake that shows while it is built must leave no folder behind.
            if not begun and ranks.is_first:
                write_config(run_dir, config.to_config())
                write_command(run_dir, config, overrides, ranks)
            begun = True

        done: list[Repeat] = []
        is_unfinished = False
        for repeat in repeats:
            if repeat is not repeats[0]:
                # Models of earlier repeats refer to themselves in cycles.
                release(ranks.device)
            status = run_single(
                repeat.config,
                run_dir / repeat.name,
                repeat.overrides,
                ranks,
                trial=mean,
                before_training=begin,
                after_save=after_save,
            )
            if begun:
                # `run_single` has directed the log to the folder of the repeat.
                logs.set_up(run_dir, ranks.rank, on_console=config.is_standalone)
            if status:
                return status
            if not ranks.from_first((run_dir / repeat.name / "result.json").is_file()):
                # The end of its stage; that of the others comes at the same place.
                is_unfinished = True
                continue
            done.append(repeat)
            result = ranks.from_first(_result(run_dir / repeat.name) if ranks.is_first else None)
            log.info("%s", _line(repeat, result))
            if mean:
                mean.ask_again(result)
                mean.add(result)
            if repeat is not repeats[-1]:
                pruned = result["pruned"] or (mean is not None and mean.asked_to_prune)
                if ranks.from_first(pruned):
                    break
                if config.trial is not None and ranks.from_first(mean.pauses_between() if mean else None):
                    return stopping.exit_code()
        if ranks.is_first and not is_unfinished:
            _write_result(config, run_dir, done, len(repeats))
    return 0


def _line(repeat: Repeat, result: dict[str, Any]) -> str:
    best = result["best"]
    pruned = ", pruned" if result["pruned"] else ""
    value = "not a number" if best["value"] is None else f"{best['value']:.4f}"
    return f"{repeat.name}: {best['set']} {best['metric']} {value} at step {best['step']:,}{pruned}"


def _result(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text(encoding="utf-8"))


def _write_result(config: Run, run_dir: Path, done: list[Repeat], wanted: int) -> None:
    """Write the joined predictions of the folds of each seed, if all exist, and result.json last."""
    summary = summarise({repeat.name: _result(run_dir / repeat.name) for repeat in done})
    summary |= {"pruned": len(done) < wanted or summary["pruned"], "seed": config.seed, "seeds": config.seeds}
    joined: dict[str, object] = {}
    if config.folds.count is not None and config.fold is None and not summary["pruned"]:
        for seed in dict.fromkeys(repeat.config.seed for repeat in done):
            folders = [run_dir / repeat.name for repeat in done if repeat.config.seed == seed]
            held_out = join_folds(folders)
            name = OUT_OF_FOLD if config.seeds == 1 else f"{OUT_OF_FOLD}-seed-{seed}"
            write_predictions(run_dir / "predictions" / f"{name}.jsonl", held_out.header, held_out.records())
            joined[str(seed)] = held_out.metrics
    write_json(run_dir / "result.json", {**summary, "out_of_fold": joined or None})


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
        if config.trainer.compile:
            require_compilable(ranks.device)
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
            # The newest job of a trial is the one that its search counts on; older ones do not come so far.
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
