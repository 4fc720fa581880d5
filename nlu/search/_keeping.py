"""The checkpoints of trials: what `hydra.sweeper.keep` removes as a search goes."""

import time
from collections.abc import Callable

from nlu.config.errors import UserError
from nlu.runs.freeing import free
from nlu.runs.mirrored import free_mirror
from nlu.storage.files import read_json, write_json
from nlu.storage.locks import Locked
from nlu.storage.refusals import Unreachable
from nlu.search import keeping

from nlu.search.plan import SearchPlan

FILE = "checkpoints.json"
"""in the sweep folder: `freed`, by number what is left of a trial, best or none"""
AWAY_S = 300.0
"""how long the mirrors are left alone after they did not respond"""


class Keeper:
    """Removes checkpoints of trials that are decided; trials that run or wait keep all."""

    def __init__(self, plan: SearchPlan, say: Callable[..., None]):
        self._plan, self._say = plan, say
        self._keep, self._path = plan.settings["keep"], plan.folder / FILE
        self._freed: dict[str, str] = (read_json(self._path) or {}).get("freed", {})
        self._has_complained = False
        self._away_until_s = 0.0

    def update(self) -> None:
        """Remove what may go now; what a process still holds is left for later."""
        if not self._plan.is_run:
            return
        for number, keeps_best in keeping.freed(self._plan.study, self._keep).items():
            left = "best" if keeps_best else "none"
            # The search waits for each removal, so it does not wait again and again for a service that is down.
            if self._freed.get(str(number)) == left or time.monotonic() < self._away_until_s:
                continue
            if self._free(number, keeps_best):
                self._freed[str(number)] = left
                # Only now: after a kill amid the removal, it is repeated.
                self._note(number)

    def end(self) -> None:
        """Remove what is left at the end, also of runs that were fetched from their mirrors after their removal."""
        self._away_until_s = 0.0
        self.update()
        for number, keeps_best in keeping.freed(self._plan.study, self._keep).items():
            try:
                self._free_here(number, keeps_best)
            except (OSError, UserError) as error:
                self._complain(number, error)

    def _free(self, number: int, keeps_best: bool) -> bool:
        try:
            if self._plan.mirror is not None:
                url = f"{self._plan.mirror.rstrip('/')}/{number}"
                # The mirror first: a launcher that fetches the run meanwhile may bring its checkpoints back.
                if not free_mirror(url, keeps_best=keeps_best):
                    return False
            return self._free_here(number, keeps_best)
        except Exception as error:
            # A service or a disk that does not respond must not end the search; it is tried again later.
            if isinstance(error, Unreachable):
                self._away_until_s = time.monotonic() + AWAY_S
            self._complain(number, error)
            return False

    def _complain(self, number: int, error: Exception) -> None:
        if not self._has_complained:
            self._say(
                f"checkpoints of trial {number} stay for now, or their removal is not noted: {error}", style="yellow"
            )
            self._has_complained = True

    def _free_here(self, number: int, keeps_best: bool) -> bool:
        try:
            free(self._plan.folder / str(number), keeps_best=keeps_best)
        except Locked:
            return False
        return True

    def _note(self, number: int) -> None:
        try:
            write_json(self._path, {"freed": self._freed})
        except OSError as error:
            self._complain(number, error)
