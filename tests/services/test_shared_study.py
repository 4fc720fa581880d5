"""A study in a database: its errors, and its connections."""

import time
from contextlib import closing
from urllib.parse import urlsplit

import optuna
import pytest

from nlu.config.errors import UserError
from nlu.search.storage.open_study import open_storage

pytestmark = pytest.mark.services


def test_a_wrong_password_of_the_database_is_one_clear_error_without_it(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "not-the-password")
    with pytest.raises(UserError) as caught:
        open_storage(postgresql_url)
    assert "password authentication failed" in str(caught.value)
    assert "not-the-password" not in str(caught.value)


def test_jobs_keep_no_connection_to_the_database_between_their_requests(postgresql_url: str, study_name: str) -> None:
    import psycopg2

    url = urlsplit(postgresql_url)
    with closing(
        psycopg2.connect(host=url.hostname, port=url.port, user=url.username, dbname=url.path.lstrip("/"))
    ) as connection:
        connection.autocommit = True

        def others() -> int:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                return cursor.fetchone()[0]

        study = optuna.create_study(storage=open_storage(postgresql_url), study_name=study_name)
        held = others()
        jobs = [open_storage(postgresql_url, is_known=True) for _ in range(10)]
        for number, job in enumerate(jobs):
            own = optuna.load_study(study_name=study_name, storage=job)
            own.tell(own.ask(), number)
        deadline_s = time.monotonic() + 60
        # The server takes a moment to notice that a client has left.
        while others() > held and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert others() <= held, f"{len(jobs)} jobs hold {others() - held} connections"
        assert sorted(trial.value for trial in study.trials) == list(range(10))
