"""A run beside the nlu.preprocess that writes its rows: the same bytes, whatever was written when."""

import random
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from nlu.commands import preprocess
from nlu.config import stopping
from nlu.config.errors import UserError
from nlu.config.stopping import EXIT_REQUEUE
from nlu.data import growing, store
from nlu.data.growing import GrowingExamples, Growth, open_stream
from nlu.data.order import Order
from nlu.data.store_plan import Plan
from nlu.storage.cache import cache_dir
from nlu.storage.locks import hold_lock
from nlu.training.build import planned
from tests.inference.runs import evaluate
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, Killed, composed, program, start, train
from tests.training.runs import weights

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
    monkeypatch.setattr(growing, "PAUSE_S", 0.01)


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


def plan_of_keys(keys: tuple[str, ...]) -> Plan:
    return planned(composed(*keys, *STREAM))[2]


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
    prepare(*keys, "data.stream=true")
    assert files_of_store() == whole[0] and not list((cache_dir() / "growing").glob("*"))
    # What a writer leaves: first only the sets that are scored, then one shard after another, then the store.
    (final,) = (cache_dir() / "stores").glob("*")
    growing_folder = cache_dir() / "growing" / final.name
    final.rename(growing_folder)
    (growing_folder / "COMPLETE").rename(tmp_path / "COMPLETE")
    shards = sorted((growing_folder / "train").iterdir())
    for path in shards:
        path.rename(tmp_path / path.name)
    rng, seen = random.Random(seed), list[str]()

    def more(growth: Growth, what: str, rows: int = 0) -> None:
        seen.append(what)
        if (chance := rng.random()) < 0.15:
            raise Killed
        if chance < 0.3:
            stopping.receive(signal.SIGTERM)
        for path in [shards.pop(0) for _ in range(min(len(shards), rng.randrange(3)))]:
            (tmp_path / path.name).rename(path)
        if not shards and growing_folder.is_dir() and rng.random() < 0.5:
            (tmp_path / "COMPLETE").rename(growing_folder / "COMPLETE")
            growing_folder.rename(final)

    take = Order.step

    def taken(order: Order, number: int) -> list[np.ndarray]:
        if rng.random() < 0.07:
            raise Killed
        return take(order, number)

    config = composed(*keys, *STREAM)
    with mock.patch.object(Growth, "expect", more), mock.patch.object(Order, "step", taken):
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


@pytest.mark.parametrize("others_miss", [2, 0])
def test_all_ranks_go_on_or_stop_together(keys: tuple[str, ...], others_miss: int) -> None:
    """The other rank sees the rows later, or is asked to stop while it waits, and this one has them."""
    prepare(*keys, "data.stream=true")
    asked = list[list[float]]()

    def vote(mine: list[float]) -> list[float]:
        asked.append(mine)
        is_missing = not others_miss or len(asked) <= others_miss
        return [number + other for number, other in zip(mine, [is_missing, is_missing, not others_miss], strict=True)]

    train = open_stream(plan_of_keys(keys), vote).sets["train"]
    assert isinstance(train, GrowingExamples) and len(train) == 0
    if others_miss:
        train.wait(24)
        assert len(asked) == others_miss + 1 and len(train) == 3 * ROWS
        train.wait(10_000)
        assert len(asked) == others_miss + 1, "all ranks know that all rows are there"
    else:
        with pytest.raises(stopping.Stopped):
            train.wait(24)
    assert all(mine == [0, 0, 0] for mine in asked)


def test_a_store_that_is_renamed_while_it_is_opened_is_found_at_its_place(keys: tuple[str, ...]) -> None:
    prepare(*keys, "data.stream=true")
    (final,) = (cache_dir() / "stores").glob("*")
    growing_folder = cache_dir() / "growing" / final.name
    train = open_stream(plan_of_keys(keys), lambda mine: mine).sets["train"]
    assert isinstance(train, GrowingExamples)
    final.rename(growing_folder)

    def moved(path: Path) -> Any:
        if growing_folder.is_dir():
            growing_folder.rename(final)
        return store.mapped(path)

    with mock.patch.object(growing, "mapped", moved):
        train.wait(24)
    assert train.is_complete and len(train) == 3 * ROWS


def test_a_second_writer_is_refused(keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    growth = Growth(plan_of_keys(keys))
    growth.folder.mkdir(parents=True)
    with hold_lock(growth.lock, wait_s=0):
        prepare(*keys, "data.stream=true", status=2)
    assert "is being written by another process; it needs no second one" in capsys.readouterr().err


def test_a_run_without_a_writer_ends_and_names_the_command(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growing, "GONE_S", 0.0)
    train(*keys, *STREAM, f"hydra.run.dir={tmp_path}/run", status=2)
    assert "start python -m nlu.preprocess data.stream=true with the data" in capsys.readouterr().err
    assert not (tmp_path / "run/config.yaml").exists()


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


def test_a_streamed_run_is_scored_after_its_store_was_deleted(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "GONE_S", 5.0)
    prepare(*keys, "data.stream=true")
    train(*keys, *STREAM, f"hydra.run.dir={tmp_path}/run")
    shutil.rmtree(cache_dir())
    evaluate(f"run={tmp_path}/run")
    assert len(files_of_store()) > 1
