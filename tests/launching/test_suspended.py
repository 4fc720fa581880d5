"""Jobs that are suspended and continue while others follow them, or claim the same submission."""

import time
from pathlib import Path

import pytest

from nlu.launching.attended import Beats
from nlu.launching.pai.claim import TAKEN, holder_after, holder_of
from nlu.storage.objects import ObjectStore
from tests.buckets import Server
from tests.suspending import SILENCE_S, suspended


def test_a_suspended_job_falls_silent_and_is_heard_of_again_when_it_continues(tmp_path: Path) -> None:
    file, beats = tmp_path / "7_beat", Beats()
    with suspended("attended", file) as holder:
        while (last := beats.last(file)) is None or last[1] <= SILENCE_S:
            time.sleep(0.01)
        seen = file.read_text()
        assert holder.continued() == (0, "")
        assert file.read_text() != seen
        last = beats.last(file)
        assert last is not None and last[1] == 0


def test_a_job_on_pai_that_was_suspended_before_it_claimed_leaves_the_submission_to_the_other(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.bucket(monkeypatch) + "/nlu"
    store = ObjectStore(url, "hydra.launcher.oss_folder")
    with suspended("submission", url, "token", "the suspended") as holder:
        assert holder_after(store, "token", "the other") == "the other"
        status, said = holder.continued()
        assert status == TAKEN and "another job of the same submission has begun" in said
    assert holder_of(store, "token") == "the other"
