"""Memory that one batch frees serves the next one."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from nlu.training.ranks import keep_freed_memory

keep_freed_memory()
def batch():
    for _ in range(4):
        torch.ones(4 << 20).add_(1)
for _ in range(3):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has these settings")
def test_a_batch_reuses_the_memory_of_the_previous_one() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    # Each of them takes 16,384 pages of 4 KiB, where nothing is kept.
    assert int(done.stdout) < 10_000
