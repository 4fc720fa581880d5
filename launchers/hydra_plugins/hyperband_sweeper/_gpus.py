"""The GPUs of this machine, and which of them each trial on this machine uses."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from nlu.config.errors import UserError
from nlu.config.words import counted


@dataclass(frozen=True)
class Need:
    """The processes and GPUs of a trial."""

    processes: int = 1
    gpus: int = 1


def need_of(config: DictConfig) -> Need:
    """Return the need of a trial of this configuration; a program without trainer.devices is one process."""
    devices = OmegaConf.select(config, "trainer.devices")
    processes = devices if isinstance(devices, int) and devices > 0 else 1
    return Need(processes, 0 if OmegaConf.select(config, "trainer.device") == "cpu" else processes)


class Gpus:
    """GPUs, each of which one trial uses at a time. A GPU that is twice in `names` counts as two."""

    def __init__(self, names: Sequence[str]):
        self._free = list(names)
        self._order = list(names)
        self._taken: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def at_once(self, gpus: int, wanted: int) -> int:
        """Return how many trials with `gpus` GPUs each can run at once, at most `wanted`, at least one."""
        return min(wanted, max(1, len(self) // gpus)) if self._order and gpus else wanted

    def require(self, gpus: int) -> None:
        """Raise UserError if a trial would never get so many GPUs."""
        if self._order and gpus > len(self):
            raise UserError(
                f"trainer.devices is {gpus}, but a trial on this machine can have {counted(len(self), 'GPU')} only; "
                f"set trainer.devices to <= {len(self)}, or trainer.device=cpu"
            )

    def has_free(self, gpus: int) -> bool:
        return not self._order or gpus <= len(self._free)

    def take(self, number: int, gpus: int) -> str | None:
        """Return the value of CUDA_VISIBLE_DEVICES for a trial; None without GPUs, or if it needs none."""
        if not self._order or not gpus:
            return None
        assert self.has_free(gpus) and number not in self._taken
        self._taken[number], self._free = self._free[:gpus], self._free[gpus:]
        return ",".join(self._taken[number])

    def give_back(self, number: int) -> None:
        """Free the GPUs of a trial. They keep the order of the machine, so that neighbors are used together."""
        self._free = sorted(self._free + self._taken.pop(number, []), key=self._order.index)


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that CUDA would see, without importing torch."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index in range(len(list(driver.iterdir())))] if driver.is_dir() else []
