"""The tests of this folder need the cluster that run.py starts."""

import os
from collections.abc import Iterator

import pytest

from tests.slurm.works import jobs_cancelled


@pytest.fixture(autouse=True)
def cluster() -> Iterator[None]:
    """The running cluster, without jobs of a test before."""
    if "NLU_TEST_SLURM" not in os.environ:
        pytest.fail("NLU_TEST_SLURM is not set: these tests need a separate Slurm; start it by 'make test-slurm'")
    with jobs_cancelled():
        yield
