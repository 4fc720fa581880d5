"""One of several processes, in which runs of several configurations follow one another.

    RANK=0 WORLD_SIZE=2 ... python -m tests.training.ranks_of_kinds JOBS

JOBS is a file of pickled (configuration, folder); beside each folder is a file at which the processes find each other.
PACKAGES is a folder of further packages that the configurations may name. LOCKSTEP has the processes meet in every
forward pass and for every tensor that is saved. PROVENANCE_TAKES_S makes the first process slow where it writes what
ran, and fails it if the other went on meanwhile.
"""

import os
import pickle
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlu.config.placement import MEETING
from nlu.training import build, finish, single
from nlu.training.parallel import Replicated
from nlu.training.ranks import Ranks
from tests.training.in_process import start


def slow_down(seconds: float) -> None:
    """Have the first process write provenance.json late; the second notes when it comes to the end of its run."""
    is_first, write, end = os.environ["RANK"] == "0", single.write_provenance, finish.finish

    def write_late(run_dir: Path, *arguments: Any, **named: Any) -> None:
        if is_first:
            time.sleep(seconds)
            assert not (run_dir / "finishing.rank1").exists(), "another process did not wait"
        write(run_dir, *arguments, **named)

    def end_noted(run: Any) -> None:
        if not is_first:
            (run.run_dir / "finishing.rank1").touch()
        end(run)

    single.write_provenance, finish.finish = write_late, end_noted  # type: ignore[assignment]


class Lockstep(Replicated):
    """A strategy under which a process that leaves out a pass or a tensor is found, as one that holds a part of each
    tensor would need it."""

    def __init__(self, ranks: Ranks):
        super().__init__(ranks)
        self._met = 0

    def meet(self, what: str) -> None:
        """Wait for all processes, and require that they are at the same place."""
        self._met += 1
        said = self.ranks.gather_to_first((self._met, what))
        assert self.ranks.from_first(len(set(said)) == 1 if said else None), f"not all are at {what}"

    def prepare(self, module: Any) -> Any:
        module = super().prepare(module)
        module.register_forward_pre_hook(lambda *of: self.meet(f"a pass, training: {module.training}"))
        return module

    def state_dict(self, module: Any) -> dict[str, Tensor]:
        return self.gather(super().state_dict(module))

    def load(self, module: Any, weights: dict[str, Tensor]) -> None:
        self.meet("the weights")
        super().load(module, weights)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name in tensors:
            self.meet(name)
        # What another process than the first gets must not be used.
        return {name: tensor if self.ranks.is_first else torch.full_like(tensor, 9) for name, tensor in tensors.items()}

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        self.meet(f"a tensor {tuple(like.shape)}")
        return super().place(whole, like)


def main(jobs: Path) -> None:
    if "LOCKSTEP" in os.environ:
        build.strategy = Lockstep
    if packages := os.environ.get("PACKAGES"):
        sys.path.insert(0, packages)
    if seconds := os.environ.get("PROVENANCE_TAKES_S"):
        slow_down(float(seconds))
    for config, run_dir in pickle.loads(jobs.read_bytes()):
        os.environ[MEETING] = f"file://{run_dir}-meeting"
        start(config, run_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # The communication threads of torch now and then abort a process that tears itself down.
    os._exit(0)
