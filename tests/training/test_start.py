"""What a run has imported when its first step is done: nothing unused, nothing only for evaluations or figures."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.runs import QUICK, REPOSITORY, SAME_THREADS, TINY, files

UNNEEDED = {"sklearn", "scipy", "matplotlib", "pandas", "transformers", "sympy"}
COMPILER = ("torch._dynamo", "torch._inductor")
"""which torch's own optimizers import at their first use"""

LIST_MODULES_AFTER_A_STEP = """
import runpy, sys
from pathlib import Path
from nlu.training.step import Stepper

listing, step = Path(sys.argv.pop(1)), Stepper.step

def first_step(self, *arguments, **named):
    result = step(self, *arguments, **named)
    if not listing.exists():
        listing.write_text("\\n".join(sys.modules))
    return result

Stepper.step = first_step
runpy.run_module("nlu.train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.thorough
def test_a_first_step_imports_nothing_that_only_the_end_or_a_compiler_needs(tmp_path: Path) -> None:
    listing = tmp_path / "modules"
    command = [
        sys.executable, "-c", LIST_MODULES_AFTER_A_STEP, listing, *TINY, *QUICK, *files(tmp_path),
        f"hydra.run.dir={tmp_path}/run",
    ]  # fmt: skip
    # A separate cache: building the store of the rows counts too.
    environment = {**SAME_THREADS, "NLU_CACHE": str(tmp_path / "cache")}
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=1800, env=environment, check=True)
    modules = listing.read_text().split("\n")
    assert "torch" in modules
    assert not {name.partition(".")[0] for name in modules} & UNNEEDED
    assert not [name for name in modules if name.startswith(COMPILER)]
