"""The addresses of the running servers, and a separate place on each for every test."""

import importlib.util
import os
import sys
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where the servers and the processes of these tests are

# `make test` reads these files too, to leave their tests out, and does not install what only they need.
if importlib.util.find_spec("oss2") is None:
    collect_ignore_glob = ["test_*.py"]


def _address(variable: str) -> str:
    if variable not in os.environ:
        pytest.fail(f"{variable} is not set: these tests need running servers; start them by 'make test-services'")
    return os.environ[variable]


@pytest.fixture
def s3_url() -> str:
    """A prefix where nothing is."""
    return f"{_address('NLU_TEST_S3')}/{uuid.uuid4().hex}"


@pytest.fixture
def postgresql_url() -> str:
    """A database shared by all tests, as sweeps would: they take separate study names."""
    return _address("NLU_TEST_POSTGRESQL")


@pytest.fixture(params=["postgresql", "s3"])
def storage_url(request: pytest.FixtureRequest) -> str:
    """Either kind of storage that many hosts can share."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def study_name() -> str:
    """A name that no other test takes."""
    return f"study-{uuid.uuid4().hex}"
