"""After a grid one reads where its runs are and which jobs left none, whether they ran here or in processes apart."""

import pytest

from tests.training.runs import QUICK, TINY, files, run

OPTIONS = (*TINY, *(option for option in QUICK if not option.startswith("optimizer.lr")))


def grid(folder, *overrides: str, status: int = 0) -> str:
    return run("--multirun", f"hydra.sweep.dir={folder}", *OPTIONS, *overrides, status=status)


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param((), id="here"),
        pytest.param(("hydra/launcher=local",), id="local", marks=pytest.mark.thorough),
    ],
)
def test_refused_jobs_are_counted_at_the_end_and_the_report_is_named(tmp_path, launcher):
    folder = tmp_path / "grid"
    (tmp_path / "neither.tsv").write_text("w1 w2\tneither\n")
    train, dev, fields = files(tmp_path)[1:]
    own = ("data=files", train, fields, f"{dev},{tmp_path}/neither.tsv", "seed=1", *launcher)
    said = grid(folder, *own, status=2)
    assert f"1 of 2 jobs left a run in {folder}" in said and f"python -m nlu.report {folder}" in said
    assert "nlu: 1 of 2 jobs were refused or failed: 1" in said
    if launcher:
        assert f"their output is in {folder}/.submitit" in said
        said = "".join(path.read_text() for path in (folder / ".submitit").rglob("*.err"))
    assert f"job 1 (data.dev={tmp_path}/neither.tsv): " in said and "'neither' is not one of the labels" in said


def test_jobs_that_would_share_a_folder_are_refused_before_the_first_one_starts(tmp_path):
    folder = tmp_path / "grid"
    said = grid(folder, *files(tmp_path), "seed=1,2", "hydra.sweep.subdir=same", status=2)
    assert f"hydra.sweep.subdir makes {folder}/same the folder of several jobs; give each its own" in said
    assert not folder.exists()


def test_every_job_is_checked_before_the_first_one_starts(tmp_path):
    folder = tmp_path / "grid"
    said = grid(
        folder, *files(tmp_path), "optimizer.lr=1e-3,-1", "seed=1,2", "optimizer.weight_decay=-1", status=2
    )  # fmt: skip
    assert said.count("optimizer.weight_decay is -1") == 1
    assert "jobs 2, 3: optimizer.lr is -1 but" in said and "2 problems" in said
    assert not folder.exists()
    assert "job 1 (seed=-2): seed is -2 but" in grid(folder, *files(tmp_path), "seed=1,-2", status=2)
    assert "set hydra.sweep.dir=mine" in grid(folder, *files(tmp_path), "seed=1,2", "hydra.run.dir=mine", status=2)
