"""Hydra's own suites for launchers, from the installed hydra-core, as the tests of this package call them."""

from pathlib import Path

import pytest
from hydra.test_utils.launcher_common_tests import LauncherTestSuite
from hydra.test_utils.test_utils import TSweepRunner

QUIET = ["-m", "hydra/hydra_logging=disabled", "hydra/job_logging=disabled"]
"""what Hydra's tests of its own launchers give to the programs of IntegrationTestSuite"""


class Launchers(LauncherTestSuite):
    """Hydra's tests of a launcher, of which one cannot pass over any launcher that pickles the task."""

    @pytest.mark.xfail(reason="cloudpickle 3.1.3 calls the file of a function without a module <dynamic-code>")
    def test_failure_preserves_task_traceback(
        self, hydra_sweep_runner: TSweepRunner, launcher_name: str, overrides: list[str], tmpdir: Path
    ) -> None:
        super().test_failure_preserves_task_traceback(hydra_sweep_runner, launcher_name, overrides, tmpdir)
