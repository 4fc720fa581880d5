"""Two processes together compute the same update and the same scores as one, for any shares."""

import pickle
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.config.schema import Run
from nlu.runs.predictions import Predictions
from nlu.runs.records import read_rows
from tests import warm
from tests.training.in_process import NO_DROPOUT, composed, start, tensors
from tests.training.kinds import KINDS, Kind, classes, few_first, tags
from tests.training.runs import REPOSITORY, SAME_THREADS, result

ROWS = 11
WITH_POOLER = "tags, with a pooler that is never read"
WITH_DROPOUT = "freelb from a random start, with dropout"
TOGETHER = {
    **{name: KINDS[name] for name in (
        "regress", "multilabel", "tag with a CRF", "siamese", "siamese with contrastive loss", "retrieve", "focal",
        "rdrop", "fgm", "mlm", "mlm_pairs", "structbert", "siamese with InfoNCE", "siamese of numbers", "circle",
        "rerank",
    )},
    "freelb": Kind(("method=freelb", "method.init_magnitude=0"), classes),
    WITH_POOLER: Kind(("task=tag", "model.pooling=pooler"), tags),
    WITH_DROPOUT: Kind(
        ("method=freelb", "model.dropout=0.3", "model.attention_dropout=0.3", "model.head_dropout=0.3"), classes
    ),
}  # fmt: skip
SCORED = [name for name, kind in TOGETHER.items() if kind.options[0].startswith("task=")]
"""Scoring knows neither losses nor methods."""
FEW = ("tag with a CRF", "rerank", "siamese with contrastive loss", "siamese with InfoNCE", WITH_DROPOUT, WITH_POOLER)
# Micro-batches of 2 over 11 rows: the last has one row, so that the second process has none of it.
STEP = (
    "trainer.batch_size=2", "trainer.accumulation=6", "trainer.max_duration=1st", "trainer.clip_norm=0",
    "optimizer.betas=[0.5,0.999]", "optimizer.weight_decay=0.1", "model.hidden_size=32",
)  # fmt: skip


def run_in_two(jobs: Sequence[tuple[Run, Path]], folder: Path, **environment: str) -> None:
    """Run the configurations one after another, in two processes at once."""
    file = folder / "jobs.pickle"
    file.write_bytes(pickle.dumps(jobs))
    command = ["-m", "tests.training.ranks_of_kinds", str(file)]
    common = {**SAME_THREADS, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **environment}
    processes = [
        warm.start(
            command, cwd=REPOSITORY, env={**common, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    for process in processes:
        _, said = process.communicate(timeout=1800)
        assert process.returncode == 0, said


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The folders of a step in one process and in two, of each kind asked for, and of a step that only scores."""
    folder = tmp_path_factory.mktemp("processes")
    found, jobs = {}, []
    asking = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = {WITH_POOLER, *(item.callspec.params["name"] for item in asking)}
    for number, (name, kind) in enumerate(TOGETHER.items()):
        if name not in chosen:
            continue
        options = kind.overrides(folder / str(number), train_rows=ROWS)
        for part, more in (("step", ()), ("scores", kind.standing_still)):
            if part == "scores" and name not in SCORED:
                continue
            config = composed(*NO_DROPOUT, *options, *STEP, *more)
            single, together = (folder / f"{number}-{part}-{how}" for how in ("single", "together"))
            start(config, single)
            jobs.append((config, together))
            found[f"{name}: {part}"] = single, together
    run_in_two(jobs, folder)
    return found


@pytest.mark.parametrize("name", few_first(list(TOGETHER), *FEW))
def test_two_processes_with_uneven_shares_make_the_update_of_one(runs: dict[str, tuple[Path, Path]], name: str) -> None:
    single, together = runs[f"{name}: step"]
    (one,), (two,) = (read_rows(folder / "train.tsv") for folder in (single, together))
    for key in one:
        if key.startswith(("loss", "gnorm")):
            assert two[key] == pytest.approx(one[key], rel=1e-5, abs=1e-7)
    gradient, other = (
        {key: 2 * value for key, value in tensors(folder, "last/optimizer").items() if key.startswith("exp_avg:")}
        for folder in (single, together)
    )
    assert gradient.keys() == other.keys()
    largest = max(np.abs(value).max() for value in gradient.values())
    for key, value in gradient.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-3, atol=2e-6 * largest, err_msg=key)


@pytest.mark.parametrize("name", few_first(SCORED, "tag with a CRF", "retrieve", "rerank"))
def test_two_processes_score_as_one_to_the_bit(runs: dict[str, tuple[Path, Path]], name: str) -> None:
    single, together = runs[f"{name}: scores"]
    assert result(together)["metrics"] == result(single)["metrics"]
    assert records(together) == records(single)


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [dict(record) for record in Predictions(run_dir / "predictions/dev.jsonl")]


def test_weights_that_no_row_reaches_stay_as_they_are_in_one_process_and_in_two(
    runs: dict[str, tuple[Path, Path]],
) -> None:
    # The first step of a run at a rate that changes nothing has the weights that every run begins with.
    before = tensors(runs[f"{WITH_POOLER}: scores"][0], "last/model")
    poolers = [key for key in before if "pooler" in key]
    assert len(poolers) == 2
    for folder in runs[f"{WITH_POOLER}: step"]:
        after = tensors(folder, "last/model")
        assert all(np.array_equal(after[key], before[key]) for key in poolers)
        changed = [key for key in before if not np.array_equal(after[key], before[key])]
        assert "head.linear.weight" in changed


def test_no_process_reads_the_best_weights_before_rank_0_has_placed_them(tmp_path: Path) -> None:
    # A state that has ended, a test set that is new: every process evaluates, loads best-1, and trains nothing.
    options = (*KINDS["classify"].overrides(tmp_path), "trainer.max_duration=2st", "trainer.eval_interval=1st")
    start(composed(*options), tmp_path / "first")
    again = (*options, f"resume={tmp_path}/first", f"data.test={tmp_path}/dev.jsonl")
    run_in_two([(composed(*again), tmp_path / "second")], tmp_path, PROVENANCE_TAKES_S="1.5")
    assert (tmp_path / "second/finishing.rank1").exists()
    assert result(tmp_path / "second")["metrics"]["test"] == result(tmp_path / "first")["last"]["dev"]
