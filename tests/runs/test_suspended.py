"""Holders of a mirror, suspended at each of their requests, learn that they are late; their successor's work stays."""

import hashlib
import time
from pathlib import Path

import boto3
import pytest

from nlu.config.errors import EXIT_USER_ERROR
from nlu.runs.mirror import Mirror
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import KEPT, Pointer, Pointers
from tests.buckets import Server
from tests.few import only
from tests.suspending import suspended, write_state

POINTS = range(40)
"""more requests than a save needs, also the last one"""
CASES = [(point, when, ends) for ends in (False, True) for point in POINTS for when in ("before", "after")]
USUAL = [(4, "before", False), (30, "after", True)]


@pytest.mark.parametrize(("point", "when", "ends"), only(USUAL, CASES))
def test_a_suspended_holder_of_a_mirror_changes_nothing_of_its_successor(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int, when: str, ends: bool
) -> None:
    url = f"{s3.bucket(monkeypatch)}/run"
    with suspended(url, tmp_path / "holder", point, when, ends) as holder:
        if holder is None:
            assert point > 15, "it has so many requests"
            return
        successor = Mirror(url, tmp_path / "successor")
        successor.open(may_hold_a_run=True, take=True)
        # So many that the numbers after the holder's are free again.
        for step in range(3, 3 + 2 * KEPT):
            write_state(tmp_path / "successor", step, f"the successor's, step {step}")
            successor.saved()
            while successor._pending is not None or list(successor._outbox.glob("*")):
                assert successor._failure is None
                time.sleep(0.002)
        before, newest = objects(url), newest_of(url)
        status, said = holder.continued()
        # After its last request it has only to release the mirror.
        assert (status == EXIT_USER_ERROR and "TakenOver" in said and "is written by process" in said) or ends
        after = objects(url)
        assert newest_of(url) == newest and all(after[key] == before[key] for key in newest.keys)
        # Deletions that had begun go on: of what counted for nobody before the successor came.
        assert not any(successor._pointers.writer["id"] in key for key in before.keys() - after.keys())
        write_state(tmp_path / "successor", 99, "the successor's last")
        successor.close()
    newest, there = newest_of(url), objects(url)
    for place, file in newest.files.items():
        assert hashlib.sha256(there[file.key]).hexdigest() == file.sha256, place
    assert newest.ended or {key for key in there if key.startswith(".saves")} == newest.keys


def newest_of(url: str) -> Pointer:
    newest = Pointers(ObjectStore(url, "mirror")).newest()
    assert newest is not None
    return newest


def objects(url: str) -> dict[str, bytes]:
    """All that the mirror holds."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found = boto3.resource("s3").Bucket(bucket).objects.filter(Prefix=f"{prefix}/")
    return {entry.key.removeprefix(f"{prefix}/"): entry.get()["Body"].read() for entry in found}
