"""One run, or a grid, over a launcher: its output equals that of a run here, without waiting for it."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.types import HydraContext
from hydra_plugins.queue_launcher._job import SubmittedJob, for_jobs
from omegaconf import OmegaConf

from nlu.commands.jobs import main as jobs_main
from nlu.config.choices import EVALUATE, conf_dir
from nlu.config.compose import Loader
from nlu.jobs.following import follow, latest, listed
from nlu.jobs.queue import Job
from nlu.jobs.submissions import Submissions, new_tokens
from nlu.reports.runs import read_overrides
from nlu.storage.files import read_json
from nlu.storage.objects import ObjectStore
from tests.training.in_process import MODEL, PLAIN, command, sets, tensors, train
from tests.training.runs import REPOSITORY, run

LOCAL = "hydra/launcher=local"
LEFT = "hydra.launcher.wait=false"
SMALL = (*MODEL, *PLAIN, "trainer.max_duration=4st", "trainer.eval_interval=2st")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder, whose history is its own; jobs find the checkout as a user's do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{REPOSITORY}/launchers")
    return tmp_path


def submitted(folder: Path) -> list:
    return Submissions(folder).read()


@pytest.mark.thorough
def test_one_run_left_to_a_launcher_and_collected_later_equals_a_run_here(project, capfd):
    own = (*sets(project), *SMALL, "optimizer.lr=3e-3")
    command(*own, LOCAL, LEFT, "hydra.run.dir=there")
    said = capfd.readouterr().err
    assert "1 job continues; python -m nlu.report --follow there follows, python -m nlu.jobs there --cancel" in said
    (job,) = submitted(project / "there")
    assert job.ended is None and job.ticket is not None
    command(*own, LOCAL, "hydra.run.dir=there")
    said = capfd.readouterr()
    assert "1 job of an earlier command found again" in said.err and "run: done, best dev accuracy" in said.err
    assert "the run is in there\npython -m nlu.report there" in said.out
    (again,) = submitted(project / "there")
    assert again.ticket == job.ticket and again.ended == "done"
    train(*own, f"hydra.run.dir={project}/here")
    for name, values in tensors(project / "here", "best-1/model").items():
        assert (values == tensors(project / "there", "best-1/model")[name]).all()
    # The records are those of a run that was started here, except for its launcher.
    assert read_overrides(project / "there") == {
        key: value for key, value in (text.split("=", 1) for text in own) if not key.startswith("hydra")
    }
    (start,) = json.loads((project / "there/provenance.json").read_text())["starts"]
    assert start["command"].endswith(f"{LOCAL} {LEFT} hydra.run.dir=there")
    assert jobs_main(["there"]) == 0 and "done" in capfd.readouterr().out


@pytest.mark.thorough
def test_a_run_that_its_job_would_refuse_is_refused_before_submission(project, capfd):
    own = (*sets(project), *SMALL, LOCAL)
    (project / "taken").mkdir()
    (project / "taken/config.yaml").write_text("{}")
    command(*own, "hydra.run.dir=taken", status=2)
    assert "taken holds a run already; nothing was submitted; set resume=auto" in capfd.readouterr().err
    command(*own, "resume=auto", status=2)
    assert "resume is auto, but hydra.run.dir is the default, a new folder each time" in capfd.readouterr().err
    command(*own, "optimizer.lr=-1", status=2)
    assert capfd.readouterr().err.startswith("nlu: error: optimizer.lr is -1 but must be a number > 0")
    command(*own, "hydra.launcher.nodes=2", "hydra.run.dir=new", status=2)
    assert "write hydra/launcher=slurm; a job of local is one process here" in capfd.readouterr().err
    assert submitted(project / "new") == [] and not (project / "outputs").exists()


def test_numbers_that_no_queue_takes_are_refused_before_submission(project, capfd):
    command(*sets(project), *SMALL, LOCAL, "hydra.launcher.timeout_min=-1", "hydra.launcher.gpus=-1", status=2)
    said = capfd.readouterr().err
    assert "hydra.launcher.timeout_min is -1 but must be >= 1" in said and "hydra.launcher.gpus is -1 but" in said


def test_each_job_of_a_grid_fills_in_the_values_that_hydras_keys_refer_to():
    written = ["hydra.sweep.subdir=x-${seed}", "+hydra.job.env_set.A=${hydra:job.num}"]
    with initialize_config_dir(str(conf_dir())):
        of_grid = compose("train", [*written, "+hydra.job.env_set.MY_TOKEN=t0ken"], return_hydra_config=True)
    OmegaConf.update(of_grid, "seed", 7, force_add=True)
    left = OmegaConf.to_container(for_jobs(of_grid).hydra.overrides.hydra, resolve=False)
    assert left == written, "but no secret"


def cut_off(folder: Path, queue: str) -> None:
    """Leave what a kill leaves between the two lines that a submission writes down."""
    (token,) = new_tokens(1)
    Submissions(folder).begin([Job(0, str(folder), ("seed=1",), token)], queue, {}, "train")


def test_a_job_of_another_command_is_composed_with_the_keys_of_that_command():
    with initialize_config_dir(str(conf_dir()), version_base=None):
        config = compose("evaluate", return_hydra_config=True)
    context = HydraContext(Loader(ConfigSearchPathImpl(), EVALUATE), Callbacks())
    unused = SubmittedJob(config, context, print, is_single=True).context.config_loader
    assert unused is not context.config_loader and unused.schema == EVALUATE


def test_a_submission_that_was_cut_off_is_not_repeated_silently(project, capfd):
    own = (*sets(project), *SMALL, LOCAL, "hydra.run.dir=run")
    cut_off(project / "run", "elsewhere")
    command(*own, status=2)
    said = capfd.readouterr().err
    assert "the submission of jobs 0" in said and "; look there, cancel what you find, and python -m nlu.jobs" in said
    assert jobs_main(["run"]) == 0 and "unknown" in capfd.readouterr().out
    assert jobs_main(["run", "--cancel"]) == 0
    assert "the submission of job 0 was cut off, and a queue may have it all the same" in capfd.readouterr().err
    assert jobs_main(["run", "--forget"]) == 0 and "1 job taken for not submitted" in capfd.readouterr().out
    assert submitted(project / "run") == []


@pytest.mark.thorough
def test_a_job_whose_former_one_is_over_takes_its_mirror_and_no_other_does(project, s3, monkeypatch):
    url = f"{s3.bucket(monkeypatch)}/run"
    own = (*sets(project), *SMALL, LOCAL, f"mirror={url}", "resume=auto")
    command(*own, "hydra.run.dir=run", "trainer.stop_after=2st")
    # As a job on another machine leaves it that lost its node.
    store = ObjectStore(url, "mirror")
    key = max(key for key in store.list(".pointer") if key.endswith(".json"))
    pointer = json.loads(store.get(key))
    pointer["writer"] |= {"host": "elsewhere", "machine": "another"}
    store.put(key, json.dumps({**pointer, "released": False}).encode())
    command(*own, "hydra.run.dir=other", status=2)
    command(*own, "hydra.run.dir=run")
    assert read_json(project / "run/result.json")["steps"] == 4


def grid(project: Path, *overrides: str, status: int = 0) -> str:
    own = (*sets(project), *SMALL, "seed=1,2", LOCAL, f"hydra.sweep.dir={project}/grid")
    return run("--multirun", *own, *overrides, status=status, env={"PYTHONPATH": os.environ["PYTHONPATH"]})


@pytest.mark.thorough
def test_each_job_has_the_folder_that_its_own_values_name(project):
    grid(project, "hydra.sweep.subdir=x-${seed}")
    assert sorted(path.parent.name for path in (project / "grid").glob("*/result.json")) == ["x-1", "x-2"]
    command(*sets(project), *SMALL, "seed=7", LOCAL, "hydra.run.dir=r-${seed}")
    assert (project / "r-7/result.json").is_file()


def rows(folder: Path) -> int:
    table = folder / "train.tsv"
    return len(table.read_text().splitlines()) if table.exists() else 0


def until_steps(folder: Path, before: int = 0) -> None:
    """Wait until a run has trained for a while, beyond so many rows of its table."""
    deadline_s = time.monotonic() + 120
    while rows(folder) < before + 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def kill_job(folder: Path, number: int) -> None:
    (job,) = [job for job in submitted(folder) if job.job.number == number and job.ended is None]
    os.killpg(int(job.ticket.id.rpartition("/")[2]), signal.SIGKILL)


@pytest.mark.thorough
def test_a_lost_job_does_not_affect_other_jobs_of_a_grid_and_runs_again_on_resume(project, capfd):
    folder = project / "grid"
    long = ("trainer.max_duration=4st,100000st", "seed=1")
    grid(project, LEFT, *long)
    until_steps(folder / "1")
    kill_job(folder, 1)
    while [row.state for row in listed(latest([Submissions(folder)]))][1] != "lost":
        time.sleep(0.1)
    follow([folder])
    assert "nlu: job 1: lost (its process ended without a result); its log: " in capfd.readouterr().err
    said = grid(project, *long, status=1)
    assert "1 of 2 jobs left a run in" in said and "job 0 (trainer.max_duration=4st): done, best" in said
    assert re.search(r"nlu: job 1 left no result: local job \S+ ended without a result \(its process ended", said)
    assert "the same command with resume=auto" in said
    assert [job.ended for job in submitted(folder)] == ["done", "lost"]
    # Both are submitted again: one has nothing to do, the other runs until it is cancelled, its state saved.
    before = rows(folder / "1")
    grid(project, *long, LEFT, "resume=auto")
    until_steps(folder / "1", before)
    # A cancelled job continues at the first command that resumes, without one that only collects.
    assert jobs_main([str(folder), "--cancel", "1"]) == 0
    before = rows(folder / "1")
    said = grid(project, *long, LEFT, "resume=auto")
    assert re.search(r"nlu: job 1 \(local \S+\) was stopped; it continues", said) and "the same command coll" in said
    until_steps(folder / "1", before)
    assert jobs_main([str(folder), "--cancel", "1"]) == 0
    # All have ended: none is left to run, and they are collected.
    said = grid(project, *long, LEFT, status=75)
    assert "job 1 (trainer.max_duration=100000st): stopped" in said and "--cancel cancels" not in said
    assert "1 of 2 jobs were stopped, to be continued: 1" in said


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGINT", 130)])
def test_a_job_that_a_signal_meets_before_its_run_begins_returns_its_status(monkeypatch, capfd, name, status):
    """submitit would ignore the first, and the others would end its process without a word."""
    from hydra.core.singleton import Singleton
    from hydra_plugins.queue_launcher import _job

    from nlu.jobs.submitit_jobs import to_plain

    def composed(*_, **__):
        signal.raise_signal(signal.Signals[name])
        raise AssertionError("the signal was left unheard")

    monkeypatch.setattr(_job, "composed", composed)
    job = _job.SubmittedJob.__new__(_job.SubmittedJob)
    job.config = job.context = job.task = None
    job.is_single = job.returns_status = True
    job.command, job.singletons = ["nlu.train"], Singleton.get_state()
    before = signal.getsignal(signal.Signals[name])
    assert to_plain(job(Job(0, "run", ()))) == {"returned": status}
    said = "interrupted" if name == "SIGINT" else f"stopped by {name}"
    assert capfd.readouterr().err == f"nlu: {said}; the same command continues\n"
    assert signal.getsignal(signal.Signals[name]) is before
