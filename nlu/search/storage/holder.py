"""Which search runs a study: also two hosts that share its storage, but no folder, must not run one together.

Within a folder the lock of the kernel keeps two searches apart (`nlu.search.folder.hold`). In the study a search writes
its name, and at its end that it is over. Another search begins if the former one is over, or if `nlu.storage.writers`
knows that it is. Otherwise it is refused, until the user says that the former one is gone.

Storages lack compare-and-set, so of two searches that begin at the same moment both may write their names. The one
whose name was replaced finds that out before it acts again, at most `CHECKED_FOR_S` seconds later, and ends. So does a
search that was suspended, and one that a user took for gone. If both have launched jobs, the newest job of each trial
takes over (`nlu.search.channel`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from optuna.storages import BaseStorage

from nlu.config.errors import UserError
from nlu.search.faults import StorageUnavailable
from nlu.storage.writers import elapsed_s, may_follow, own_writer

log = logging.getLogger(__name__)

HOLDER = "lease"
"""user attribute of a study: who runs it, or ran it last"""
OVER = "lease_over"
"""user attribute of a study: the id of the last holder that ended"""
CHECKED_FOR_S = 5.0
"""how long `Holder.require` relies on its last check"""


class Holder:
    """The right to run a study, a context.

    With `take` the study is taken also from a search that may be alive, which then ends.
    """

    def __init__(self, storage: BaseStorage, study: str, *, take: bool = False):
        self._storage, self._name, self._take = storage, study, take
        self._study_id = storage.get_study_id_from_name(study)
        self._own = own_writer()
        self._asked_s = -math.inf
        self.attributes: Mapping[str, Any] = {}
        """the user attributes of the study, as of the last check"""

    def __enter__(self) -> Holder:
        """Become the holder. Raises UserError if another search may be running the study."""
        there = self._there()
        is_over = there.get("id") == self.attributes.get(OVER)
        if there and not (self._take or is_over or may_follow(self._own, there)):
            raise self._refusal(there)
        # Written and then read: of two searches that write at the same moment, the first one finds the second.
        self._storage.set_study_user_attr(self._study_id, HOLDER, self._own)
        self._require_own()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A storage that does not answer is not waited for again, and a study that another search has stays its own.
        if isinstance(error, StorageUnavailable) or self._asked_s == -math.inf:
            return
        try:
            self._storage.set_study_user_attr(self._study_id, OVER, self._own["id"])
        except StorageUnavailable as unavailable:
            log.warning("the end of the search is not noted in the study %s: %s", self._name, unavailable)

    def require(self, within_s: float | None = None) -> None:
        """Raise UserError if another search has become the holder; the last check counts for `within_s` seconds."""
        if elapsed_s() - self._asked_s > (CHECKED_FOR_S if within_s is None else within_s):
            self._require_own()

    def _require_own(self) -> None:
        asked_s, self._asked_s = elapsed_s(), -math.inf
        if (there := self._there()).get("id") != self._own["id"]:
            raise self._refusal(there)
        self._asked_s = asked_s

    def _there(self) -> Mapping[str, Any]:
        self.attributes = self._storage.get_study_user_attrs(self._study_id)
        return self.attributes.get(HOLDER) or {}

    def _refusal(self, there: Mapping[str, Any]) -> UserError:
        whose = f"process {there['pid']} on {there['host']}" if there else "another process"
        return UserError(
            f"the study {self._name} is run by {whose}; wait for that search or stop it; if it is gone for good, add "
            "--take to the same command (+take=true to a program of another package); or set "
            "hydra.sweeper.study_name and hydra.sweep.dir to others"
        )
