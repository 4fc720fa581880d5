"""An adapter around any storage of a study, which waits while the storage does not answer and repeats calls safely.

A call is repeated until it is answered; after `wait_s` seconds it raises `StorageUnavailable`. A call without an answer
may have been carried out. So before a trial is created again, the adapter looks for it by a unique mark, and it accepts
a trial that is already closed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from nlu.search.faults import OUTAGE_S, StorageUnavailable, reason_of
from nlu.storage.refusals import Pauses

log = logging.getLogger(__name__)

T = TypeVar("T")
ASKED = "asked"
"""system attribute of a trial: the mark by which its creator finds it"""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
GLANCE_S = 0.25
"""how often a wait checks whether it should end"""


def never() -> bool:
    """Return False."""
    return False


def patiently(
    call: Callable[[], T],
    url: str,
    unavailable: tuple[type[Exception], ...],
    wait_s: float,
    is_hurried: Callable[[], bool] = never,
) -> T:
    """Return the result of `call`, which is repeated while it raises one of `unavailable`.

    Raises StorageUnavailable after `wait_s` seconds, or as soon as `is_hurried` returns True. With `wait_s` of 0, a
    StorageUnavailable of `call` is raised unchanged.
    """
    began_s = time.monotonic()
    for pause_s in Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S):
        try:
            return call()
        except unavailable as error:
            waited_s = time.monotonic() - began_s
            if waited_s + pause_s > wait_s or is_hurried():
                if isinstance(error, StorageUnavailable) and not wait_s:
                    raise
                raise StorageUnavailable.after(url, error, waited_s) from error
            log.warning("the storage does not answer, trying again: %s", reason_of(error))
            _sleep(pause_s, is_hurried)
    raise AssertionError


def _sleep(seconds: float, is_hurried: Callable[[], bool]) -> None:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0 and not is_hurried():
        time.sleep(min(left_s, GLANCE_S))


def _forwarded(name: str) -> Callable[..., object]:
    def forward(self: PatientStorage, *arguments: object, **named: object) -> object:
        return self.patiently(lambda: getattr(self.inner, name)(*arguments, **named))

    forward.__name__ = name
    return forward


# All methods of a storage, including those of later versions of Optuna.
_Forwarding: Any = type(
    "_Forwarding", (BaseStorage,), {name: _forwarded(name) for name in dir(BaseStorage) if not name.startswith("_")}
)


class PatientStorage(_Forwarding):
    """A storage that is waited for while it does not answer.

    `unavailable` are the exceptions that `inner` raises if it cannot be reached. After `wait_s` seconds, or as soon as
    `is_hurried` returns True, StorageUnavailable is raised. All writes of a study may be repeated: `create_new_study`
    and `create_new_trial` return what an earlier attempt created, `set_trial_state_values` accepts a trial that an
    earlier attempt closed, and the other writes are idempotent.
    """

    def __init__(
        self, inner: BaseStorage, url: str, unavailable: tuple[type[Exception], ...], wait_s: float = OUTAGE_S
    ):
        self.inner, self.url = inner, url
        self.wait_s = wait_s
        self.is_hurried = never
        self._unavailable = unavailable

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Do not wait for the storage within the block."""
        before, self.is_hurried = self.is_hurried, lambda: True
        try:
            yield
        finally:
            self.is_hurried = before

    def patiently(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, as the function `patiently` does."""
        return patiently(call, self.url, self._unavailable, self.wait_s, self.is_hurried)

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """Create a study; it is not an error if an earlier attempt of this call has created it."""
        is_repeated = False

        def create() -> int:
            nonlocal is_repeated
            try:
                return self.inner.create_new_study(directions, study_name)
            except DuplicatedStudyError:
                if is_repeated and study_name is not None:
                    return self.inner.get_study_id_from_name(study_name)
                raise
            except self._unavailable:
                is_repeated = True
                raise

        return self.patiently(create)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial, exactly once even if answers are lost."""
        trial = template_trial or create_trial(state=TrialState.RUNNING)
        # Optuna gives a trial its number only in the answer, which may be lost.
        mark = uuid.uuid4().hex
        trial.system_attrs = {**trial.system_attrs, ASKED: mark}
        is_repeated = False

        def create() -> int:
            nonlocal is_repeated
            # A search for the mark reads all trials, so it is only done after a failure.
            if is_repeated and (number := self._number_of(study_id, mark)) is not None:
                return self.inner.get_trial_id_from_study_id_trial_number(study_id, number)
            is_repeated = True
            return self.inner.create_new_trial(study_id, trial)

        return self.patiently(create)

    def _number_of(self, study_id: int, mark: str) -> int | None:
        trials = self.inner.get_all_trials(study_id, deepcopy=False)
        return next((trial.number for trial in trials if trial.system_attrs.get(ASKED) == mark), None)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Set state and values; returns whether this call did, in any of its attempts.

        It is not an error if an earlier attempt of this call has closed the trial. Only a trial that waits can be set
        to RUNNING.
        """
        is_repeated = False

        def is_done() -> bool:
            return is_repeated and self.inner.get_trial(trial_id).state == state

        def change() -> bool:
            nonlocal is_repeated
            try:
                # A repeated write of RUNNING is refused without an error.
                return self.inner.set_trial_state_values(trial_id, state, values) or is_done()
            except UpdateFinishedTrialError:
                if is_done():
                    return True
                raise
            except self._unavailable:
                is_repeated = True
                raise

        return self.patiently(change)
