"""A Hydra program of a few lines that reports to its trial: what a search drives, without the weight of a real run.

It climbs to its value in `steps` steps of 100 examples, saves its step before each report, and notes in runs.txt every
time it was started: process, first step, devices, threads.
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
fail: false
die_once: false
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


def climb(config: DictConfig, folder: Path) -> float | None:
    """Go on from the saved step to the end or until the trial is pruned; returns the value where there is no trial."""
    from nlu.sweeps.channel import COMPLETE, PRUNED, open_trial

    saved = folder / "state.json"
    step = json.loads(saved.read_text())["step"] if saved.exists() else 0
    held = [os.environ.get(name) or "-" for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    with open(folder / "runs.txt", "a") as file:
        file.write(f"{os.getpid()} {step} {' '.join(held)}\n")
    if config.fail:
        raise RuntimeError(f"lr {config.lr} is no good")
    if config.die_once and step == 2 and not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(9)
    trial = open_trial(config.trial) if config.trial else None
    while step < config.steps:
        time.sleep(config.step_s)
        step += 1
        value = value_of(config) * step / config.steps
        temporary = saved.with_suffix(".tmp")
        temporary.write_text(json.dumps({"step": step}))
        temporary.rename(saved)
        if trial and trial.report(100 * step, value) and step < config.steps:
            trial.finish(PRUNED, folder, value=value, examples=100 * step)
            return None
        if config.die_once and step == 2 and not (folder / "died").exists():
            (folder / "died").touch()
            os._exit(9)
    if trial:
        trial.finish(COMPLETE, folder, value=value, examples=100 * step)
    return value


def main(config: DictConfig) -> float | None:
    folder = Path(HydraConfig.get().runtime.output_dir)
    if config.trial is None:
        return climb(config, folder)
    from nlu.sweeps.channel import FAILED, last_line, only_job, open_trial, record_failure

    trial = open_trial(config.trial)
    with only_job(folder):
        if trial.is_over:
            return None
        trial.claim()
        try:
            return climb(config, folder)
        except Exception as error:
            trial.finish(FAILED, folder, error=last_line(error), log_file=record_failure(folder, error))
            raise


if __name__ == "__main__":
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="program", node=OmegaConf.create(CONFIG))
    hydra.main(config_path=None, config_name="program")(main)()
