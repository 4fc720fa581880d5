"""A job that is suspended while another job claims the same submission."""

import pytest
from hydra_plugins.pai_launcher._claim import TAKEN, holder_after, holder_of

from nlu.storage.objects import ObjectStore
from tests.buckets import Server
from tests.suspending import suspended


@pytest.mark.thorough
def test_a_pai_job_suspended_before_its_claim_leaves_the_submission_to_the_other(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.bucket(monkeypatch) + "/nlu"
    store = ObjectStore(url, "hydra.launcher.oss_folder")
    with suspended("submission", url, "token", "the suspended") as holder:
        assert holder_after(store, "token", "the other") == "the other"
        status, said = holder.continued()
        assert status == TAKEN and "another job of the same submission has begun" in said
    assert holder_of(store, "token") == "the other"
