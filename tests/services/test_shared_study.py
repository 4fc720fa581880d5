"""One study shared by several processes through each storage that many hosts can reach."""

import subprocess
import sys
import time
from contextlib import closing
from urllib.parse import urlsplit

import optuna
import pytest
import study_worker

from nlu.config.errors import UserError
from nlu.search.storage.open_study import open_storage

pytestmark = pytest.mark.services

PROCESSES = 3
TRIALS = 6


def test_processes_share_a_study_and_no_trial_is_run_twice(storage_url: str, study_name: str) -> None:
    study = optuna.create_study(storage=open_storage(storage_url), study_name=study_name, direction="maximize")
    command = [sys.executable, study_worker.__file__, storage_url, study_name, str(TRIALS)]
    workers = [subprocess.Popen(command) for _ in range(PROCESSES)]
    assert [worker.wait() for worker in workers] == [0] * PROCESSES
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(PROCESSES * TRIALS))
    by_process = [trial.user_attrs["process"] for trial in trials]
    assert {process: by_process.count(process) for process in by_process} == {w.pid: TRIALS for w in workers}
    for trial in trials:
        steps = sorted(trial.intermediate_values)
        assert steps == list(range(1, len(steps) + 1))
        assert trial.intermediate_values == {step: trial.params["x"] * step for step in steps}
        assert trial.value == trial.intermediate_values[steps[-1]]
        assert trial.state.name == "PRUNED" or len(steps) == study_worker.STEPS
    assert {trial.state.name for trial in trials} == {"COMPLETE", "PRUNED"}, "the processes compare their trials"


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
