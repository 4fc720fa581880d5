"""Searches and their jobs that are suspended and continue while others work on the same study."""

import json
from pathlib import Path

import optuna
import pytest

from nlu.config.errors import EXIT_USER_ERROR
from nlu.sweeps.channel import CLAIM, DECISION, TrialChannel
from nlu.sweeps.lease import LEASE, Lease, held
from nlu.sweeps.storage import open_storage
from tests.suspending import BEAT_S, SILENCE_S, suspended


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"journal://{tmp_path}/journal.log"
    optuna.create_study(study_name="s", storage=open_storage(url)).ask()
    return url


@pytest.mark.parametrize("call", ["set_study_user_attr", "get_study_user_attrs"])
def test_a_search_suspended_during_a_beat_leaves_the_lease_to_its_successor(url: str, call: str) -> None:
    storage = open_storage(url)
    with suspended("lease", url, "s", call) as holder:
        with Lease(storage, "s", "another folder", print, beat_s=BEAT_S, silence_s=SILENCE_S) as successor:
            own = storage.get_study_user_attrs(0)[LEASE]
            status, said = holder.continued()
            assert status == EXIT_USER_ERROR and f"the study s is run by process {own['process']} on" in said
            assert storage.get_study_user_attrs(0)[LEASE] == own
            successor._require_own()
        assert not held(storage, 0), "the successor gave it back"


def test_a_job_suspended_during_a_report_leaves_its_trial_to_the_newer_job(url: str, tmp_path: Path) -> None:
    handed = {"storage": url, "study": "s", "number": 0}
    with suspended("trial", json.dumps(handed), tmp_path, "set_trial_intermediate_value") as holder:
        newer = TrialChannel(url, "s", 0, launch=2)
        newer.claim()
        newer.report(200, 0.75)
        newer.report(300, 0.9)
        before = optuna.load_study(study_name="s", storage=open_storage(url)).trials[0]
        status, said = holder.continued()
        assert status == EXIT_USER_ERROR and "Superseded" in said and "trial 0 has a newer job (launch 2" in said
        after = optuna.load_study(study_name="s", storage=open_storage(url)).trials[0]
        assert after.intermediate_values == before.intermediate_values == {100: 0.5, 200: 0.75, 300: 0.9}
        assert after.user_attrs[CLAIM] == before.user_attrs[CLAIM]
        assert after.user_attrs[DECISION]["examples"] == 300
        assert not (tmp_path / "saved").exists(), "it saved nothing after that"
