"""Who runs a study: a lease in its storage, for hosts that share a database and no folder.

In one folder a lock of the kernel keeps two searches apart (`_folder.hold`); it knows nothing of a folder of the same
name on another host. So a search writes its name into the study and shows that it lives. Another one waits until it has
fallen silent (`nlu.storage.heartbeat`). A search that ends in order gives the lease back.

A storage cannot compare and set, so the name of the holder is written only when the lease is taken. Beats, and that it
was given back, stand under an attribute of the holder's own: one that was suspended and continues can overwrite nothing
of its successor's. It asks who has the lease before it acts, and ends.

Two searches that begin at the same moment may both believe for a few seconds that the lease is theirs; the one that
wrote first finds the other's name and ends. So does the living holder, if one that waited was suspended between its
last look and its write. In each case one search remains, and what both launched meanwhile the jobs settle
(`nlu.sweeps.channel`): the newest of each trial has it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from optuna.storages import BaseStorage

from nlu.config.errors import UserError
from nlu.storage.heartbeat import BEAT_S, SILENCE_S, Heartbeat, elapsed_s, falls_silent
from nlu.sweeps.away import StorageAway

log = logging.getLogger(__name__)

LEASE = "lease"
"""user attribute of a study: `holder`, `host`, `process` and `place` of the search that took it last"""
SIGN = "lease-sign"
"""begins the name of the attribute that a holder writes: `holder` and `beats`, or `given_back`"""


def held(storage: BaseStorage, study_id: int) -> Mapping[str, Any]:
    """Return what LEASE says of the search that has the study; nothing where it was never taken or was given back."""
    attributes = storage.get_study_user_attrs(study_id)
    lease: Mapping[str, Any] = attributes.get(LEASE) or {}
    return {} if lease and _sign_of(attributes, lease).get("given_back") else lease


def _sign_of(attributes: Mapping[str, Any], lease: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last sign of the search that took a lease; nothing where another wrote there before."""
    sign: Mapping[str, Any] = attributes.get(_sign_key(lease)) or {}
    return sign if sign.get("holder") == lease["holder"] else {}


def _sign_key(lease: Mapping[str, Any]) -> str:
    """Attributes cannot be deleted, so the searches of one folder of one host, of which only one lives, share one."""
    place = f"{lease['host']}:{lease['place']}"
    return f"{SIGN}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


class Lease:
    """The right to run a study, as a context: taken when it is entered, given back when it is left.

    `place` is a name of the folder that this process has locked: a holder in the same folder on the same host is dead,
    or the lock would be its own. `say` tells a person why nothing happens. While it is held a thread of its own shows
    that this process lives, so that a job that runs in it does not look like a death.
    """

    def __init__(
        self, storage: BaseStorage, study: str, place: str, say: Callable[[str], None], *,
        beat_s: float = BEAT_S, silence_s: float = SILENCE_S,
    ):  # fmt: skip
        self._storage, self._name = storage, study
        self._study_id = storage.get_study_id_from_name(study)
        self._say, self._beat_s, self._silence_s = say, beat_s, silence_s
        self._own = {"holder": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid(), "place": place}
        self._asked_s = -math.inf
        """when the lease was last known to be this one's"""
        self._heartbeat = Heartbeat(self._beat, name="lease", interval_s=beat_s)

    def __enter__(self) -> Lease:
        """Take the lease. Raises UserError where another search lives that has it."""
        there = held(self._storage, self._study_id)
        if there and (there["place"], there["host"]) != (self._own["place"], self._own["host"]):
            self._require_silence(there)
        self._storage.set_study_user_attr(self._study_id, LEASE, self._own)
        self._require_own()
        self._heartbeat.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_away = isinstance(error, StorageAway)
        # Where the storage is away, neither this nor the thread need wait for it again: the lease falls silent.
        self._heartbeat.stop(wait=not is_away)
        if is_away:
            return
        try:
            self._sign(given_back=True)
        except StorageAway as away:
            log.warning("the lease of %s stays until it is silent: %s", self._name, away)

    def require(self) -> None:
        """Raise UserError where another search has taken the lease: this one was silent for too long.

        The storage is asked where no beat has asked it in time, as after this process was suspended.
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

    def _require_silence(self, there: Mapping[str, Any]) -> None:
        """Wait until it is known whether the holder lives. Raises UserError where it does."""
        self._say(
            f"the study {self._name} belongs to a search on {there['host']} (process {there['process']}); this one "
            f"begins if nothing is heard of it for {self._silence_s:.0f} s"
        )

        def sign() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            attributes = self._storage.get_study_user_attrs(self._study_id)
            return attributes.get(LEASE) or {}, _sign_of(attributes, there)

        if not falls_silent(sign, self._silence_s) and (now := held(self._storage, self._study_id)):
            raise self._refusal(now)

    def _refusal(self, there: Mapping[str, Any]) -> UserError:
        whose = f"process {there['process']} on {there['host']}" if there else "another process"
        return UserError(
            f"the study {self._name} is run by {whose}; wait for that search, stop it, or set "
            "hydra.sweeper.study_name and hydra.sweep.dir to others"
        )

    def _beat(self, count: int) -> bool:
        try:
            self._require_own()
            self._sign(beats=count)
        except StorageAway as error:
            log.warning("the lease of %s is not renewed: %s", self._name, error)
        except UserError:
            # It is another's; `require` says so.
            return False
        return True

    def _sign(self, **said: Any) -> None:
        self._storage.set_study_user_attr(self._study_id, _sign_key(self._own), {"holder": self._own["holder"], **said})
