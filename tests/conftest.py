"""What every test stands on: a cache of the test session's own, and the same property-test examples each time."""

import gc
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from tests.warm import FOLDER, SESSION

# Before any test module is read, since some of them keep the environment for the processes that they start.
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Workers find in their environment what the process that starts them has set.
    CACHE = TemporaryDirectory(prefix="nlu-tests-")
    os.environ["NLU_CACHE"] = CACHE.name
    SHARED = TemporaryDirectory(prefix="nlu-warm-")
    os.environ[FOLDER], os.environ[SESSION] = SHARED.name, str(os.getpid())
# Bytes are compared, and they are the same only for the same number of threads; read when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def session_cache() -> Path:
    return Path(os.environ["NLU_CACHE"])


@pytest.fixture(autouse=True)
def private_cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests out of the user's cache; one for all of them, since what is in it is found by its content."""
    monkeypatch.setenv("NLU_CACHE", str(session_cache))
    return session_cache


def pytest_collection_finish() -> None:
    """Leave what imports and collection have built out of every later search for garbage."""
    gc.collect()
    gc.freeze()
