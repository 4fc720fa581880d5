"""Holders of a mirror, suspended past every silence, learn that they are late, and their successor's work stays."""

import time
from pathlib import Path

import boto3
import pytest

from nlu.config.errors import EXIT_USER_ERROR
from nlu.runs.mirror import Mirror
from nlu.storage import ledger
from nlu.storage.heartbeat import elapsed_s
from nlu.storage.ledger import KEPT, Ledger
from nlu.storage.objects import ObjectStore
from tests.buckets import Server
from tests.suspending import BEAT_S, SILENCE_S, suspended, write_state


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("verb", "when"),
    [
        ("put_file", "after"),  # a part of a state is sent
        ("put_new", "before"),  # all files are sent, and the record is about to be
        ("put", "after"),  # a table is sent, others are not
        ("delete", "before"),  # the record is there, and what it no longer names is about to go
        ("list", "after"),  # old records are about to go
    ],
)
def test_a_suspended_holder_of_a_mirror_changes_nothing_of_its_successor(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, when: str
) -> None:
    url = f"{s3.bucket(monkeypatch)}/run"
    with suspended("mirror", url, tmp_path / "holder", verb, when) as holder:
        ledger_of_it = Ledger(ObjectStore(url, "mirror"), beat_s=BEAT_S, silence_s=SILENCE_S)
        since_s = elapsed_s()
        successor = Mirror(url, tmp_path / "successor", ledger_of_it)
        successor.open(may_hold_a_run=True)
        for step in range(2, 3 + 2 * KEPT):
            write_state(tmp_path / "successor", step, f"the successor's, step {step}")
            successor.saved()
            while successor._pending is not None or list(successor._outbox.glob("*")):
                successor._raise_failure()
                time.sleep(0.002)
        # An answer that the holder got before it was suspended is valid for so long.
        while elapsed_s() - since_s < ledger.HELD_FOR_S:
            time.sleep(0.01)
        before = objects(url)
        status, said = holder.continued()
        assert status == EXIT_USER_ERROR and "TakenOver" in said and "is written by process" in said
        if verb == "delete":
            # The one request that was under way, of a file that no record names any more.
            before = {key: body for key, body in before.items() if key != "run/checkpoints/last-1/COMPLETE"}
        assert objects(url) == before, "nothing was overwritten, deleted or added"
        write_state(tmp_path / "successor", 99, "the successor's last")
        successor.close()
    newest = Ledger(ObjectStore(url, "mirror")).newest()
    assert newest is not None and any("last-99" in key for key in newest.content["fixed"])


def objects(url: str) -> dict[str, bytes]:
    """All that the mirror holds but beats."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found = boto3.resource("s3").Bucket(bucket).objects.filter(Prefix=f"{prefix}/")
    return {entry.key: entry.get()["Body"].read() for entry in found if "beat" not in entry.key}
