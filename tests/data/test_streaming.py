"""A run beside the nlu.preprocess that writes its rows: the same bytes, whatever was written when."""

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from nlu import preprocess
from nlu.config import stopping
from nlu.config.errors import DataError, UserError
from nlu.config.stopping import EXIT_REQUEUE
from nlu.data import growing, growing_set, store, streaming
from nlu.data.dataset import SourceFile
from nlu.data.growing import Growth, Manifest
from nlu.data.growing_set import Watch
from nlu.data.order import Order
from nlu.storage.cache import cache_dir
from tests.inference.runs import evaluate
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, Killed, composed, program, start, train
from tests.training.runs import REPOSITORY, SAME_THREADS, weights

ROWS = 61
"""of each file, of which three make the training set"""
SHARD_ROWS, CHUNK_ROWS = 16, 7
WINDOWS = (
    *PLAIN, "trainer.window_rows=24", "trainer.max_duration=30st", "trainer.eval_interval=10st",
    "trainer.save_interval=3st", "resume=auto",
)  # fmt: skip
STREAM = (*WINDOWS, "data.stream=true")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr(store, "SHARD_ROWS", SHARD_ROWS)
    monkeypatch.setattr("nlu.data.reading.CHUNK_ROWS", CHUNK_ROWS)
    monkeypatch.setattr(growing_set, "PAUSE_S", 0.01)
    monkeypatch.setattr(streaming, "PAUSE_S", 0.01)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, ...]:
    return corpus(tmp_path)


def corpus(tmp_path: Path) -> tuple[str, ...]:
    """Write a corpus of three files and a dev set; returns the keys that name them."""
    rng = np.random.default_rng(1)
    for name in ("a", "b", "c", "dev"):
        lines = [" ".join(f"w{word}" for word in rng.integers(0, 30, rng.integers(3, 9))) for _ in range(ROWS)]
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(30))]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    return (
        *MODEL, *NO_DROPOUT, "task=mlm", "data=corpus", "data.break_mode=eos",
        f"data.train=[{tmp_path}/a.txt,{tmp_path}/b.txt,{tmp_path}/c.txt]", f"data.dev={tmp_path}/dev.txt",
        f"tokenizer.vocab={tmp_path}/vocab.txt",
    )  # fmt: skip


def prepare(*overrides: str, status: int = 0) -> None:
    program(preprocess.main, "preprocess", *overrides, status=status)


def files_of_store() -> dict[str, bytes]:
    (folder,) = (cache_dir() / "stores").glob("*")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def growth_here() -> Growth:
    (folder,) = (cache_dir() / "growing").glob("*")
    return Growth(folder.name)


def tables(run_dir: Path) -> list[list[str]]:
    """The loss of each step, and all scores."""
    train, valid = ((run_dir / f"{name}.tsv").read_text().splitlines() for name in ("train", "valid"))
    place = train[0].split("\t").index("loss")
    return [[line.split("\t")[place] for line in train], [line.split("\t")[-1] for line in valid]]


@pytest.fixture
def whole(keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, bytes], Path]:
    """The store that is built at once, and the folder of a run over it in the same windows, of 30 steps in 2 epochs."""
    with monkeypatch.context() as patched:
        patched.setenv("NLU_CACHE", str(tmp_path / "another"))
        train(*keys, *WINDOWS, f"hydra.run.dir={tmp_path}/whole")
        return files_of_store(), tmp_path / "whole"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_run_killed_while_rows_are_written_gives_the_same_bytes(
    keys: tuple[str, ...], whole: tuple[dict[str, bytes], Path], tmp_path: Path, seed: int
) -> None:
    with mock.patch.object(streaming, "_join"), mock.patch.object(Growth, "remove"):
        for part in (1, 0):
            prepare(*keys, "data.stream=true", "data.parts=2", f"data.part={part}", status=0)
    # The command has then built the store by itself.
    shutil.rmtree(cache_dir() / "stores")
    growth, rng, seen = growth_here(), random.Random(seed), []
    manifests = growth.manifests()
    assert sorted(map(len, (manifest.rows for manifest in manifests))) == [4, 8]
    shown = [0, 0]

    def show() -> None:
        for part, manifest in enumerate(manifests):
            size = min(shown[part], len(manifest.rows))
            is_complete = shown[part] > len(manifest.rows)
            growth.keep(part, Manifest(manifest.rows[:size], manifest.sha256[:size], is_complete))

    def more(watch: Watch, what: str) -> None:
        seen.append(what)
        if (chance := rng.random()) < 0.15:
            raise Killed
        if chance < 0.3:
            stopping.receive(signal.SIGTERM)
        shown[rng.randrange(2)] += rng.randrange(3)
        show()

    take = Order.step

    def taken(order: Order, number: int) -> list[np.ndarray]:
        if rng.random() < 0.07:
            raise Killed
        return take(order, number)

    show()
    config = composed(*keys, *STREAM)
    with mock.patch.object(Watch, "wait_for", more), mock.patch.object(Order, "step", taken):
        for _ in range(60):
            try:
                start(config, tmp_path / "run")
                break
            except Killed:
                continue
            except AssertionError as error:
                assert f"exit {EXIT_REQUEUE}" in str(error) or "exit 0" in str(error)
    assert (tmp_path / "run/result.json").is_file() and len(seen) > 3
    assert "row 24 of the set train: 0 are ready" in seen
    assert weights(tmp_path / "run") == weights(whole[1])
    assert weights(tmp_path / "run", "best-1") == weights(whole[1], "best-1")
    assert tables(tmp_path / "run") == tables(whole[1])


