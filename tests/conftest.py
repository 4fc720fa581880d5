"""What every test stands on: a cache of the test session's own, and the same property-test examples each time."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def private_cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests out of the user's cache; one for all of them, since what is in it is found by its content."""
    monkeypatch.setenv("NLU_CACHE", str(session_cache))
    return session_cache
