"""Two hosts that share a database and no folder do not run one study, and a dead host's study is taken over."""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import optuna
import pytest

from nlu.config.errors import UserError
from nlu.sweeps.faults import StorageUnavailable
from nlu.sweeps.lease import Lease, _sign_key, held
from nlu.sweeps.storage import open_storage
from tests.sweeps import outages

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


def test_a_holder_whose_beat_found_another_ends_even_right_after_a_boot(lease, monkeypatch):
    monkeypatch.setattr("nlu.sweeps.lease.elapsed_s", lambda: 0.01)
    first = lease("a").__enter__()
    die(first)
    with lease("b"):
        assert not first._beat(1)
        with pytest.raises(UserError, match="the study s is run by process"):
            first.require()


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


def test_a_search_without_its_storage_ends_without_waiting_for_it_again(tmp_path):
    storage = outages.journal_file(tmp_path)
    opened = open_storage(storage.url, patience_s=600)
    optuna.create_study(study_name="s", storage=opened)
    holder = Lease(opened, "s", "a", print, beat_s=0.01, silence_s=60).__enter__()
    with storage.away():
        holder.__exit__(StorageUnavailable, StorageUnavailable("it has not answered for 300 s"), None)
    die(holder)


def test_a_holder_asks_whose_the_lease_is_where_no_beat_has_done_so_in_time(lease, monkeypatch):
    now_s, asked = [1000.0], []
    monkeypatch.setattr("nlu.sweeps.lease.elapsed_s", lambda: now_s[0])
    holder = lease("a")
    require_own = holder._require_own
    with holder:
        die(holder)
        monkeypatch.setattr(holder, "_require_own", lambda: asked.append(now_s[0]) or require_own())
        # Twice the pause between two beats, each of 0.05 s, is still in time.
        for passed_s, count in ((0.0, 0), (0.09, 0), (0.02, 1), (0.05, 1), (0.1, 2)):
            now_s[0] += passed_s
            holder.require()
            assert len(asked) == count


def test_a_lease_is_known_by_its_holder_place_and_host(lease, monkeypatch):
    with lease("a") as first:
        assert lease.held()["process"] == os.getpid() and lease.held()["host"] == socket.gethostname()
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "far")
        elsewhere = lease("a")
    assert _sign_key(elsewhere._own) != _sign_key(first._own) != _sign_key({**first._own, "place": "b"})
    die(elsewhere.__enter__())
    with lease("a"):
        assert len(lease.said) == 1 and "belongs to a search on far (process" in lease.said[0]
