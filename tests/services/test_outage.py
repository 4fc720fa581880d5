"""A real object store that is away for half a minute in the middle of a search: nothing is lost."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import optuna
import pytest
from gate import Gate

from nlu.search.storage.open_study import open_storage
from nlu.storage.objects import ObjectStore
from tests.training.in_process import TINY
from tests.training.runs import files

pytestmark = pytest.mark.services

AWAY_S = 30.0


def test_a_search_whose_mirror_and_journal_are_away_for_a_while_reaches_its_end(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    assert server.hostname and server.port
    folder = tmp_path / "search"
    arguments = [
        sys.executable, "-m", "nlu.train", "--multirun", *TINY, *files(tmp_path, train_rows=40, dev_rows=11),
        "trainer.max_duration=12st", "trainer.eval_interval=3st", "trainer.save_interval=1st",
        "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random", "hydra.sweeper.pruner=none",
        "hydra.sweeper.n_trials=2", "optimizer.lr=tag(log,interval(1e-4,1e-2))", f"mirror={s3_url}",
        f"hydra.sweep.dir={folder}",
    ]  # fmt: skip
    with Gate((server.hostname, server.port)) as gate:
        with monkeypatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
            search = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        while search.poll() is None and not (folder / "0/checkpoints/last").exists():
            time.sleep(0.02)
        with gate.shut():
            time.sleep(AWAY_S)
            assert search.poll() is None, search.communicate()[1]
        said = search.communicate()[1]
    assert search.returncode == 0, said
    there = ObjectStore(s3_url, "mirror").list()
    for number in range(2):
        assert f"{number}/result.json" in there and there[f"{number}/checkpoints/best-1/model.safetensors"].size
        assert json.loads((folder / f"{number}/result.json").read_text())["steps"] == 12
    study = optuna.load_study(study_name=None, storage=open_storage(f"{s3_url}/journal"))
    assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE"] * 2
    assert [len(trial.intermediate_values) for trial in study.get_trials()] == [4, 4]
