"""Two hosts that share a storage and no folder do not run one study, and that of a search that is over goes on."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest

from nlu.config.errors import UserError
from nlu.search.storage import holder
from nlu.search.storage.holder import Holder
from nlu.search.storage.opening import open_storage

OTHER = """
import sys
from nlu.search.storage.holder import Holder
from nlu.search.storage.opening import open_storage
with Holder(open_storage(sys.argv[1]), "s"):
    print("holds it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Callable[..., Holder]:
    """A function that opens the study as a search would."""
    optuna.create_study(study_name="s", storage=open_storage(f"journal://{tmp_path}/journal.log"))
    return lambda **take: Holder(open_storage(f"journal://{tmp_path}/journal.log"), "s", **take)


@pytest.fixture
def other(tmp_path: Path, hold: object) -> Iterator[subprocess.Popen[str]]:
    """Another search, which holds the study until its input ends."""
    command, pipe = [sys.executable, "-c", OTHER, f"journal://{tmp_path}/journal.log"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout and process.stdout.readline() == "holds it\n"
        yield process
        process.kill()


def test_a_second_search_from_elsewhere_is_refused_until_the_first_is_over(hold, other, monkeypatch):
    # As on another host, from which nobody sees whether the process lives.
    monkeypatch.setattr("nlu.storage.writers.identity_of", lambda pid: {"pid": pid})
    remedy = r"if it is gone for good, add --take .*\+take=true to a program of another package"
    with pytest.raises(UserError, match=rf"is run by process {other.pid} on .*; {remedy}"):
        hold().__enter__()
    other.communicate()
    with hold() as second:
        second.require()


def test_the_study_of_a_killed_search_continues_at_once_on_its_machine(hold, other):
    other.kill()
    other.wait()
    with hold() as second:
        second.require()
        assert second._there()["pid"] == os.getpid()


def test_a_search_that_lives_after_all_finds_out_who_took_its_study_and_ends(hold, monkeypatch):
    monkeypatch.setattr(holder, "CHECKED_FOR_S", 0.0)
    sleeper = hold().__enter__()
    sleeper.require()
    with hold(take=True) as second:
        with pytest.raises(UserError, match="the study s is run by process") as refused:
            sleeper.require()
        sleeper.__exit__(UserError, refused.value, None)
        second.require()


def test_of_two_searches_that_begin_at_the_same_moment_one_remains(hold, monkeypatch):
    monkeypatch.setattr(holder, "CHECKED_FOR_S", 0.0)
    first, second = hold(take=True), hold(take=True)
    there = first._there

    def slowly():
        first._there, found = there, there()
        second.__enter__()
        return found

    # The other one writes its name between the look of this one and its write.
    first._there = slowly
    first.__enter__()
    first.require()
    with pytest.raises(UserError):
        second.require()
