"""Two hosts that share a database and no folder do not run one study, and a dead host's study is taken over."""

import time
from collections.abc import Mapping
from typing import Any

import optuna
import pytest

from nlu.config.errors import UserError
from nlu.sweeps.lease import Lease, held
from nlu.sweeps.storage import open_storage

SILENCE_S = 0.3


@pytest.fixture
def lease(tmp_path):
    """A function that opens the study as a host would and returns its lease on it, with what it says in `said`."""
    url = f"journal://{tmp_path}/journal.log"
    optuna.create_study(study_name="s", storage=open_storage(url))
    said: list[str] = []

    def of(place: str, silence_s: float = SILENCE_S) -> Lease:
        return Lease(open_storage(url), "s", place, said.append, beat_s=0.05, silence_s=silence_s)

    of.said = said

    def held_now() -> Mapping[str, Any]:
        storage = open_storage(url)
        return held(storage, storage.get_study_id_from_name("s"))

    of.held = held_now
    return of


def test_a_second_search_from_elsewhere_is_refused_while_the_first_lives(lease):
    with lease("a folder") as first:
        with pytest.raises(UserError, match=r"the study s is run by process \d+ on .*; wait for that search, stop it"):
            lease("a folder of the same name on another host", silence_s=60).__enter__()
        first.require()
    assert len(lease.said) == 1 and "starts if that sends no heartbeat for 60 s" in lease.said[0]


def test_a_search_that_ended_normally_releases_the_study(lease):
    with lease("a"):
        assert lease.held()["place"] == "a"
    assert not lease.held()
    with lease("b"):
        assert lease.held()["place"] == "b"
    assert lease.said == []


def die(holder: Lease) -> None:
    """Let a holder fall silent without a word."""
    holder._heartbeat.stop()


def test_a_dead_searchs_study_is_taken_over_once_it_was_silent_for_long(lease):
    dead = lease("a").__enter__()
    die(dead)
    began_s = time.monotonic()
    with lease("b"):
        assert time.monotonic() - began_s >= SILENCE_S
        assert lease.held()["place"] == "b"


def test_a_search_continues_at_once_in_its_folder_on_its_host(lease):
    die(lease("a").__enter__())
    with lease("a"):
        assert lease.said == []


def test_a_search_that_was_silent_and_lives_after_all_finds_the_other_and_ends(lease):
    sleeper = lease("a").__enter__()
    die(sleeper)
    with lease("b"):
        assert not sleeper._beat(7), "it shows no sign of life any more"
        with pytest.raises(UserError, match="is run by process"):
            sleeper.require()
        sleeper.__exit__(None, None, None)
        assert lease.held()["place"] == "b", "it takes nothing back that is another's"
