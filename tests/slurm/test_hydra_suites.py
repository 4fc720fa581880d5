"""`slurm` passes Hydra's own suites for launchers on a real Slurm."""

import pytest
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite

from tests.launchers.suites import QUIET, Launchers

pytestmark = [pytest.mark.slurm]


@pytest.fixture(autouse=True, scope="module")
def plugins() -> None:
    """Find the plugins before a test that puts back the singletons: Hydra imports each only once."""
    Plugins.instance()


@pytest.mark.parametrize(("launcher_name", "overrides"), [("slurm", ["hydra.launcher.timeout_min=10"])])
class TestLauncher(Launchers):
    pass


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"), [({}, [*QUIET, "hydra/launcher=slurm", "hydra.launcher.timeout_min=10"])]
)
class TestPrograms(IntegrationTestSuite):
    pass
