"""Rows that are written on one machine and trained on by another, over a real S3 server; each has its own cache."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nlu.data import growing, growing_set, store
from nlu.data.growing import Growth
from nlu.data.sharing import SharedStores
from nlu.storage.objects import ObjectStore
from tests.data.test_streaming import SHARD_ROWS, STREAM, WINDOWS, WRITER, corpus, tables
from tests.training.in_process import train
from tests.training.runs import REPOSITORY, SAME_THREADS, weights

pytestmark = pytest.mark.services


def test_a_run_trains_on_rows_that_two_other_machines_are_writing(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_set, "GONE_S", 240.0)
    monkeypatch.setattr(growing, "FETCH_S", 0.1)
    monkeypatch.setattr(store, "SHARD_ROWS", SHARD_ROWS)
    keys, url = corpus(tmp_path), f"{s3_url}/stores"
    left = []

    def write(part: int) -> None:
        own = {**SAME_THREADS, "NLU_CACHE": str(tmp_path / f"writer-{part}")}
        more = ("data.stream=true", "data.parts=2", f"data.part={part}", f"stores={url}")
        command = [sys.executable, "-c", WRITER, *keys, *more, f"hydra.run.dir={tmp_path}/{part}"]
        done = subprocess.run(command, cwd=REPOSITORY, env=own, capture_output=True, text=True)
        left.append((done.returncode, done.stderr))

    # The last part is complete first: its rows have no numbers yet.
    write(1)
    assert left[0][0] == 0, left[0][1]
    writer = threading.Thread(target=write, args=[0])
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "reader"))
    writer.start()
    try:
        train(*keys, *STREAM, f"stores={url}", f"hydra.run.dir={tmp_path}/run")
    finally:
        writer.join()
    assert [status for status, _ in left] == [0, 0], left
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "whole"))
    train(*keys, *WINDOWS, f"hydra.run.dir={tmp_path}/alone")
    assert weights(tmp_path / "run") == weights(tmp_path / "alone")
    assert tables(tmp_path / "run") == tables(tmp_path / "alone")
    # The complete store is shared as any other, and nothing else is left.
    kept = ObjectStore(url, "stores").list()
    assert any(key.endswith("/COMPLETE") for key in kept) and not [key for key in kept if "/growing/" in key]


def test_a_shard_that_was_damaged_on_the_way_is_refused(tmp_path: Path, s3_url: str) -> None:
    growth = Growth("f" * 24, SharedStores(f"{s3_url}/damaged"))
    assert growth.shared is not None
    (tmp_path / "00000.arrow").write_bytes(b"not what was written")
    growth.begin(1)
    growth.shared.send_file(0, tmp_path / "00000.arrow")
    manifest = growing.Manifest([3], ["0" * 64], beat=1)
    growth.shared.send_manifest(0, vars(manifest))
    with pytest.raises(growing.DataError, match="00000.arrow of part 0 is damaged"):
        growth.fetch()
