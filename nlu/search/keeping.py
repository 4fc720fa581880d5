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
from nlu.runs.mirrored import free_mirror
from nlu.search.goals import best_trials
from nlu.storage.locks import Locked
from nlu.storage.refusals import Unreachable

if TYPE_CHECKING:
    from optuna import Study

KEEP = ALL, ONLY_BEST = ["all", "best"]
KEPT = "keep"
"""user attribute of a study: what its search has as hydra.sweeper.`keep` and `mirror`; without it all stays"""
DECIDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
AWAY_S = 300.0
"""how long the mirrors are left alone after they did not respond"""
LEAVES_S, LEAVES_POLL_S = 30.0, 0.2
"""how long the end of a search waits for jobs that still hold their trials, and how often it looks"""


def freed(study: Study) -> dict[int, bool]:
    """Return by number each trial whose checkpoints may go where only the best trial keeps its own, and whether its
    best ones stay.

    Those of the best trial stay, with several objectives of all on the front, and, until one that keeps the
    constraints is complete, of all pruned ones.
    """
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
        self._away_until_s = 0.0

    def update(self) -> bool:
        """Remove what may go of the trials that have ended.

        Returns whether a process still holds some of it, which is left for later.
        """
        is_held = False
        for number, keeps_best in self._to_free().items():
            # The search waits for each removal, so it does not wait again and again for a service that is down.
            if self._freed.get(number) == keeps_best or time.monotonic() < self._away_until_s:
                continue
            try:
                if self._free(number, keeps_best):
                    self._freed[number] = keeps_best
                else:
                    is_held = True
            except Exception as error:
                # A service or a disk that does not respond must not end the search; it is tried again later.
                if isinstance(error, Unreachable):
                    self._away_until_s = time.monotonic() + AWAY_S
                self._complain(number, error)
        return is_held

    def end(self) -> list[int]:
        """Remove what is left at the end, also of runs that were fetched from their mirrors after their removal.

        A job that has just ended, or was just cancelled, is waited for. Returns the trials whose checkpoints stay
        although they should go.
        """
        self._away_until_s, end_s = 0.0, time.monotonic() + LEAVES_S
        while self.update() and time.monotonic() < end_s:
            time.sleep(LEAVES_POLL_S)
        to_free = self._to_free()
        for number in self._freed.keys() & to_free.keys():
            try:
                self._free_here(number, to_free[number])
            except (OSError, UserError) as error:
                self._complain(number, error)
        return [number for number in to_free if number not in self._freed]

    def _to_free(self) -> dict[int, bool]:
        return freed(self._study) if self.only_best else {}

    def _free(self, number: int, keeps_best: bool) -> bool:
        """Remove the checkpoints of a trial; returns False if a process holds them."""
        # The mirror first: a launcher that fetches the run meanwhile may bring its checkpoints back.
        if self.mirror and not free_mirror(f"{self.mirror.rstrip('/')}/{number}", keeps_best=keeps_best):
            return False
        return self._free_here(number, keeps_best)

    def _free_here(self, number: int, keeps_best: bool) -> bool:
        try:
            free(self._folder / str(number), keeps_best=keeps_best)
        except Locked:
            return False
        return True

    def _complain(self, number: int, error: Exception) -> None:
        if not self._has_complained:
            self._say(f"checkpoints of trial {number} stay for now: {error}")
            self._has_complained = True
