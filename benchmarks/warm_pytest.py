"""A Python that has imported what tests import of others, and forks a pytest for each line of its input.

A line is JSON: the arguments of pytest, what to add to the environment, and the file that takes what it says. What
comes back is a line with the number of the process, and one with its status when it has ended, negative where a signal
ended it. Nothing of ours is imported before the fork, since a mistake may stand in it.
"""

import gc
import importlib
import json
import os
import resource
import sys
from contextlib import suppress

THEIRS = (
    "torch", "torch.nn.functional", "torch.distributed", "torch.optim", "numpy", "pytest", "hydra", "omegaconf",
    "hydra._internal.hydra", "optuna", "sklearn.metrics", "scipy.stats", "scipy.special", "pyarrow", "tokenizers",
    "safetensors.torch", "rich.progress", "matplotlib.backends.backend_agg", "matplotlib.figure", "sqlalchemy",
    "fsspec",
)  # fmt: skip

MOST_BYTES = 12 << 30
"""A loop without an end may also fill the memory."""


def run(arguments: list[str], output: str) -> int:
    """Run pytest in this process, which is a fork, as `python -m pytest` does."""
    import pytest

    # A separate group, which the caller can kill as a whole.
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    with open(output, "wb") as said, open(os.devnull, "rb") as nothing:
        for place, stream in enumerate((nothing, said, said)):
            os.dup2(stream.fileno(), place)
    sys.argv, sys.path[0] = ["pytest", *arguments], os.getcwd()
    return int(pytest.main(arguments))


def main() -> int:
    for name in THEIRS:
        with suppress(ImportError):
            importlib.import_module(name)
    assert "nlu" not in sys.modules
    gc.collect()
    # Objects that exist are left out of later collections, so the fork does not copy their pages.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.environ.update(request["environment"])
            return run(request["arguments"], request["output"])
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
