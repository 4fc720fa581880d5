"""Train one run, or several with --multirun.

A run is composed from groups; every key can be set on the command line.

python -m nlu.train                                          a small pretrained model on Chinese reviews
python -m nlu.train model=bert_tiny data=afqmc               another model, another data set
python -m nlu.train data=files data.train=my.csv 'data.fields={text: review, label: stars}'
python -m nlu.train experiment=tnews                         a recorded experiment with its score
python -m nlu.train hydra.run.dir=outputs/mine resume=auto   start, or continue after a kill, to the same bytes
python -m nlu.train --rerun outputs/mine seed=2              an earlier run again, with another seed
python -m nlu.train mirror=s3://b/a --take resume=auto       continue a run whose machine is gone, from its mirror
python -m nlu.train dry_run=true                             print the configuration and every problem with it
python -m nlu.train debug=limit                              few rows and 20 steps, to check that everything works
python -m nlu.train trainer.devices=2                        one process for each of two devices
torchrun --nproc-per-node=2 -m nlu.train                     the same, started by torchrun
python -m nlu.train hydra/launcher=slurm                     on a cluster; python -m nlu.jobs manages the jobs
python -m nlu.train folds=5                                  cross-validation; seeds=3 trains three seeds
python -m nlu.train --multirun seed=1,2,3                    Hydra's grid
python -m nlu.train --multirun hydra/sweeper=hyperband 'optimizer.lr=tag(log,interval(1e-5,5e-4))'    a search
"""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from nlu.config.entry.app import prepare, run_app
from nlu.config.entry.grid import is_submitted
from nlu.config.entry.hydra_keys import occupied_folder_problem, unnamed_folder_problem
from nlu.config.errors import UserError
from nlu.config.resolving import as_given
from nlu.jobs.requeue import run_while_time_lasts, was_started_before

BEGAN_S = time.time()
"""before Hydra creates the folder of the run, which `run` removes again if it stays empty"""


def main(composed: DictConfig) -> int:
    """Run one configuration. The job of a search also writes its outcome to the storage of the search."""
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    if not isinstance(trial := composed.get("trial"), DictConfig):
        try:
            return run_while_time_lasts(partial(run, composed, run_dir), _lost_a_peer)
        except RuntimeError as error:
            from nlu.search.faults import ProcessLost

            if not isinstance(error, ProcessLost):
                raise
            raise UserError(f"{error}; the same command with resume=auto continues from the last save") from error
    from nlu.search.channel import run_trial

    mapping: Any = OmegaConf.to_container(trial, resolve=True)
    return run_trial(mapping, run_dir, partial(run, composed, run_dir))


def _lost_a_peer(error: BaseException) -> bool:
    from nlu.jobs.placement import placement
    from nlu.search.faults import lost_a_peer

    # The node of the other rank may have gone down, in which case the job is queued again.
    return placement().world_size > 1 and lost_a_peer(error)


def run(composed: DictConfig, run_dir: Path) -> int:
    """Validate, then run. Heavy imports come after the validation."""
    hydra: Any = HydraConfig.get()
    from nlu.config.schema import Run

    # A refused command must not leave an empty folder, but one that existed before belongs to the user.
    made_by_hydra = run_dir.stat().st_ctime >= BEGAN_S
    try:
        config = prepare(composed)
        if config["trial"] is None and (problem := unnamed_folder_problem(config["resume"], config["mirror"], hydra)):
            raise UserError(problem)
        # Before the dry run, so that it shows the mirror that the run would have.
        config["mirror"] = mirror_of_job(config["mirror"], run_dir, hydra)
        if config["resume"] == "never" and is_submitted() and was_started_before():
            # The same job, started again by its queue, has created the content of the folder.
            config["resume"] = "auto"
        if config["dry_run"]:
            if problem := occupied_folder_problem(config["resume"], run_dir):
                raise UserError(problem)
            from nlu.jobs.queue import end_dry_run

            return end_dry_run(config)
        from nlu.training.processes import launch

        return launch(Run.of(config, choices_of(hydra)), run_dir, command_line(hydra))
    except Exception as error:
        if (hydra.mode == RunMode.MULTIRUN or is_submitted()) and composed.get("trial") is None:
            keep_reason_of_job(run_dir, error)
        raise
    finally:
        if made_by_hydra and run_dir.is_dir() and not any(run_dir.iterdir()):
            run_dir.rmdir()


def keep_reason_of_job(run_dir: Path, error: Exception) -> None:
    """Write why a job of a grid or queue failed before its run began into its folder, where nlu.report finds it."""
    from nlu.jobs.placement import placement
    from nlu.runs.folder import LOCK, has_begun
    from nlu.runs.logs import record_end
    from nlu.storage.locks import is_locked

    # Another job with this folder may be about to begin its run.
    if placement().is_first and not has_begun(run_dir) and not is_locked(run_dir / LOCK):
        record_end(run_dir, error)


def mirror_of_job(mirror: str | None, run_dir: Path, hydra: DictConfig) -> str | None:
    """Return the mirror of this run: for a job of a grid or a search, a folder below the configured mirror."""
    if mirror is None or hydra.mode != RunMode.MULTIRUN:
        return mirror
    # By its place in the sweep, so that jobs of one grid do not share a mirror.
    name = os.path.relpath(run_dir, Path(str(hydra.sweep.dir)).absolute())
    return mirror if name == "." else f"{mirror.rstrip('/')}/{Path(name).as_posix()}"


def choices_of(hydra: DictConfig) -> dict[str, str]:
    """Return the chosen name of each group, which the configuration does not contain, for the records of the run."""
    choices = hydra.runtime.choices.items()
    return {group: name for group, name in choices if name is not None and not group.startswith("hydra/")}


def command_line(hydra: DictConfig) -> list[str]:
    """Return the arguments that compose the same run again, without the trial of a search."""
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    # The trial belongs to one study. A rerun of its configuration must not report to that study again.
    own = [override for override in as_given(hydra.overrides.task) if not override.startswith("trial=")]
    return [*(f"--config-dir={folder}" for folder in folders), *own]


def run_folder(reference: str) -> Path:
    """Return the local folder of the run that --rerun names."""
    # It loads the drivers of stores.
    from nlu.storage.run_copies import records_of

    return records_of(reference, "--rerun")


def command() -> NoReturn:
    """The program nlu-train."""
    run_app(main, "train", run_folder=run_folder)


if __name__ == "__main__":
    command()
