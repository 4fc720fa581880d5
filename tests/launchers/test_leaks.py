"""Secrets in every place where a command may be given one: none of them is in any file left behind, nor printed."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from tests import warm
from tests.training.in_process import MODEL, PLAIN, command, sets
from tests.training.runs import REPOSITORY, SAME_THREADS

SECRET = "geheim-4711-x"
SMALL = (*MODEL, *PLAIN, "trainer.max_duration=4st", "trainer.eval_interval=2st")
SEARCH = ("--multirun", "hydra/sweeper=hyperband", "hydra.sweeper.n_trials=1", "hydra.sweeper.pruner=none",
          "hydra/sweeper/sampler=random", "optimizer.lr=interval(1e-3,2e-3)", "hydra.sweep.dir=s")  # fmt: skip
KINDS = {
    "run": ("hydra.run.dir=s",),
    "grid": ("--multirun", "optimizer.lr=1e-3,2e-3", "hydra.sweep.dir=s"),
    "search": SEARCH,
    "submission": ("hydra/launcher=slurm", "hydra.run.dir=s"),
}
PLACES = {
    "a variable of the job": f"+hydra.job.env_set.HF_TOKEN={SECRET}",
    "the same, in lower case and with a dash": f"+hydra.job.env_set.my-api-key={SECRET}",
    "variables as a mapping": f"hydra.job.env_set={{GITHUB_TOKEN: {SECRET}}}",
    "a line of a launcher": f"+hydra.launcher.setup=['export HF_TOKEN={SECRET}']",
    "an option of a queue": f"+hydra.launcher.additional_parameters={{export: 'ALL,AWS_SESSION_TOKEN={SECRET}'}}",
    "a setting of a tracker": f"+tracker.api_key={SECRET}",
    "settings of a tracker as a mapping": f"+tracker.settings={{hosts: [{{private_key: {SECRET}}}]}}",
    "an address": f"data.train=https://user:{SECRET}@localhost/a.csv",
    "the query of an address": f"model.pretrained='s3://bucket/a?key={SECRET}'",
    "the storage of a search": f"+hydra.sweeper.storage=postgresql://me:{SECRET}@localhost/db",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and commands of Slurm that take a job and know nothing of it."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"sbatch": "echo Submitted batch job 57", "srun": "", "squeue": "", "sacct": ""}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{REPOSITORY}/launchers")
    return work


def holding(folder: Path, *, text: str = SECRET) -> list[str]:
    """Return all files below a folder that hold a text; of an archive each member is searched."""
    found = []
    for path in folder.rglob("*"):
        if text in path.name or (path.is_file() and _holds(path.read_bytes(), text.encode())):
            found.append(path.relative_to(folder).as_posix())
    return found


def _holds(content: bytes, text: bytes) -> bool:
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as opened:
            return any(_holds(opened.read(name), text) for name in opened.namelist())
    # Neither a pickle nor SQLite packs texts; as UTF-16 and in base64 nothing here writes any.
    return text in content


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        pytest.param(place, kind, marks=[] if row == column else [pytest.mark.thorough])
        for row, place in enumerate(PLACES)
        for column, kind in enumerate(KINDS)
    ],
)
def test_a_command_with_a_secret_is_refused_first_and_the_secret_is_not_repeated(
    project: Path, place: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(project.rglob("*"))
    command(*sets(project), *SMALL, *KINDS[kind], PLACES[place], status=2)
    said = capfd.readouterr()
    assert "nlu: error" in said.err and SECRET not in said.out + said.err
    assert not holding(project) and not (project / "s").exists(), sorted(set(project.rglob("*")) - set(before))


@pytest.mark.thorough
def test_variables_that_jobs_inherit_are_neither_printed_nor_in_files_of_a_grid(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("Some_Service_Password", f"{SECRET}-too")
    given = ("hydra.job.env_copy=[HF_TOKEN]", "hydra/launcher=local")
    command(*sets(project), *SMALL, *KINDS["grid"], *given, "+hydra.job.env_set.SEEN='${oc.env:HF_TOKEN}'")
    said = capfd.readouterr()
    assert "2 of 2 jobs left a run" in said.out and SECRET not in said.out + said.err
    left = {path.name for path in (project / "s").rglob("*")}
    pickles = {name.rpartition("_")[2] for name in left if name.endswith(".pkl")}
    assert {"config.yaml", "provenance.json", "code.zip", "jobs.jsonl"} <= left
    assert pickles == {"submitted.pkl", "result.pkl"}
    assert not holding(project)


@pytest.mark.thorough
def test_a_search_and_its_trials_neither_write_nor_print_a_secret_variable(
    project: Path,
) -> None:
    arguments = [*sets(project), *SMALL, *SEARCH, "hydra.job.env_copy=[HF_TOKEN]", "tracker=tensorboard"]
    done = warm.run(
        ["-m", "nlu.train", *arguments], cwd=project, env={**os.environ, **SAME_THREADS, "HF_TOKEN": SECRET}
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "trial 0 finished" in said and SECRET not in said, said
    assert (project / "s/journal.log").is_file() and (project / "s/0/tracker").is_dir()
    assert not holding(project)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["run", "grid"])
def test_a_pickled_job_has_no_loader_with_files_that_it_read(
    project: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queue = ("hydra/launcher=slurm", "hydra.launcher.wait=false")
    command(*sets(project), *SMALL, *KINDS[kind], *queue)
    loaders = list[ConfigLoaderImpl]()

    def loaded(loader: ConfigLoaderImpl, state: dict[str, Any]) -> None:
        loader.__dict__.update(state)
        loaders.append(loader)

    monkeypatch.setattr(ConfigLoaderImpl, "__setstate__", loaded, raising=False)
    pickles = list((project / "s").rglob("*_submitted.pkl"))
    for path in pickles:
        pickle.loads(path.read_bytes())
    assert pickles and loaders and all(loader._active_repository is None for loader in loaders)
