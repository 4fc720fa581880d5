"""The beginning of a search: its plan, its folder and its study."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from optuna.exceptions import ExperimentalWarning

from nlu.config import stopping
from nlu.jobs import full_queue
from nlu.search.failures import FailuresEndSearch
from nlu.search.loop import Search
from nlu.search.plan import plan_search
from nlu.search.preflight import read_settings
from nlu.search.slots import quiet_launchers
from nlu.search.sweep_folder import hold, mirrored, require_no_run, settle


def sweep(
    sweeper: Mapping[str, Any], arguments: Sequence[str], context: HydraContext, task: TaskFunction, config: DictConfig
) -> None:
    """Run a search to its end, or continue the one in its folder. Raises UserError before the first trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", ExperimentalWarning)
    quiet_launchers()
    with stopping.listening(), full_queue.of_a_search():
        try:
            asked, problems, of_space = read_settings(sweeper, arguments, config, context.config_loader)
            # Before the lock, which would leave files in the folder of a run.
            require_no_run(asked.folder)
            with mirrored(asked.mirror, asked.folder, take=asked.take) as mirror, hold(asked.folder):
                plan = plan_search(asked, problems, of_space, context, task)
                settle(plan.folder, plan.url, plan.study, plan.identity, plan.direction)
                # For Optuna's figures and dashboard.
                if plan.study.metric_names != (names := [plan.metric, *plan.goals.objectives]):
                    plan.study.set_metric_names(names)
                if mirror is not None:
                    mirror.saved()
                _run(Search(plan, mirror))
        except stopping.Stopped as stopped:
            print(f"nlu: {stopping.sentence(stopped)}; the same command continues the search", file=sys.stderr)
            raise SystemExit(stopping.exit_code(stopped)) from None


def _run(search: Search) -> None:
    try:
        search.run()
    except FailuresEndSearch:
        search.summarize()
        raise
    search.summarize()
    search.require_an_end()
