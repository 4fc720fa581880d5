"""Memory that one batch frees serves the next one."""

import os
import subprocess
import sys

import pytest

from nlu.training.ranks import OWN_SETTINGS

FAULTS = """
import resource, torch
from nlu.training.ranks import keep_freed_memory

kept = keep_freed_memory()
def batch():
    for _ in range(4):
        torch.ones(4 << 20).add_(1)
for _ in range(3):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    batch()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[bool, int]:
    """Return whether memory is kept, and how often the system was asked for a page in five batches of 64 MiB."""
    own = {name: value for name, value in os.environ.items() if name not in OWN_SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env={**own, **environment}, capture_output=True, text=True, check=True
    )  # fmt: skip
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has these settings")
def test_a_batch_reuses_the_memory_of_the_previous_one() -> None:
    kept, count = faults()
    # Each of them takes 16,384 pages of 4 KiB, where nothing is kept.
    assert kept and count < 10_000


@pytest.mark.thorough
def test_settings_of_the_environment_are_kept() -> None:
    assert not faults(MALLOC_MMAP_THRESHOLD_="65536")[0]
