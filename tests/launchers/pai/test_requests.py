"""Which requests are repeated, and what is known of one whose answers were lost."""

from collections.abc import Callable, Iterator

import pytest
from hydra_plugins.pai_launcher._requests import Fate, RequestFailure, ServiceUnavailable, asked, done_once

from nlu.storage.temporary import is_temporary


def answering(*fates: Fate | str) -> Callable[[], str]:
    """Return a call that fails with each fate in turn, and returns the first text."""
    left: Iterator[Fate | str] = iter(fates)

    def call() -> str:
        fate = next(left)
        if isinstance(fate, Fate):
            raise RequestFailure(fate, f"it is {fate.value}")
        return fate

    return call


@pytest.mark.parametrize(
    ("fates", "may_be_twice"),
    [
        ((Fate.NOT_DONE,), False),
        ((Fate.UNKNOWN,), True),
        ((Fate.UNKNOWN, Fate.NOT_DONE), True),
        ((Fate.NOT_DONE, Fate.UNKNOWN, Fate.NOT_DONE), True),
    ],
)
def test_a_lost_answer_is_remembered_after_later_answers(fates: tuple[Fate, ...], may_be_twice: bool) -> None:
    assert done_once(answering(*fates, "job-2"), lambda: None, "submitting") == ("job-2", may_be_twice)


def test_a_call_that_succeeded_without_an_answer_is_found_after_another_failure() -> None:
    shown = iter([None, "job-1"])
    made = done_once(answering(Fate.UNKNOWN, Fate.NOT_DONE, "job-2"), lambda: next(shown), "submitting")
    assert made == ("job-1", False)


def test_a_refusal_is_not_retried_and_a_silent_service_is_unreachable() -> None:
    with pytest.raises(RequestFailure):
        asked(answering(Fate.UNKNOWN, Fate.REFUSED, "late"), "looking")
    with pytest.raises(ServiceUnavailable, match="looking: it is unknown") as raised:
        asked(answering(*[Fate.UNKNOWN] * 99), "looking")
    assert is_temporary(raised.value)
