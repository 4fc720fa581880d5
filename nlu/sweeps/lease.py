"""Who runs a study: a lease in its storage, for hosts that share a database and no folder.

In one folder a lock of the kernel keeps two searches apart (`_folder.hold`); it knows nothing of a folder of the same
name on another host. So a search writes its name into the study, and shows that it lives by counting up. Another one
watches: a count that stands still for `SILENCE_S` seconds, by the watcher's own clock, is a dead search's. A search
that ends in order gives the lease back.

A storage cannot compare and set, so two searches that begin at the same moment may both believe for a few seconds that
the lease is theirs; the one that wrote first finds the other's name and ends. What both launched meanwhile the jobs
settle (`nlu.sweeps.channel`): the newest of each trial has it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from optuna.storages import BaseStorage

from nlu.config.errors import UserError
from nlu.sweeps.away import StorageAway

log = logging.getLogger(__name__)

LEASE = "lease"
"""user attribute of a study: `holder`, `host`, `process`, `place` and `beats` of the search that runs it, or nothing"""
BEAT_S = 15.0
SILENCE_S = 60.0
"""more than a beat and the longest pause in which a storage is not asked (`nlu.sweeps.patience`)"""
LOOK_S = 1.0


class Lease:
    """The right to run a study, as a context: taken when it is entered, given back when it is left.

    `place` is a name of the folder that this process has locked: a holder in the same folder on the same host is dead,
    or the lock would be its own. `say` tells a person why nothing happens. While it is held a thread of its own counts
    up, so that a job that runs in this process does not look like a death.
    """

    def __init__(
        self, storage: BaseStorage, study: str, place: str, say: Callable[[str], None], *,
        beat_s: float = BEAT_S, silence_s: float = SILENCE_S,
    ):  # fmt: skip
        self._storage, self._name = storage, study
        self._study_id = storage.get_study_id_from_name(study)
        self._say, self._beat_s, self._silence_s = say, beat_s, silence_s
        self._own = {"holder": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid(), "place": place}
        self._taken_by: Mapping[str, Any] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        """Take the lease. Raises UserError where another search lives that has it."""
        held = self._read()
        if held and (held["place"], held["host"]) != (self._own["place"], self._own["host"]):
            self._require_silence(held)
        self._write(0)
        if (now := self._read()).get("holder") != self._own["holder"]:
            raise self._refusal(now)
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if isinstance(error, StorageAway):
            # Neither this nor the thread need wait for it once more: the lease falls silent.
            return
        self._thread.join()
        try:
            if self._is_own(self._read()):
                self._storage.set_study_user_attr(self._study_id, LEASE, {})
        except StorageAway as away:
            log.warning("the lease of %s stays until it is silent: %s", self._name, away)

    def require(self) -> None:
        """Raise UserError where another search has taken the lease: this one was silent for too long."""
        if self._taken_by is not None:
            raise self._refusal(self._taken_by)

    def _require_silence(self, held: Mapping[str, Any]) -> None:
        """Wait until it is known whether the holder lives. Raises UserError where it does."""
        self._say(
            f"the study {self._name} belongs to a search on {held['host']} (process {held['process']}); this one "
            f"begins if nothing is heard of it for {self._silence_s:.0f} s"
        )
        until_s = time.monotonic() + self._silence_s
        while time.monotonic() < until_s:
            time.sleep(min(LOOK_S, self._beat_s))
            now = self._read()
            if not now:
                return
            if now != held:
                raise self._refusal(now)

    def _refusal(self, held: Mapping[str, Any]) -> UserError:
        whose = f"process {held['process']} on {held['host']}" if held else "another process"
        return UserError(
            f"the study {self._name} is run by {whose}; wait for that search, stop it, or set "
            "hydra.sweeper.study_name and hydra.sweep.dir to others"
        )

    def _beat(self) -> None:
        beats = 0
        while not self._ended.wait(self._beat_s):
            try:
                held = self._read()
                if not self._is_own(held):
                    self._taken_by = held
                    return
                beats += 1
                self._write(beats)
            except StorageAway as error:
                log.warning("the lease of %s is not renewed: %s", self._name, error)

    def _is_own(self, held: Mapping[str, Any]) -> bool:
        return held.get("holder") == self._own["holder"]

    def _read(self) -> Mapping[str, Any]:
        return self._storage.get_study_user_attrs(self._study_id).get(LEASE) or {}

    def _write(self, beats: int) -> None:
        self._storage.set_study_user_attr(self._study_id, LEASE, {**self._own, "beats": beats})