@pytest.mark.parametrize("order", [(2, 0, 1), pytest.param((0, 1, 2), marks=pytest.mark.thorough)])
def test_parts_that_are_finished_in_any_order_make_the_store_of_one_job(
    keys: tuple[str, ...],
    whole: tuple[dict[str, bytes], Path],
    order: tuple[int, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for part in order[:2]:
        prepare(*keys, "data.stream=true", "data.parts=3", f"data.part={part}")
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"part": part, "parts": 3}
    if order[0] == 2:
        rows = growing_set.GrowingSet(growth_here(), lambda: None)
        # The rows of the last part have no numbers before the second part is complete.
        assert rows.rows == ROWS and not rows.is_complete
    prepare(*keys, "data.stream=true", "data.parts=3", f"data.part={order[2]}")
    assert files_of_store() == whole[0] and not list((cache_dir() / "growing").glob("*"))
    prepare(*keys, "data.stream=true", "data.parts=3", "data.part=1")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["sets"]["train"]["examples"] == 3 * ROWS


def test_another_number_of_parts_and_more_parts_than_files_are_refused(
    keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(*keys, "data.stream=true", "data.parts=3", "data.part=2")
    prepare(*keys, "data.stream=true", "data.parts=2", "data.part=1", status=2)
    prepare(*keys, "data.stream=true", "data.parts=4", "data.part=1", status=2)
    said = capsys.readouterr().err
    assert "data.parts is 2, but" in said and "set data.parts=3" in said
    assert "data.parts is 4, but data.train has 3 files" in said


def test_files_are_cut_into_neighbors_of_about_equal_size(tmp_path: Path) -> None:
    files = []
    for number, size in enumerate([10, 10, 10, 70, 5, 5]):
        (tmp_path / str(number)).write_bytes(b"x" * size)
        files.append(SourceFile(tmp_path / str(number)))

    def sizes(parts: int) -> list[list[int]]:
        return [[file.path.stat().st_size for file in share] for share in streaming.shared_out(files, parts)]

    assert sizes(1) == [[10, 10, 10, 70, 5, 5]]
    assert sizes(2) == [[10, 10, 10], [70, 5, 5]]
    assert sizes(6) == [[10], [10], [10], [70], [5], [5]]


WRITER = f"""
import sys, time
from nlu.data import growing, reading, store
store.SHARD_ROWS, reading.CHUNK_ROWS = {SHARD_ROWS}, {CHUNK_ROWS}
write = growing.PartWriter._write
growing.PartWriter._write = lambda *of: (write(*of), time.sleep(0.2))
from nlu import preprocess
preprocess.command()
"""


@pytest.mark.thorough
def test_a_run_beside_a_writer_that_is_killed_and_started_again(
    keys: tuple[str, ...], whole: tuple[dict[str, bytes], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", WRITER, *keys, "data.stream=true", f"hydra.run.dir={tmp_path}/hydra"]
    environment, left = {**SAME_THREADS, "NLU_CACHE": str(cache_dir())}, list[int]()

    def write() -> None:
        first = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE)
        while first.poll() is None:
            folders = list((cache_dir() / "growing").glob("*"))
            if folders and len((Growth(folders[0].name).manifest(0) or Manifest()).rows) >= 3:
                first.kill()
            time.sleep(0.02)
        first.communicate()
        left.append(first.returncode)
        left.append(subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True).returncode)

    monkeypatch.setattr(growing_set, "GONE_S", 90.0)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        train(*keys, *STREAM, f"hydra.run.dir={tmp_path}/run")
    finally:
        writer.join()
    assert left == [-signal.SIGKILL, 0]
    assert "waiting for" in (tmp_path / "run/log.txt").read_text()
    assert weights(tmp_path / "run") == weights(whole[1]) and tables(tmp_path / "run") == tables(whole[1])
    assert files_of_store() == whole[0]


def test_a_run_without_a_writer_ends_and_names_the_command(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growing_set, "GONE_S", 0.0)
    train(*keys, *STREAM, f"hydra.run.dir={tmp_path}/run", status=2)
    assert "continue with python -m nlu.preprocess and the data" in capsys.readouterr().err
    assert not (tmp_path / "run/config.yaml").exists()


def test_rows_that_cannot_be_used_end_the_runs_that_wait_for_them(
    keys: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.txt").write_text("w1\n\ufffd\x00\n")
    prepare(*keys, "data.stream=true", status=2)
    assert "c.txt:2" in capsys.readouterr().err
    train(*keys, *STREAM, f"hydra.run.dir={tmp_path}/run", status=2)
    said = capsys.readouterr().err
    assert "c.txt:2" in said and "nlu.preprocess has ended" in said


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.window_rows=null", "trainer.window_rows is null"),
        ("trainer.batch_tokens=500", "trainer.batch_tokens is 500, which needs all training rows"),
        ("trainer.max_duration=2ep", "trainer.max_duration is 2ep"),
        ("data.dev=null", "data.dev is null, and data.dev_fraction needs all training rows"),
        ("data.drop_duplicates=true", "data.drop_duplicates is true"),
        ("folds.count=2", "folds.count is 2"),
        ("tokenizer.vocab=null", "the vocabulary needs all training rows"),
        ("task.frequency_power=0.5", "task.frequency_power is 0.5"),
        ("task=structbert", "task=structbert needs all training rows"),
    ],
)
def test_what_needs_all_rows_first_is_refused(keys: tuple[str, ...], override: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        composed(*keys, *STREAM, override)
    assert says in str(refused.value)


def test_weights_of_words_by_their_frequency_are_refused(keys: tuple[str, ...]) -> None:
    others = [one for one in keys if not one.startswith("model")]
    with pytest.raises(UserError, match="model.rarity is 0.0001, which needs all training rows"):
        composed(*others, *STREAM, "model=static")


def test_a_task_whose_labels_are_those_of_the_rows_is_refused(keys: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="task=classify needs all training rows"):
        composed(
            *MODEL, "data=files", f"data.train={tmp_path}/a.txt", f"data.dev={tmp_path}/dev.txt", "data.stream=true",
            "data.fields={text: 0, label: 1}", "data.format=tsv", *STREAM, keys[-1],
        )  # fmt: skip


def test_a_writer_refuses_shards_that_differ_from_those_that_runs_have_read(keys: tuple[str, ...]) -> None:
    with mock.patch.object(streaming, "_join"), mock.patch.object(Growth, "remove"):
        prepare(*keys, "data.stream=true")
    growth = growth_here()
    manifest = growth.manifest(0)
    assert manifest is not None
    growth.keep(0, Manifest(manifest.rows, ["0" * 64, *manifest.sha256[1:]]))
    with pytest.raises(DataError, match="is not what was written there before"):
        writer = growing.PartWriter(growth, 0, None, "")
        writer.append(store.mapped(growth.shards_of(0) / "00000.arrow"))


def written(*keys: str, parts: int = 1) -> Growth:
    """Write all parts, and leave them and no store."""
    with mock.patch.object(streaming, "_join"), mock.patch.object(Growth, "remove"):
        for part in range(parts):
            prepare(*keys, "data.stream=true", f"data.parts={parts}", f"data.part={part}")
    shutil.rmtree(cache_dir() / "stores")
    return growth_here()


def test_a_job_that_ends_while_another_makes_the_store_ends_well(
    keys: tuple[str, ...], whole: tuple[dict[str, bytes], Path]
) -> None:
    growth = written(*keys, parts=2)

    @contextmanager
    def after_the_other(_: Growth) -> Iterator[None]:
        for name, content in whole[0].items():
            path = cache_dir() / "stores" / growth.folder.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        growth.remove()
        with hold_join(growth):
            yield

    hold_join = Growth.hold_join
    with mock.patch.object(Growth, "hold_join", after_the_other):
        prepare(*keys, "data.stream=true", "data.parts=2", "data.part=1")
    assert files_of_store() == whole[0] and not growth.folder.exists()


def test_shards_that_move_into_the_store_while_they_are_opened_are_found_there(keys: tuple[str, ...]) -> None:
    growth = written(*keys)
    prepare(*keys)
    train = cache_dir() / "stores" / growth.folder.name / "train"
    moved: list[Path] = []

    def opened(path: Path) -> Any:
        if not moved:
            moved.append(train)
            growth.remove()
        return store.mapped(path)

    with mock.patch.object(growing_set, "mapped", opened):
        rows = growing_set.GrowingSet(growth, lambda: moved[0] if moved else None)
    assert rows.is_complete and rows.rows == 3 * ROWS


def test_the_store_of_one_part_writes_no_file_of_the_part(keys: tuple[str, ...]) -> None:
    growth = written(*keys)
    cut = growth.shards_of(0) / "cut.npy"
    before = cut.stat()
    with mock.patch.object(Growth, "remove"):
        prepare(*keys, "data.stream=true")
    copy = cache_dir() / "stores" / growth.folder.name / "train/cut.npy"
    assert copy.samefile(cut) and cut.stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_system_without_links_gets_copies(
    keys: tuple[str, ...], whole: tuple[dict[str, bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.link", mock.Mock(side_effect=PermissionError))
    prepare(*keys, "data.stream=true")
    assert files_of_store() == whole[0]


def test_what_a_kill_has_left_of_a_complete_store_is_removed(keys: tuple[str, ...]) -> None:
    with mock.patch.object(Growth, "remove"):
        prepare(*keys, "data.stream=true")
    assert growth_here().is_complete
    prepare(*keys, "data.stream=true")
    assert not list((cache_dir() / "growing").glob("*"))


def test_rows_of_dev_that_cannot_be_used_end_the_runs_too(
    keys: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_set, "GONE_S", 5.0)
    (tmp_path / "dev.txt").write_text("w1\n\ufffd\x00\n")
    prepare(*keys, "data.stream=true", status=2)
    capsys.readouterr()
    train(*keys, *STREAM, f"hydra.run.dir={tmp_path}/run", status=2)
    said = capsys.readouterr().err
    assert "dev.txt:2" in said and "nlu.preprocess has ended" in said


def test_a_streamed_run_is_scored_after_its_store_was_deleted(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_set, "GONE_S", 5.0)
    prepare(*keys, "data.stream=true")
    train(*keys, *STREAM, f"hydra.run.dir={tmp_path}/run")
    shutil.rmtree(cache_dir())
    evaluate(f"run={tmp_path}/run")
    assert len(files_of_store()) > 1


def test_static_vectors_that_weigh_alike_are_trained_on_a_stream(keys: tuple[str, ...], tmp_path: Path) -> None:
    prepare(*keys, "data.stream=true")
    others = [one for one in keys if not one.startswith("model")]
    train(*others, *STREAM, "model=static", "model.rarity=0", f"hydra.run.dir={tmp_path}/run")
    assert (tmp_path / "run/result.json").is_file()


def test_shards_that_were_written_without_stores_are_sent_once_there_are_some(keys: tuple[str, ...]) -> None:
    growth, sent, shared = written(*keys), list[str](), mock.Mock()
    names = [f"{number:05d}.arrow" for number in range(len(growth.continued(0).rows))]
    shared.manifest.return_value = None
    shared.send_file.side_effect = lambda part, path: sent.append(path.name)
    growth.shared = shared
    writer = growing.PartWriter(growth, 0, None, "")
    for name in names:
        writer.append(store.mapped(growth.shards_of(0) / name))
    writer.close()
    assert sent == names
