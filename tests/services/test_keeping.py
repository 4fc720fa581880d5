"""Checkpoints that `hydra.sweeper.keep` removes from a real bucket, while the search goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial

from nlu.search.storage.open_study import journal_of, open_storage
from nlu.storage.objects import ObjectStore
from tests.training.runs import REPOSITORY, TINY, files

pytestmark = pytest.mark.services

LENGTH = ("trainer.batch_size=8", "trainer.device=cpu", "trainer.max_duration=30st", "trainer.eval_interval=10st")


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random",
        f"hydra.sweep.dir={folder}", *TINY, *LENGTH, "hydra.sweeper.keep=best", *overrides,
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def trials(url: str) -> list[FrozenTrial]:
    """Return the trials of a search, whose journal is in its mirror."""
    return optuna.load_study(study_name="s", storage=open_storage(str(journal_of(url)))).get_trials()


def kept(url: str) -> dict[int, set[str]]:
    """Return the checkpoints that the bucket has of each trial."""
    found: dict[int, set[str]] = {}
    for key in ObjectStore(url, "mirror").list():
        match key.split("/"):
            case [number, "checkpoints", name, *_] if number.isdigit():
                found.setdefault(int(number), set()).add(name)
    return found


def ended_here(folder: Path) -> set[int]:
    """Return the trials whose run has ended."""
    return {int(path.parent.name) for path in folder.glob("[0-9]*/result.json")}


def test_the_bucket_loses_checkpoints_as_the_search_goes_also_over_a_kill(tmp_path: Path, s3_url: str) -> None:
    folder, url = tmp_path / "s", f"{s3_url}/search"
    data = files(tmp_path)
    own = (*data, f"mirror={url}", "optimizer.lr=choice(3e-3,1e-5,1e-6,1e-7)", "hydra.sweeper.pruner=none")
    process = start(folder, *own)
    try:
        # The loser of the first two trials; the first one has no checkpoint in the bucket before it is uploaded.
        while not ((held := kept(url)) and (losers := ended_here(folder) - held.keys())):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert len(losers) == 1
    process = start(folder, *own)
    said = process.communicate(timeout=900)[0]
    assert process.returncode == 0, said
    found = trials(url)
    best = max(found, key=lambda trial: (trial.value or 0.0, -trial.number)).number
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 4 and kept(url) == {best: {"best-1"}}
