"""A lease in the storage of a study, so that only one search runs it, also if hosts share a database but no folder.

Within a folder, a lock of the kernel keeps two searches apart (`_folder.hold`), but not across hosts. So a search
writes its name into the study, with a heartbeat. Another search waits until the heartbeat stops
(`nlu.storage.heartbeat`). A search that ends normally gives the lease back.

Storages lack compare-and-set, so the name of the holder is only written when the lease is taken. The heartbeat, and
the note that the lease was given back, are under an attribute of the holder. So a search that was suspended and
continues cannot overwrite anything of its successor. It checks who has the lease before it acts, and ends.

Two searches that start at the same moment may both believe for a few seconds that they have the lease. The one that
wrote first finds the name of the other and ends. The same happens to a living holder if a waiting search was suspended
between its last check and its write. In each case one search remains. If both have launched jobs, the newest job of
each trial takes over (`nlu.sweeps.channel`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import uuid
from collections.abc import Callable, Mapping

from optuna.storages import BaseStorage

from nlu.config.errors import UserError
from nlu.storage.heartbeat import BEAT_S, SILENCE_S, Heartbeat, elapsed_s, falls_silent
from nlu.sweeps.faults import StorageUnavailable

log = logging.getLogger(__name__)

LEASE = "lease"
"""user attribute of a study: `holder`, `host`, `process` and `place` of the last search that took the lease"""
SIGN = "lease-sign"
"""the prefix of the attribute that a holder writes: `holder` and `beats`, or `given_back`"""


def held(storage: BaseStorage, study_id: int) -> Mapping[str, object]:
    """Return the lease of a study; empty if it was never taken or was given back."""
    attributes = storage.get_study_user_attrs(study_id)
    lease: Mapping[str, object] = attributes.get(LEASE) or {}
    return {} if lease and _sign_of(attributes, lease).get("given_back") else lease


def _sign_of(attributes: Mapping[str, Mapping[str, object]], lease: Mapping[str, object]) -> Mapping[str, object]:
    """Return what the holder of a lease wrote last; empty if only an earlier holder has written there."""
    sign: Mapping[str, object] = attributes.get(_sign_key(lease)) or {}
    return sign if sign.get("holder") == lease["holder"] else {}


def _sign_key(lease: Mapping[str, object]) -> str:
    """Return the name of a holder's attribute.

    Attributes cannot be deleted, so all searches in one folder of one host, which never run together, share one.
    """
    place = f"{lease['host']}:{lease['place']}"
    return f"{SIGN}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


class Lease:
    """The right to run a study, a context: taken on entry, given back on exit.

    `place` identifies the folder that this process has locked. A holder in the same folder of the same host must be
    dead, since this process has its lock. `say` prints why the search waits. A separate thread sends the heartbeat, so
    that a job in this process does not interrupt it.
    """

    def __init__(
        self,
        storage: BaseStorage,
        study: str,
        place: str,
        say: Callable[[str], None],
        *,
        beat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
    ):
        self._storage, self._name = storage, study
        self._study_id = storage.get_study_id_from_name(study)
        self._say, self._beat_s, self._silence_s = say, beat_s, silence_s
        self._own = {"holder": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid(), "place": place}
        self._asked_s = -math.inf
        """when this process was last known to have the lease"""
        self._heartbeat = Heartbeat(self._beat, name="lease", interval_s=beat_s)

    def __enter__(self) -> Lease:
        """Take the lease. Raises UserError if another search has it and is alive."""
        there = held(self._storage, self._study_id)
        if there and (there["place"], there["host"]) != (self._own["place"], self._own["host"]):
            self._require_silence(there)
        # Written and then read: of two searches that write at the same moment, the first one finds the name of the
        # second.
        self._storage.set_study_user_attr(self._study_id, LEASE, self._own)
        self._require_own()
        self._heartbeat.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_unavailable = isinstance(error, StorageUnavailable)
        # If the storage does not answer, do not wait for it again: the heartbeat stops, which frees the lease.
        self._heartbeat.stop(wait=not is_unavailable)
        if is_unavailable:
            return
        try:
            self._sign(given_back=True)
        except StorageUnavailable as unavailable:
            log.warning("the lease of %s could not be given back, and expires: %s", self._name, unavailable)

    def require(self) -> None:
        """Raise UserError if another search has taken the lease, because this one sent no heartbeat for too long.

        The storage is only asked if the last heartbeat is late, such as after this process was suspended.
        """
        if elapsed_s() - self._asked_s > 2 * self._beat_s:
            self._require_own()

    def _require_own(self) -> None:
        asked_s = elapsed_s()
        there = self._storage.get_study_user_attrs(self._study_id).get(LEASE) or {}
        if there.get("holder") != self._own["holder"]:
            self._asked_s = -math.inf
            raise self._refusal(there)
        self._asked_s = asked_s

    def _require_silence(self, there: Mapping[str, object]) -> None:
        """Wait until it is known whether the holder is alive. Raises UserError if it is."""
        self._say(
            f"the study {self._name} belongs to a search on {there['host']} (process {there['process']}); this one "
            f"starts if that sends no heartbeat for {self._silence_s:.0f} s"
        )

        def sign() -> tuple[Mapping[str, object], Mapping[str, object]]:
            attributes = self._storage.get_study_user_attrs(self._study_id)
            return attributes.get(LEASE) or {}, _sign_of(attributes, there)

        # A change of the lease itself counts as a sign too: a third search may have taken it.
        if not falls_silent(sign, self._silence_s) and (now := held(self._storage, self._study_id)):
            raise self._refusal(now)

    def _refusal(self, there: Mapping[str, object]) -> UserError:
        whose = f"process {there['process']} on {there['host']}" if there else "another process"
        return UserError(
            f"the study {self._name} is run by {whose}; wait for that search, stop it, or set "
            "hydra.sweeper.study_name and hydra.sweep.dir to others"
        )

    def _beat(self, count: int) -> bool:
        try:
            self._require_own()
            self._sign(beats=count)
        except StorageUnavailable as error:
            log.warning("the lease of %s is not renewed: %s", self._name, error)
        except UserError:
            # Another search has the lease; `require` reports it.
            return False
        return True

    def _sign(self, **said: object) -> None:
        self._storage.set_study_user_attr(self._study_id, _sign_key(self._own), {"holder": self._own["holder"], **said})
