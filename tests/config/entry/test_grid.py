"""A grid is each value with each other, in the order in which they are written; jobs go out in batches."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from nlu.config.entry.app import run_app
from nlu.config.entry.grid import Grid, jobs_of, print_end
from nlu.config.errors import UserError

SCHEMA = "shop.schema.Job"


def jobs(*overrides: str) -> list[list[str]]:
    return jobs_of(OverridesParser.create().parse_overrides(list(overrides)))


def test_values_are_combined_in_order_and_the_last_key_changes_fastest():
    assert jobs("a=1,2", "b=x", "c=range(0,2)") == [
        ["a=1", "b=x", "c=0"], ["a=1", "b=x", "c=1"], ["a=2", "b=x", "c=0"], ["a=2", "b=x", "c=1"],
    ]  # fmt: skip


def test_an_interval_is_for_a_search():
    with pytest.raises(UserError, match="a grid cannot draw from an interval; for a search set hydra/sw"):
        jobs("a=interval(0,1)")


@pytest.fixture
def run(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a grid and gives its exit code, the names of its jobs in order, and what was said."""
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []

    def task(config: DictConfig) -> None:
        ran.append(f"{config.name} {config.seed}")

    def run(*arguments: str) -> tuple[object, list[str], str]:
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["job", "-m", "task=tag", *arguments])
        with pytest.raises(SystemExit) as caught:
            run_app(task, "job", SCHEMA, tree / "conf")
        return caught.value.code, list(ran), capsys.readouterr().err

    return run


def test_jobs_run_in_the_order_of_their_values(run):
    everything = ["a 1", "a 2", "a 3", "b 1", "b 2", "b 3"]
    assert run("name=a,b", "seed=1,2,3")[:2] == (0, everything)


def test_values_may_come_from_a_file_and_the_command_line_wins(run):
    params = "hydra.sweeper.params={seed: '1,2', name: 'a,b'}"
    assert run(params, "name=c")[:2] == (0, ["c 1", "c 2"])


def test_no_job_starts_where_one_of_them_is_refused(run):
    code, ran, said = run("name=a", "seed=1,-1,2")
    assert (code, ran) == (2, [])
    assert said.startswith("nlu: error: job 1 (seed=-1): seed is -1 but must be an integer >= 0")


def test_the_folder_of_a_job_may_have_its_number_in_its_name(run, tmp_path: Path):
    assert run("name=a", "seed=1,2", "hydra.sweep.dir=grid", "hydra.sweep.subdir=x-${hydra.job.num}")[:2] == (
        0, ["a 1", "a 2"],
    )  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "grid").glob("x-*")) == ["x-0", "x-1"]


@pytest.mark.thorough
def test_no_job_starts_where_two_have_the_same_configuration(run):
    code, ran, said = run("name=a,b", "seed=1,2,1")
    assert (code, ran) == (2, [])
    for first, second, name in ((0, 2, "a"), (3, 5, "b")):
        assert f"job {first} (name={name}, seed=1) has the configuration of job {second} (name={name}, seed=1)" in said
    # Equal values may be written differently, and values that contain the number of the job are not equal.
    assert (
        "job 0 (name=a) has the configuration of job 1 (name='a') and 1 other job" in run("seed=1", "name=a,'a',a")[2]
    )
    assert run("name='job${hydra:job.num}'", "seed=1,1")[:2] == (0, ["job0 1", "job1 1"])


def returned(folder: Path, statuses: Sequence[int]) -> Grid:
    """A grid whose jobs returned these statuses; each left a run."""

    def job(number: int, status: int) -> JobReturn:
        (folder / f"{number}").mkdir(parents=True)
        (folder / f"{number}/config.yaml").touch()
        output = SimpleNamespace(output_dir=str(folder / str(number)))
        hydra = SimpleNamespace(job=SimpleNamespace(num=number), runtime=output)
        found = JobReturn(hydra_cfg=SimpleNamespace(hydra=hydra), status=JobStatus.COMPLETED)
        found.return_value = status
        return found

    return Grid(lambda config: {}, returned=[job(number, status) for number, status in enumerate(statuses)])


def test_jobs_that_stopped_with_their_state_saved_are_not_told_as_failed(tmp_path, capsys):
    print_end(returned(tmp_path, (0, 75, 2, 130)))
    assert capsys.readouterr().err.splitlines() == [
        "nlu: 1 of 4 jobs were refused or failed: 2", "nlu: 2 of 4 jobs were stopped, to be continued: 1, 3",
    ]  # fmt: skip
