"""A sweep of processes on each shared storage: broken by a kill, continued, and no finished trial begun again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from nlu.search.channel import OUTCOME
from nlu.search.storage.open_study import open_storage
from tests.few import first

pytestmark = pytest.mark.services

PROGRAM = Path(__file__).parents[1] / "launchers/program.py"
TRIALS, STEPS = 5, 4


def command(folder: Path, storage_url: str, study_name: str) -> list[str]:
    return [
        sys.executable, str(PROGRAM), "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random",
        "hydra/launcher=local", f"hydra.sweeper.n_trials={TRIALS}", "hydra.sweeper.n_jobs=2",
        "hydra.sweeper.pruner=none", f"hydra.sweeper.storage={storage_url}", f"hydra.sweeper.study_name={study_name}",
        f"hydra.sweep.dir={folder}", "lr=interval(0.0,1.0)", f"steps={STEPS}", "step_s=0.2",
    ]  # fmt: skip


def open_study(storage_url: str, study_name: str) -> optuna.Study:
    return optuna.load_study(study_name=study_name, storage=open_storage(storage_url))


def finished(storage_url: str, study_name: str) -> list[str]:
    """The trials whose jobs have written their outcome."""
    return [str(trial.number) for trial in open_study(storage_url, study_name).trials if OUTCOME in trial.user_attrs]


def starts_of(folder: Path) -> dict[str, str]:
    """For each trial, a line for every process that took steps for it."""
    return {path.parent.name: path.read_text() for path in folder.glob("*/runs.txt")}


# test_keeping.py kills a search whose journal is on S3.
@pytest.mark.parametrize("storage_url", first(1, ["postgresql", "s3"]), indirect=True)
def test_a_sweep_broken_by_a_kill_is_continued_and_no_finished_trial_begins_again(
    tmp_path: Path, storage_url: str, study_name: str
) -> None:
    folder = tmp_path / "sweep"
    arguments = command(folder, storage_url, study_name)
    sweep = subprocess.Popen(arguments, start_new_session=True, stderr=subprocess.PIPE, text=True)
    while sweep.poll() is None and len(starts_of(folder)) < 4:
        time.sleep(0.05)
    assert sweep.poll() is None, sweep.communicate()[1]
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    ended = finished(storage_url, study_name)
    assert ended
    before = starts_of(folder)

    continued = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert continued.returncode == 0, continued.stderr
    study = open_study(storage_url, study_name)
    assert [(trial.number, trial.state.name) for trial in study.trials] == [(n, "COMPLETE") for n in range(TRIALS)]
    for trial in study.trials:
        assert trial.value == pytest.approx(1 - abs(trial.user_attrs["values"]["lr"] - 0.01))
        # The program saves its step before it reports: the report that a kill met is lost, and no other.
        missing = {100 * step for step in range(1, STEPS + 1)} - set(trial.intermediate_values)
        assert len(missing) <= 1 and max(trial.intermediate_values) == 100 * STEPS
    after = starts_of(folder)
    assert {name: after[name] for name in ended} == {name: before[name] for name in ended}

    secrets = [os.environ["PGPASSWORD"], os.environ["AWS_SECRET_ACCESS_KEY"]]
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    texts += [continued.stdout.encode(), continued.stderr.encode()]
    assert not any(secret.encode() in text for secret in secrets for text in texts)


def test_two_hosts_that_share_a_study_and_no_folder_never_run_it_together(
    tmp_path: Path, postgresql_url: str, study_name: str
) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    disks = [tmp_path / "disk-1", tmp_path / "disk-2"]

    def on_host(disk: Path) -> subprocess.Popen[str]:
        """Start the same command where the same path is the folder of another disk."""
        disk.mkdir(exist_ok=True)
        mount = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1"; shift; exec "$@"', str(disk), str(folder)]
        ours = [*mount, *command(folder, postgresql_url, study_name)]
        return subprocess.Popen(ours, stderr=subprocess.PIPE, text=True)

    first = on_host(disks[0])
    while first.poll() is None and len(starts_of(disks[0])) < 2:
        time.sleep(0.05)
    refused = on_host(disks[1]).communicate(timeout=120)[1]
    assert f"belongs to the sweep folder {folder}, and {folder} does not hold it" in refused
    assert not starts_of(disks[1]) and first.communicate(timeout=300)[1] is not None and first.returncode == 0
    assert finished(postgresql_url, study_name) == sorted(starts_of(disks[0]))
