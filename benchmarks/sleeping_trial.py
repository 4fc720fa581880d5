"""A Hydra program that sleeps: a trial of a known length, the same for every sweeper. See sweep_idle.py.

Each job appends a line to $NLU_IDLE_LOG: when its process was launched, when its sleep began, and when it ended.
"""

import json
import os
import sys
import time
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

sys.path.append(str(Path(__file__).resolve().parents[1] / "launchers"))
CONFIG = {
    "place": 0, "mean_s": 2.0, "trials": 16, "trial": None, "resume": "never",
    "hydra": {"sweep": {"subdir": "${hydra:job.num}"}},
}  # fmt: skip
ConfigStore.instance().store(name="sleeping_trial", node=OmegaConf.create(CONFIG))


def length_s(place: int, trials: int, mean_s: float) -> float:
    """Seconds that a trial sleeps: from 0.1 to 1.9 times the mean, evenly spread, in an order that looks random."""
    # 7 does not divide the usual numbers of trials, so every length occurs once.
    rank = place * 7 % trials
    return mean_s * (0.1 + 1.8 * rank / (trials - 1))


def launched_s() -> float:
    """When the process that submitit started for this job (our parent) came to be, as time.time()."""
    # After the name of the program, which may contain blanks and brackets. The 20th field from there is the start of
    # the process, in clock ticks since the machine was started.
    ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
    booted_s = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    return booted_s + ticks / os.sysconf("SC_CLK_TCK")


def main(config: DictConfig) -> float:
    """Sleep; the value is of no interest. Our sweeper hands a trial, as to nlu.train, and learns there how it ended."""
    began_s = time.time()
    time.sleep(length_s(config.place, config.trials, config.mean_s))
    if config.trial is not None:
        from nlu.search.channel import COMPLETE, open_trial

        open_trial(config.trial).finish(COMPLETE, value=float(config.place), examples=1)
    line = json.dumps({"place": config.place, "launched": launched_s(), "began": began_s, "ended": time.time()})
    descriptor = os.open(os.environ["NLU_IDLE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # One write to a file opened for appending, so that lines of several jobs do not mix.
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)
    return float(config.place)


if __name__ == "__main__":
    hydra.main(config_path=None, config_name="sleeping_trial")(main)()
