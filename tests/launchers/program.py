"""A Hydra program of a few lines that reports to its trial: what a search drives, without the weight of a real run.

It climbs to its value in `steps` steps of 100 examples, saves its step before each report, and notes in runs.txt every
time it was started: process, first step, devices, threads. Where the sweep folder has a file named away, its mirror
does not answer. With dies=true its process dies before it has saved anything.
"""

import json
import os
import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

sys.path.append(str(Path(__file__).resolve().parents[2] / "launchers"))

CONFIG = """
lr: 0.1
kind: a
steps: 4
step_s: 0.0
latency_ms: 5.0
parameters: 1000
fail: false
dies: false
trainer:
  devices: 1
trial: null
resume: never
hydra:
  output_subdir: null
  sweep:
    dir: never
    subdir: ${hydra:job.num}
"""


def value_of(config: DictConfig) -> float:
    """What a trial reaches at its last step: the nearer lr is to 0.01, the more."""
    return 1.0 - abs(config.lr - 0.01)


class Stop(Exception):
    """Asks the job to stop with its state saved."""


def climb(config: DictConfig, folder: Path) -> float:
    """Continue from the saved step to the end or until the trial is pruned; returns the value, result.json has all."""
    from nlu.search.channel import open_trial

    saved = folder / "state.json"
    step = json.loads(saved.read_text())["step"] if saved.exists() else 0
    held = [os.environ.get(name) or "-" for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    with open(folder / "runs.txt", "a") as file:
        file.write(f"{os.getpid()} {step} {' '.join(held)}\n")
    if config.fail:
        raise RuntimeError(f"lr {config.lr} is too high")
    if config.dies:
        os._exit(9)
    if (folder.parent / "away").exists():
        from nlu.storage.pointer import MirrorUnavailable

        raise MirrorUnavailable("the mirror is away")
    trial = open_trial(config.trial) if config.trial else None
    is_pruned = False
    if trial and step and step < config.steps and trial.pauses(100 * step):
        raise Stop
    while step < config.steps and not is_pruned:
        time.sleep(config.step_s)
        step += 1
        value = value_of(config) * step / config.steps
        temporary = saved.with_suffix(".tmp")
        temporary.write_text(json.dumps({"step": step}))
        temporary.rename(saved)
        is_pruned = bool(trial and trial.report(100 * step, value) and step < config.steps)
        is_paused = bool(trial and not is_pruned and step < config.steps and trial.pauses(100 * step))
        if is_paused:
            raise Stop
    result = {"best": {"metric": "height", "value": value}, "pruned": is_pruned, "examples": 100 * step}
    if trial and trial.quantities:
        # As a measurement would, it differs each time.
        result["measured"] = {"latency_ms": config.latency_ms + time.time() % 0.01, "parameters": config.parameters}
    (folder / "result.json").write_text(json.dumps(result))
    return value


def main(config: DictConfig) -> float:
    folder = Path(HydraConfig.get().runtime.output_dir)
    if config.trial is None:
        return climb(config, folder)
    from nlu.search.channel import run_trial

    def run() -> int:
        try:
            climb(config, folder)
        except Stop:
            return 75
        return 0

    return run_trial(config.trial, folder, run)


if __name__ == "__main__":
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="program", node=OmegaConf.create(CONFIG))
    hydra.main(config_path=None, config_name="program")(main)()
