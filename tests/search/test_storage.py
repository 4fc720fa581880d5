"""Storages are known by their URL, and what cannot work is refused before anything is opened."""

from importlib.util import find_spec

import pytest

from nlu.config.errors import UserError
from nlu.search.storage.open_study import open_storage, storage_url, url_problems

DRIVER = find_spec("psycopg2") is not None


def test_null_and_paths_are_journal_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage_url(None, tmp_path / "s") == f"journal://{tmp_path}/s/journal.log"
    assert storage_url("mine.log", tmp_path) == f"journal://{tmp_path}/mine.log"
    assert storage_url("postgresql:///x", tmp_path) == "postgresql:///x"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim@host/db",
        "s3://key:geheim@bucket/x",
        "postgresql://host/db?user=me&password=geheim",
        "postgresql://me@host/db?sslpassword=geheim",
        "s3://bucket/x?key=geheim",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url):
    (problem,) = url_problems(url, 1)
    assert ("AWS_SECRET_ACCESS_KEY" if url.startswith("s3") else "PGPASSWORD") in problem and "geheim" not in problem


def test_sqlite_is_for_one_trial_at_a_time():
    assert url_problems("sqlite:///x.db", 1) == []
    (problem,) = url_problems("sqlite:///x.db", 2)
    assert all(name in problem for name in ("journal file", "postgresql://", "s3://", "oss://", "n_jobs=1"))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://localhost:1/none", "cannot be reached" if DRIVER else "driver is not installed"),
        ("postgress://localhost/none", "is not a known kind of storage"),
        ("journal:///proc/none/journal.log", "cannot be written"),
    ],
)
def test_a_storage_that_is_not_there_is_one_clear_error(url, reason):
    with pytest.raises(UserError) as caught:
        open_storage(url)
    (problem,) = caught.value.problems
    shown = url.removeprefix("journal://")
    assert problem.startswith(f"hydra.sweeper.storage is {shown}, wh") and reason in problem
