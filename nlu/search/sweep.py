"""The beginning of a search: its plan, its folder and its study."""

import sys
import warnings
from typing import Any

import optuna
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from optuna.exceptions import ExperimentalWarning

from nlu.config import stopping
from nlu.jobs import waiting
from nlu.search.failures import FailuresEndSearch
from nlu.search.folder import hold, mirrored, require_no_run
from nlu.search.loop import Search
from nlu.search.plan import SearchPlan
from nlu.search.slots import quiet_launchers
from nlu.search.storage.holder import Holder
from nlu.search.storage.opening import held_search


def sweep(
    settings: dict[str, Any], arguments: list[str], context: HydraContext, task: TaskFunction, config: DictConfig
) -> None:
    """Run a search to its end, or continue the one in its folder. Raises UserError before the first trial."""
    with stopping.listening(), waiting.of_a_search():
        try:
            _sweep(settings, arguments, context, task, config)
        except stopping.Stopped as stopped:
            print(f"nlu: {stopping.sentence(stopped)}; the same command continues the search", file=sys.stderr)
            raise SystemExit(stopping.exit_code(stopped)) from None


def _sweep(
    settings: dict[str, Any], arguments: list[str], context: HydraContext, task: TaskFunction, config: DictConfig
) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", ExperimentalWarning)
    quiet_launchers()
    plan = SearchPlan(settings, arguments, context, task, config)
    # Before the lock, which would leave files in the folder of a run.
    require_no_run(plan.folder)
    with mirrored(plan.mirror, plan.folder, take=plan.take) as mirror, hold(plan.folder):
        plan.prepare()
        # The search that had this folder before is over, since this one has its lock.
        had_folder = held_search(plan.folder) is not None
        with Holder(plan.storage, plan.name, take=plan.take or had_folder) as holder:
            # Only as the holder: two searches that begin at the same moment must not mix what identifies them.
            plan.settle()
            if mirror is not None:
                mirror.saved()
            search = Search(plan, holder, mirror)
            try:
                search.run()
            except FailuresEndSearch:
                search.summarize()
                raise
            search.summarize()
            search.require_an_end()
