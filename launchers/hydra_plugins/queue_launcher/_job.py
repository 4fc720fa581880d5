"""A job as a process runs it elsewhere: it composes its configuration as Hydra's launchers do, and runs the task."""

import sys
import threading
from collections.abc import Sequence
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from nlu.config import stopping
from nlu.config.compose import Loader
from nlu.config.entry.grid import JobLost, current, raised_in
from nlu.config.redaction import LAUNCHER_LINES, hide_setting, is_secret_name
from nlu.config.resolving import as_given
from nlu.jobs.queue import Job
from nlu.jobs.submitit_jobs import failed

_COPYING = threading.Lock()
"""OmegaConf takes nodes out of their tree while it copies them, and several threads launch trials."""


class SubmittedJob:
    """What a process of a job calls: it composes the job as Hydra's launchers do, and runs it. submitit pickles it."""

    def __init__(
        self,
        config: DictConfig,
        context: HydraContext,
        task: TaskFunction,
        *,
        is_single: bool = False,
        returns_status: bool = True,
    ):
        """`returns_status`: an integer that the task returns is an exit status; else a value like any other."""
        # Hydra merges the overrides into the files that a used loader keeps, with all that `for_jobs` removes.
        loader: Any = context.config_loader
        of_command = {"schema": loader.schema} if isinstance(loader, Loader) else {}
        unused = type(loader)(loader.get_search_path(), **of_command)
        self.context = HydraContext(config_loader=unused, callbacks=context.callbacks)
        self.task, self.is_single, self.returns_status = task, is_single, returns_status
        self.command = [hide_setting(argument) for argument in current_command()]
        with _COPYING:
            self.config = for_jobs(config)
            # A copy of the singletons. In it, HydraConfig has the configuration with all that `for_jobs` removes, and
            # GlobalHydra the used loader.
            self.singletons = Singleton.get_state()
        if (holder := self.singletons["instances"].get(HydraConfig)) is not None:
            holder.cfg = self.config
        if (program := self.singletons["instances"].get(GlobalHydra)) is not None and program.hydra is not None:
            program.hydra.config_loader = unused

    def __call__(self, job: Job) -> JobReturn | int:
        import submitit

        Singleton.set_state(self.singletons)
        # As Hydra's own launchers do in a new process: resolvers and singletons are not pickled with the configuration.
        setup_globals()
        # A run records the command of the user, not the one by which a queue starts Python.
        sys.argv = list(self.command)
        # submitit's own handlers ignore SIGTERM, and a job that dies of another signal leaves no word.
        with stopping.listening():
            try:
                config = composed(self.config, self.context, job.number, job.overrides, is_single=self.is_single)
                with read_write(config.hydra), open_dict(config.hydra.job):
                    config.hydra.job.id = submitit.JobEnvironment().job_id
                returned = run_job(
                    hydra_context=self.context,
                    task_function=self.task,
                    config=config,
                    job_dir_key="hydra.run.dir" if self.is_single else "hydra.sweep.dir",
                    job_subdir_key=None if self.is_single else "hydra.sweep.subdir",
                )
            except stopping.Stopped as stopped:
                print(f"nlu: {stopping.sentence(stopped)}; the same command continues", file=sys.stderr)
                if self.returns_status:
                    return stopping.exit_code(stopped)
                # A status would be the value of the trial.
                return failed(JobLost(f"it was {stopping.sentence(stopped)}"))
        value = raised_in(returned)
        return value if self.returns_status and type(value) is int else returned


def for_jobs(config: DictConfig) -> DictConfig:
    """Return a configuration without secrets that its jobs do not need and that would lie in their files.

    These are values of variables, which the jobs inherit, and the launcher's lines of shell.
    """
    found = config.copy()
    with read_write(found.hydra), open_dict(found.hydra):
        for name in [name for name in found.hydra.job.env_set if is_secret_name(str(name))]:
            del found.hydra.job.env_set[name]
        for key in LAUNCHER_LINES:
            if lines := found.hydra.launcher.get(key):
                found.hydra.launcher[key] = {} if OmegaConf.is_dict(lines) else []
        own = [override for override in as_given(found.hydra.overrides.hydra) if hide_setting(override) == override]
        found.hydra.overrides.hydra = own
    return found


def current_command() -> list[str]:
    """Return the command as the user gave it."""
    grid = current()
    return list(grid.command) if grid is not None and grid.command else list(sys.argv)


def composed(
    config: DictConfig, context: HydraContext, number: int, overrides: Sequence[str], *, is_single: bool
) -> DictConfig:
    """Return the configuration of a job. A single run gets the same one as without a launcher."""
    found = context.config_loader.load_sweep_config(config, list(overrides))
    with read_write(found.hydra), open_dict(found.hydra):
        if is_single:
            # In this mode the folder of the job is hydra.run.dir, and hydra.job.num stays unset, as in a run without a
            # launcher.
            found.hydra.mode = RunMode.RUN
        else:
            found.hydra.job.num = number
            found.hydra.job.id = f"job_id_for_{number}"
    return found
