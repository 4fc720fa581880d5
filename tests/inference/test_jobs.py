"""Several jobs that share the rows of nlu.predict: their output has the bytes of one process, whichever are killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from nlu.inference import claimed, predict_files, score_pieces
from nlu.inference.claimed import Claimed
from nlu.jobs.local import _signal
from nlu.jobs.submissions import Submissions
from nlu.storage import outputs
from nlu.storage.files import replacing, write_bytes
from tests import warm
from tests.buckets import Server
from tests.inference.runs import evaluate, predict, unlabelled
from tests.training.kinds import TASKS, few_first, write
from tests.training.runs import REPOSITORY

ROWS, PIECES = 23, 6
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'launchers'}"}


@pytest.fixture(scope="module")
def run(run_of: Callable[[str], Path]) -> Path:
    return run_of("classify")


@pytest.fixture
def order(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A prediction of rows in a few pieces."""
    monkeypatch.setattr(predict_files, "CHUNK_ROWS", 4)
    monkeypatch.setattr(claimed, "PATIENCE_S", 0.5)
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], ROWS))
    return f"run={run}", f"input={tmp_path}/new.jsonl"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pieces that are computed, in order."""
    found: list[str] = []
    compute = Claimed._compute

    def noted(self: Any, name: str, *given: Any) -> None:
        compute(self, name, *given)
        found.append(name)

    monkeypatch.setattr(Claimed, "_compute", noted)
    return found


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_one_job_of_several_completes_the_output_and_the_last_removes_the_pieces(
    order: tuple[str, ...], tmp_path: Path, computed: list[str], suffix: str
) -> None:
    if suffix == "parquet":
        # Records of jsonl may have different fields.
        predict(*order, f"output={tmp_path}/new.csv")
        order = (order[0], f"input={tmp_path}/new.csv", "prefix=x_")
    predict(*order, f"output={tmp_path}/a.{suffix}")
    shared = (*order, f"output={tmp_path}/b.{suffix}", "jobs=2")
    predict(*shared, "job=1")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    assert computed == ["index", *claimed.piece_names(PIECES), "done"]
    (left,) = (tmp_path / f".b.{suffix}.jobs").iterdir()
    assert sorted(path.name for path in left.iterdir()) == ["done", "done.claim-0", "left-1"]
    predict(*shared, "job=0")
    assert len(computed) == PIECES + 2 and not list(tmp_path.glob(".*"))
    predict(*shared, "job=0", status=2)


def test_a_job_that_is_stopped_gives_its_piece_back_and_the_same_job_continues(
    order: tuple[str, ...], tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(*order, f"output={tmp_path}/a.csv")
    shared = (*order, f"output={tmp_path}/b.csv", "jobs=2", "job=0")
    piece = predict_files.Work.piece

    def stopped(self: Any, chunk: Any) -> bytes:
        if len(computed) == 3:
            raise KeyboardInterrupt
        return piece(self, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(predict_files.Work, "piece", stopped)
        predict(*shared, status=130)
    monkeypatch.setattr(claimed, "PATIENCE_S", 1e9)
    predict(*shared)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert computed == ["index", *claimed.piece_names(PIECES), "done"]


def test_pieces_of_an_output_in_a_bucket_are_in_the_bucket(
    order: tuple[str, ...], tmp_path: Path, computed: list[str], s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, caches = s3.bucket(monkeypatch), [tmp_path / "one", tmp_path / "two"]
    predict(*order, f"output={tmp_path}/a.csv")
    shared = (*order, f"output={bucket}/in/b.csv", "jobs=2")

    def killed(self: Any, *_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        # Two machines without a common file system.
        patched.setenv("NLU_CACHE", str(caches[0]))
        patched.setattr(Claimed, "join", killed)
        predict(*shared, "job=0", status=130)
    assert computed == ["index", *claimed.piece_names(PIECES)]
    monkeypatch.setenv("NLU_CACHE", str(caches[1]))
    predict(*shared, "job=1")
    assert computed[PIECES + 1 :] == ["done"]
    predict(*shared, "job=0")
    assert objects_of(s3, bucket) == {"in/b.csv": (tmp_path / "a.csv").read_bytes()}


def objects_of(s3: Server, bucket: str) -> dict[str, bytes]:
    objects = boto3.resource("s3", endpoint_url=s3.address).Bucket(bucket.removeprefix("s3://")).objects
    return {one.key: one.get()["Body"].read() for one in objects.all()}


def test_scores_in_a_bucket_are_made_again_if_they_were_sent_in_part(
    run: Path, tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.bucket(monkeypatch)
    evaluate(f"run={run}", f"out={tmp_path}/a", "resamples=0")
    shared = (f"run={run}", f"out={bucket}/b", "resamples=0", "jobs=2")

    def killed(copied: Any, *_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(outputs, "run_copies", killed)
        evaluate(*shared, "job=0", status=130)
    assert "b/.begun" in objects_of(s3, bucket)
    for job in (1, 0):
        evaluate(*shared, f"job={job}")
    found = objects_of(s3, bucket)
    assert found["b/result.json"] == (tmp_path / "a/result.json").read_bytes()
    assert all(key.startswith("b/") and key != "b/.begun" for key in found)


def test_every_job_says_which_rows_are_bad_and_nothing_stays(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], computed: list[str]
) -> None:
    (tmp_path / "new.csv").write_text("text\na b\n  \n")
    for job in (0, 1):
        order = (f"run={run}", f"input={tmp_path}/new.csv", f"output={tmp_path}/b.csv")
        predict(*order, "jobs=2", f"job={job}", status=2)
        assert "new.csv:3: field text: '  ' is empty" in capsys.readouterr().err
    assert computed == ["index"] and [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("output=b.csv", "jobs=2"), "no launcher starts them; set hydra/launcher=local"),
        (("output=b.csv", "jobs=2", "job=2"), "number jobs from 0 to 1"),
        (("output=-", "jobs=2", "job=0"), "name a file that all jobs see"),
        (("output=odps://p/tables/t", "jobs=2", "job=0"), "name a file that all jobs see"),
        (("output=b.csv", "jobs=2", "job=0", "devices=2"), "let each job use one device"),
    ],
)
def test_what_jobs_cannot_share_is_refused(run: Path, tmp_path: Path, overrides: tuple[str, ...], words: str) -> None:
    (tmp_path / "new.csv").write_text("text\na b\n")
    command = ["-m", "nlu.predict", f"run={run}", "input=new.csv", "device=cpu", *overrides]
    done = warm.run(command, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.thorough
def test_a_killed_job_of_a_launcher_costs_its_piece_only(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], 12_300))
    order = [sys.executable, "-m", "nlu.predict", f"run={run}", f"input={tmp_path}/new.jsonl", "device=cpu"]
    subprocess.run([*order, "output=a.csv"], cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True)
    command = [*order, "output=b.csv", "jobs=2", "hydra/launcher=local", "hydra.sweep.dir=jobs"]
    process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".b.csv.jobs/*/000000.claim-0")):
        assert process.poll() is None
        time.sleep(0.01)
    # Its claim is newer than those of the index and of the first piece.
    tickets = [one.ticket for one in Submissions(tmp_path / "jobs").read() if one.ticket]
    _signal(int(tickets[0].id.rpartition("/")[2]), signal.SIGKILL)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert "job 0 (job=0): lost" in said and "job 1 (job=1): done" in said


def test_a_job_that_was_slow_to_make_the_result_finds_that_of_another(tmp_path: Path) -> None:
    slow, quick = (Claimed(f"{tmp_path}/out", {}, "out") for _ in range(2))

    def make(paths: list[Path]) -> None:
        quick._store.delete("done.claim-0")
        quick.finish([], lambda _: shutil.copytree(tmp_path / "made", tmp_path / "out"))
        (tmp_path / "mine").rename(tmp_path / "out")

    for name in ("made", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(name)
    slow.finish([], make)
    assert (tmp_path / "out/result.json").read_text() == "made" and slow.is_done
    with pytest.raises(OSError, match="no space"):
        Claimed(f"{tmp_path}/other", {}, "out").finish([], no_space)
    assert [path.name for path in (tmp_path / ".other.jobs").rglob("*") if path.is_file()] == []


def no_space(paths: list[Path]) -> None:
    raise OSError("no space left")


@pytest.mark.parametrize("name", few_first(list(TASKS), "classify", "tag with a CRF", "retrieve"))
def test_sets_that_jobs_score_have_the_files_of_one_process(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[str], name: str
) -> None:
    monkeypatch.setattr(score_pieces, "CHUNK_ROWS", 5)
    evaluate(f"run={run_of(name)}", f"out={tmp_path}/a", "resamples=20")
    (tmp_path / "b").mkdir()
    shared = (f"run={run_of(name)}", f"out={tmp_path}/b", "resamples=20", "jobs=2")
    for job in (0, 1):
        evaluate(*shared, f"job={job}")
    assert computed[-1] == "done" and len(computed) == len(set(computed)) >= PIECES - 1
    one, several = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.json*")}
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert one == several and Path("result.json") in one and len(one) >= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_complete_result_leaves_alone_what_another_job_is_writing(tmp_path: Path) -> None:
    shared = Claimed(str(tmp_path / "out.csv"), {})
    with replacing(tmp_path / f".out.csv.jobs/{Path(shared._store.shown).name}/left-1") as file:
        file.write(b"")
        shared.finish([], lambda paths: write_bytes(tmp_path / "out.csv", b""))
    assert (tmp_path / "out.csv").exists() and shared.is_done
