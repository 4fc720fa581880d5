"""After a grid one reads where its runs are and which jobs left none, whether they ran here or in processes apart."""

import pytest

from tests.training.runs import QUICK, TINY, files, run

OPTIONS = (*TINY, *(option for option in QUICK if not option.startswith("optimizer.lr")))


@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=submitit_local",)], ids=["here", "submitit_local"])
def test_refused_jobs_are_counted_at_the_end_and_the_report_is_named(tmp_path, launcher):
    folder = tmp_path / "grid"
    said = run(
        "--multirun", f"hydra.sweep.dir={folder}", *OPTIONS, *files(tmp_path), "optimizer.lr=-1,3e-3,-2", *launcher,
        status=2,
    )  # fmt: skip
    assert f"1 of 3 jobs left a run in {folder}" in said and f"python -m nlu.report {folder}" in said
    assert "nlu: 2 of 3 jobs were refused or failed: 0, 2" in said
    if launcher:
        assert f"what they said is in {folder}/.submitit" in said
        logs = "".join(path.read_text() for path in (folder / ".submitit").rglob("*.err"))
        assert "optimizer.lr is -1" in logs and "optimizer.lr is -2" in logs
    else:
        assert "optimizer.lr is -1" in said


def test_a_grid_that_only_checks_names_no_report(tmp_path):
    said = run("--multirun", f"hydra.sweep.dir={tmp_path}/grid", *OPTIONS, *files(tmp_path), "seed=1,2", "dry_run=true")
    assert "nlu.report" not in said and "jobs were" not in said
