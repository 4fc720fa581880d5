"""A loaded run as a function of Ray Data: each row has the prediction that nlu.predict gives it."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import nlu
from tests.inference.runs import predict, unlabelled
from tests.training.kinds import TASKS, read, write
from tests.training.runs import REPOSITORY

pytestmark = [pytest.mark.services]


class Predicting:
    """What docs/predicting.md shows."""

    def __init__(self, run: str):
        self.run = nlu.load(run)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        found = self.run.predict(batch["text"])
        return {**batch, "prediction": [one["prediction"] for one in found]}


def test_rows_of_a_dataset_have_the_predictions_of_nlu_predict(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would write a token into the home of the user.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[data]'")
    rows, run = unlabelled(TASKS["classify"], 23), run_of("classify")
    write(tmp_path / "new.jsonl", rows)
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl")
    path = {"PYTHONPATH": str(REPOSITORY), "NLU_CACHE": os.environ["NLU_CACHE"]}
    # The names of sockets may have 107 bytes.
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": path}, _temp_dir=folder)
        ray.data.DataContext.get_current().enable_progress_bars = False
        data = ray.data.from_items([{"id": number, "text": row["text"]} for number, row in enumerate(rows)])
        found = data.map_batches(Predicting, fn_constructor_args=(str(run),), batch_size=5, concurrency=1).take_all()
        ray.shutdown()
    by_id = [one["prediction"] for one in sorted(found, key=lambda one: one["id"])]
    assert by_id == [one["prediction"] for one in read(tmp_path / "out.jsonl")]
