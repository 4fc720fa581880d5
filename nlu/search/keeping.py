"""Which checkpoints of a search's trials stay on the disk: what `hydra.sweeper.keep` removes as a search goes.

What may go is a function of the trials in the storage, so a search that is killed and started again decides alike.
Only trials that are decided lose anything: this search never continues a trial that is complete, pruned or failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import TrialState

from nlu.config.errors import UserError
from nlu.runs.freeing import free
from nlu.runs.mirror_files import free_mirror
from nlu.search.goals import best_trials
from nlu.storage.locks import Locked
from nlu.storage.refusals import Unreachable

if TYPE_CHECKING:
    from optuna import Study

KEEP = ALL, ONLY_BEST = ["all", "best"]
KEPT = "keep"
"""user attribute of a study: what its search has as hydra.sweeper.`keep` and `mirror`; without it all stays"""
DECIDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
LEAVES_S, LEAVES_POLL_S = 30.0, 0.2
"""how long the end of a search waits for jobs that still hold their trials, and how often it looks"""


def freed(study: Study) -> dict[int, bool]:
    """Return by number each trial whose checkpoints may go where only the best trial keeps its own, and whether its
    best ones stay: those of the best trial, with several objectives of all on the front, and of all pruned ones until a
    trial that keeps the constraints is complete."""
    decided = study.get_trials(deepcopy=False, states=DECIDED)
    kept = {trial.number for trial in best_trials(study)}
    if not kept:
        # All may end like this, and then the weights of pruned trials are the only ones.
        return {trial.number: trial.state == TrialState.PRUNED for trial in decided}
    return {trial.number: trial.number in kept for trial in decided}


def note_kept(study: Study, keep: str, mirror: str | None) -> None:
    """Note in a study what a search keeps, for whoever ends it (`python -m nlu.jobs FOLDER --stop`)."""
    asked = {"keep": keep, "mirror": mirror}
    if study.user_attrs.get(KEPT, {"keep": ALL, "mirror": None}) != asked:
        study.set_user_attr(KEPT, asked)


class Keeper:
    """Removes checkpoints of trials that are decided, as noted in their study; trials that run or wait keep all."""

    def __init__(self, study: Study, folder: Path, say: Callable[[str], None]):
        self._study, self._folder, self._say = study, folder, say
        asked = study.user_attrs.get(KEPT, {})
        self.only_best, self.mirror = asked.get("keep") == ONLY_BEST, asked.get("mirror")
        self._freed: dict[int, bool] = {}
        self._has_complained = False

    def update(self) -> list[int]:
        """Remove what may go of the trials that have ended.

        Returns the trials whose checkpoints stay for now: a process holds them, or a store or disk does not respond.
        """
        wanted = freed(self._study) if self.only_best else {}
        for number, keeps_best in wanted.items():
            if self._freed.get(number) == keeps_best:
                continue
            try:
                # The mirror first: a launcher that fetches the run meanwhile may bring its checkpoints back.
                mirror = self.mirror and f"{self.mirror.rstrip('/')}/{number}"
                if not mirror or free_mirror(mirror, keeps_best=keeps_best):
                    free(self._folder / str(number), keeps_best=keeps_best)
                    self._freed[number] = keeps_best
            except Locked:
                continue
            except (OSError, UserError) as error:
                # That must not end the search; it is tried again later.
                if not self._has_complained:
                    self._say(f"checkpoints of trial {number} stay for now: {error}")
                    self._has_complained = True
                if isinstance(error, Unreachable):
                    # The search waits for each request, so it asks no more now.
                    break
        return [number for number, keeps_best in wanted.items() if self._freed.get(number) != keeps_best]

    def end(self) -> list[int]:
        """Remove what is left at the end, also of runs that were fetched from their mirrors after their removal.

        A job that has just ended, or was just cancelled, is waited for. Returns what `update` does.
        """
        self._freed, end_s = {}, time.monotonic() + LEAVES_S
        while (left := self.update()) and time.monotonic() < end_s:
            time.sleep(LEAVES_POLL_S)
        return left
