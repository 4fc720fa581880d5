"""parallel=shared: two processes that share weights compute what one process does, for any shares and gradients."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nlu.runs.records import read_rows
from tests.training.in_process import NO_DROPOUT, composed, sets, start, tensors, train
from tests.training.kinds import KINDS, Kind, few_first
from tests.training.runs import REPOSITORY, SAME_THREADS, result, run
from tests.training.test_kills import OPTIONS as KILLED
from tests.training.test_kills import assert_same, outcome
from tests.training.test_kinds_in_processes import ROWS, STEP, TOGETHER, WITH_POOLER, run_in_two

SHARED = "parallel=shared"
FALLING_BACK = "sums gradients as parallel=replicated"
FEW = ("mlm", "fgm", WITH_POOLER)


@pytest.fixture(scope="module")
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Path]]]:
    """The folders of a step of each kind asked for: in one process, and in two that share memory."""
    folder = tmp_path_factory.mktemp("shared")
    asking = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    found, jobs = {}, []
    names = [item.callspec.params["name"] for item in asking if "name" in item.callspec.params]
    for number, name in enumerate(dict.fromkeys(names)):
        config = composed(*NO_DROPOUT, *TOGETHER[name].overrides(folder / str(number), train_rows=ROWS), *STEP, SHARED)
        found[name] = [folder / f"{number}-single", folder / f"{number}-together"]
        start(config, found[name][0])
        jobs.append((config, found[name][1]))
    run_in_two(jobs, folder)
    yield found


# With InfoNCE the negatives of a row are those of its process.
@pytest.mark.parametrize("name", few_first([name for name in TOGETHER if name != "retrieve"], *FEW))
def test_two_processes_that_share_weights_make_the_update_of_one(steps: dict[str, list[Path]], name: str) -> None:
    single, together = steps[name]
    assert FALLING_BACK not in (together / "log.txt").read_text()
    (one,), (two,) = (read_rows(folder / "train.tsv") for folder in (single, together))
    for key in one:
        if key.startswith(("loss", "gnorm")):
            assert two[key] == pytest.approx(one[key], rel=1e-5, abs=1e-7)
    first, other = (tensors(folder, "last/optimizer") for folder in (single, together))
    assert first.keys() == other.keys()
    largest = max(np.abs(value).max() for key, value in first.items() if key.startswith("exp_avg:"))
    for key, value in first.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-3, atol=2e-6 * largest, err_msg=key)


# The rate at which rounding does not decide: Adam divides small gradients by themselves.
STEADY = (
    "trainer.batch_size=2", "trainer.accumulation=3", "trainer.eval_interval=1st", "trainer.eval_batch_size=2",
    "trainer.keep_best=2", "optimizer.eps=0.001", "trainer.clip_norm=0.1",
)  # fmt: skip


@pytest.mark.parametrize("begun", ["shared", "replicated"])
def test_a_run_continues_from_the_state_of_the_other_strategy(tmp_path: Path, begun: str) -> None:
    given = (*KINDS["classify"].overrides(tmp_path, train_rows=ROWS, dev_rows=ROWS), *NO_DROPOUT, *STEADY)
    other = {"shared": "replicated", "replicated": "shared"}[begun]
    half = composed(*given, f"parallel={begun}", "trainer.max_duration=2st")
    continued = replace(
        composed(*given, f"parallel={other}", "trainer.max_duration=4st"), resume=str(tmp_path / "half")
    )
    whole = composed(*given, "parallel=replicated", "trainer.max_duration=4st")
    run_in_two([(half, tmp_path / "half"), (continued, tmp_path / "run"), (whole, tmp_path / "whole")], tmp_path)
    said = f"saved with another choice of parallel ({begun}), continued with {other}, so the bytes will differ"
    assert said in (tmp_path / "run/log.txt").read_text()
    assert "so the bytes will differ" not in (tmp_path / "whole/log.txt").read_text()
    for name in ("last/model", "last/average", "last/optimizer", "best-1/model", "best-2/model"):
        expected, found = tensors(tmp_path / "whole", name), tensors(tmp_path / "run", name)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6, err_msg=key)
    metrics, expected = (result(tmp_path / name)["metrics"]["dev"] for name in ("run", "whole"))
    assert metrics == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        (("precision=bf16", "trainer.ema_decay=0"), True),
        (("adapter=lora",), True),
        (("optimizer.freeze=[backbone.embeddings.*]",), True),
        (("precision=fp16", "precision.master_weights=false"), False),
        (("parallel=bmuf",), False),
    ],
)
def test_what_cannot_be_shared_is_exchanged_as_before_and_the_log_says_why(
    tmp_path: Path, options: tuple[str, ...], is_shared: bool
) -> None:
    given = (*KINDS["classify"].overrides(tmp_path, train_rows=ROWS), SHARED, "trainer.max_duration=2st", *options)
    config = composed(*given)
    run_in_two([(config, tmp_path / "run"), (replace(config), tmp_path / "again")], tmp_path)
    said = (tmp_path / "run/log.txt").read_text()
    assert (FALLING_BACK in said) == (not is_shared and SHARED in given and "parallel=bmuf" not in options)
    for name in ("last/model", "last/optimizer"):
        assert (tmp_path / f"run/checkpoints/{name}.safetensors").read_bytes() == (
            tmp_path / f"again/checkpoints/{name}.safetensors"
        ).read_bytes()


def test_one_process_trains_as_without_the_strategy(tmp_path: Path) -> None:
    options = (*KINDS["classify"].overrides(tmp_path), "trainer.max_duration=2st")
    train(*options, f"hydra.run.dir={tmp_path}/usual")
    train(*options, SHARED, f"hydra.run.dir={tmp_path}/run")
    assert "does nothing" not in (tmp_path / "run/log.txt").read_text()
    one, other = (tensors(tmp_path / name, "last/model") for name in ("run", "usual"))
    assert all(np.array_equal(one[name], other[name]) for name in other)


def some_words(rng: random.Random) -> dict[str, str]:
    """A row with a few of many words, so that a step has gradients for few rows of the table."""
    words = [f"w{rng.randrange(60)}" for _ in range(rng.randint(1, 12))]
    return {"text": " ".join(words), "label": ("good", "bad")[len(words) % 2]}


def test_words_of_former_steps_are_no_part_of_a_sum(tmp_path: Path) -> None:
    """A run that continues has new memory for gradients, so it would notice."""
    given = (*Kind((), some_words).overrides(tmp_path, train_rows=ROWS, dev_rows=ROWS), "trainer.batch_size=4")
    given = (*given, "parallel=shared", "trainer.max_duration=3st", "trainer.save_interval=1st")
    jobs = [(composed(*given), tmp_path / "whole")]
    for last in ("trainer.stop_after=1st", "trainer.stop_after=2st", "trainer.stop_after=null"):
        jobs.append((replace(composed(*given, last), resume="auto"), tmp_path / "broken"))
    run_in_two(jobs, tmp_path)
    for name in ("last/model", "last/average", "last/optimizer"):
        whole, broken = (tensors(tmp_path / run, name) for run in ("whole", "broken"))
        assert all(np.array_equal(broken[key], value) for key, value in whole.items())


def test_two_processes_killed_during_a_save_continue_to_the_same_bytes(tmp_path: Path) -> None:
    options = (*KILLED, *sets(tmp_path), "trainer.accumulation=2", SHARED, "trainer.devices=2", "trainer.device=cpu")
    run(*options, f"hydra.run.dir={tmp_path}/whole")
    program = str(REPOSITORY / "tests" / "training" / "killed_at.py")
    killed = subprocess.run(
        [sys.executable, program, *options, f"hydra.run.dir={tmp_path}/run"], cwd=REPOSITORY,
        env={**SAME_THREADS, "KILLED_BEFORE": "os.rename .last.new last 2"}, capture_output=True, text=True,
        timeout=1800, start_new_session=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ".last.new" in os.listdir(tmp_path / "run/checkpoints")
    run(*options, f"hydra.run.dir={tmp_path}/run")
    assert_same(tmp_path / "run", outcome(tmp_path / "whole"), "two processes")
