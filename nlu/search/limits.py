"""What ends a search besides n_trials: hours.

It stops new trials; those that run end as usual, and a search that pauses trials completes its best one. The time is
kept in the study, so a search that was killed goes on counting.
"""

import time

from nlu.search.plan import SearchPlan

USED = "used"
"""user attribute of a study: the seconds of all its commands"""
WRITTEN_EVERY_S = 60.0


class Limits:
    """Follows the time of a search."""

    def __init__(self, plan: SearchPlan):
        self._plan, self.is_over = plan, False
        self._max_hours: float | None = plan.settings["max_hours"]
        self._seconds: float = plan.study.user_attrs.get(USED, {}).get("seconds", 0.0)
        self._counted_s = self._written_s = time.monotonic()

    def reached(self) -> str | None:
        """Return the sentence about the limit if it is reached, from when on the search `is_over`; None before."""
        self.count()
        if self._max_hours is None or self._seconds < 3600 * self._max_hours:
            return None
        self.is_over = True
        return f"hydra.sweeper.max_hours={self._max_hours:g} is over: no new trial begins"

    def count(self, *, is_end: bool = False) -> None:
        """Add the time since the last call; it is written once a minute and at the end of a command."""
        if self._max_hours is None:
            return
        now_s = time.monotonic()
        self._seconds += now_s - self._counted_s
        self._counted_s = now_s
        if is_end or now_s - self._written_s > WRITTEN_EVERY_S:
            self._written_s = now_s
            self._plan.study.set_user_attr(USED, {"seconds": round(self._seconds, 1)})
