"""A good neighbour: `local` passes Hydra's own suites, and the official plugin is what it is without nlu."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite
from hydra.test_utils.test_utils import TSweepRunner
from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf, SlurmQueueConf
from omegaconf import OmegaConf

from tests.launchers.searches import ENVIRONMENT, REPOSITORY, search, states

QUIET = ["-m", "hydra/hydra_logging=disabled", "hydra/job_logging=disabled"]
"""what Hydra's tests of its own launchers give to the programs of IntegrationTestSuite"""
PROGRAM = """
import hydra
from omegaconf import OmegaConf

def fails(lr):
    raise KeyError(f"no rate {lr}")

@hydra.main(config_path=None)
def main(config):
    return 3 if config.lr > 0 else fails(config.lr)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True, scope="module")
def plugins() -> None:
    """Find the plugins before a test that puts back the singletons: Hydra imports each only once."""
    Plugins.instance()


@pytest.mark.parametrize(
    ("launcher_name", "overrides"),
    [("local", ["hydra.launcher.timeout_min=2"])],
)
class TestLauncher(LauncherTestSuite):
    @pytest.mark.xfail(reason="cloudpickle 3.1.3 calls the file of a function without a module <dynamic-code>")
    def test_failure_preserves_task_traceback(
        self, hydra_sweep_runner: TSweepRunner, launcher_name: str, overrides: list[str], tmpdir: Path
    ) -> None:
        super().test_failure_preserves_task_traceback(hydra_sweep_runner, launcher_name, overrides, tmpdir)


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"), [({}, [*QUIET, "hydra/launcher=local", "hydra.launcher.timeout_min=2"])]
)
class TestPrograms(IntegrationTestSuite):
    pass


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, "program.py", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(("name", "keys"), [("submitit_local", LocalQueueConf), ("submitit_slurm", SlurmQueueConf)])
def test_another_program_gets_the_official_launcher_under_its_name(tmp_path, name, keys):
    shown = run(tmp_path, f"hydra/launcher={name}", "--cfg", "hydra", "-p", "hydra.launcher")
    assert yaml.safe_load(shown.stdout) == OmegaConf.to_container(OmegaConf.structured(keys)), shown.stderr


def test_a_launcher_of_a_program_keeps_its_name(tmp_path):
    own = f"ConfigStore.instance().store('slurm', {{'_target_': 'mine'}}, group='hydra/launcher')\n{PROGRAM}"
    (tmp_path / "own.py").write_text(f"from hydra.core.config_store import ConfigStore\n{own}")
    command = ["own.py", "hydra/launcher=slurm", "--cfg", "hydra", "-p", "hydra.launcher"]
    shown = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert shown.stdout == "# @package hydra.launcher\n_target_: mine\n" and shown.stderr == ""


def test_an_integer_is_a_value_and_an_error_says_where_it_was_raised(tmp_path):
    done = run(tmp_path, "-m", "hydra/launcher=local", "hydra.sweep.dir=grid", "+lr=1,-1")
    assert "job 0: done" in done.stderr and "job 1: failed; its log: " in done.stderr and done.returncode == 1
    assert "line 6, in fails" in done.stderr and "KeyError: 'no rate -1'" in done.stderr


def test_a_search_runs_its_trials_one_at_a_time_over_the_official_launcher(tmp_path, monkeypatch):
    # Only our launchers pass on where a checkout has them.
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", f"{REPOSITORY}:{REPOSITORY}/launchers")
    official = ("hydra/launcher=submitit_local", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=2")
    said = search(tmp_path / "s", *official, "lr=interval(0.01,0.02)")
    assert "so trials run one at a time; hydra/launcher=local runs them side by side" in said
    assert states(tmp_path / "s") == ["COMPLETE", "COMPLETE"]
