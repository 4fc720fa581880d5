"""One adapter around a study's storage, of whatever kind: it waits while the storage is away, and repeats with care.

What a backend raises while it cannot be reached becomes `StorageAway`. A call is repeated until it is answered or the
patience is over. A call that failed may have been carried out, its reply lost; so what may not happen twice is looked
for before it is asked for again: a trial that was begun is found by a mark of its own, a trial that was closed stays.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from nlu.storage.temporary import Pauses
from nlu.sweeps.away import OUTAGE_S, StorageAway, reason_of

log = logging.getLogger(__name__)

ASKED = "asked"
"""system attribute of a trial: the mark by which whoever began it finds it again"""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
GLANCE_S = 0.25
"""how often a wait looks whether it is to be given up"""


def never() -> bool:
    """Return False."""
    return False


def patiently(
    call: Callable[[], Any], url: str, away: tuple[type[Exception], ...], wait_s: float,
    is_hurried: Callable[[], bool] = never,
) -> Any:  # fmt: skip
    """Return what `call` returns, which may be repeated: while it raises one of `away`, try again.

    Raises StorageAway when that has gone on for `wait_s` seconds or `is_hurried` says so; a StorageAway of the first
    try stands as it is. Raises whatever else `call` raises.
    """
    began_s = time.monotonic()
    for pause_s in Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S):
        try:
            return call()
        except away as error:
            waited_s = time.monotonic() - began_s
            if waited_s + pause_s > wait_s or is_hurried():
                if isinstance(error, StorageAway) and not wait_s:
                    raise
                raise StorageAway.after(url, error, waited_s) from error
            log.warning("the storage does not answer, trying again: %s", reason_of(error))
            _sleep(pause_s, is_hurried)
    raise AssertionError


def _sleep(seconds: float, is_hurried: Callable[[], bool]) -> None:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0 and not is_hurried():
        time.sleep(min(left_s, GLANCE_S))


def _forwarded(name: str) -> Callable[..., Any]:
    def forward(self: PatientStorage, *arguments: Any, **named: Any) -> Any:
        return self.patiently(lambda: getattr(self.inner, name)(*arguments, **named))

    forward.__name__ = name
    return forward


# All that optuna's storage can be asked, of this version as of later ones.
_Forwarding: Any = type(
    "_Forwarding",
    (BaseStorage,),
    {name: _forwarded(name) for name in dir(BaseStorage) if not name.startswith("_")},
)


class PatientStorage(_Forwarding):
    """A storage that answers, if need be after a while.

    `away` are the exceptions by which `inner` says that it cannot be reached. After `wait_s` seconds of that, or at
    once where `is_hurried` says so, StorageAway is raised. All writes of a study may be repeated: `create_new_trial`
    returns the trial that an earlier try began, `set_trial_state_values` accepts that one closed it; the others write
    the same again.
    """

    def __init__(self, inner: BaseStorage, url: str, away: tuple[type[Exception], ...], wait_s: float = OUTAGE_S):
        self.inner, self.url = inner, url
        self.wait_s = wait_s
        self.is_hurried = never
        self._away = away

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Wait for nothing while the block runs."""
        before, self.is_hurried = self.is_hurried, lambda: True
        try:
            yield
        finally:
            self.is_hurried = before

    def patiently(self, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, as `patiently` does."""
        return patiently(call, self.url, self._away, self.wait_s, self.is_hurried)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Begin a trial, once, however often it takes to hear of it."""
        trial = template_trial or create_trial(state=TrialState.RUNNING)
        mark = uuid.uuid4().hex
        trial.system_attrs = {**trial.system_attrs, ASKED: mark}
        is_repeated = False

        def create() -> int:
            nonlocal is_repeated
            if is_repeated and (number := self._number_of(study_id, mark)) is not None:
                return self.inner.get_trial_id_from_study_id_trial_number(study_id, number)
            is_repeated = True
            return self.inner.create_new_trial(study_id, trial)

        return self.patiently(create)

    def _number_of(self, study_id: int, mark: str) -> int | None:
        trials = self.inner.get_all_trials(study_id, deepcopy=False)
        return next((trial.number for trial in trials if trial.system_attrs.get(ASKED) == mark), None)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Set state and values; that an earlier try of this very call has closed the trial is no error."""
        is_repeated = False

        def close() -> bool:
            nonlocal is_repeated
            try:
                return self.inner.set_trial_state_values(trial_id, state, values)
            except UpdateFinishedTrialError:
                if is_repeated and self.inner.get_trial(trial_id).state == state:
                    return True
                raise
            except self._away:
                is_repeated = True
                raise

        return self.patiently(close)
