"""Types and defaults of the launchers' keys. Hydra imports this at every start, so it imports little.

The commands of nlu read conf/hydra/launcher/*.yaml, which explain the keys and take their types from
`hydra/launcher/types`. Other programs that find this plugin have the same choices with the same defaults.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf

LAUNCHERS = "hydra_plugins.queue_launcher.queue_launcher"


@dataclass
class LocalLauncherConf:
    """Processes of this machine, started by submitit."""

    _target_: str = f"{LAUNCHERS}.LocalLauncher"
    timeout_min: int | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    tasks_per_node: int | None = 1
    mem_gb: int | None = None
    nodes: int = 1
    name: str = "${hydra.job.name}"
    stderr_to_stdout: bool = False
    submitit_folder: str = "${hydra.sweep.dir}/.submitit/%j"
    wait: bool = True


@dataclass
class SubmititSlurmLauncherConf(SlurmQueueConf):
    """Slurm with the keys of submitit's own plugin."""

    _target_: str = f"{LAUNCHERS}.SlurmLauncher"
    wait: bool = True


@dataclass
class SlurmLauncherConf:
    """Jobs of Slurm, a grid as one array. A null leaves a key to the cluster's own default."""

    _target_: str = f"{LAUNCHERS}.SlurmLauncher"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    gpus: int | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    timeout_min: int = 60
    signal_delay_s: int = 120
    max_num_timeout: int = 100
    array_parallelism: int = 256
    trials_per_job: int = 1
    container: str | None = None
    container_mounts: str | None = None
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    srun_args: list[str] = field(default_factory=list)
    name: str = "${hydra.job.name}"
    submitit_folder: str = "${hydra.sweep.dir}/.submitit/%j"
    wait: bool = True


def register() -> None:
    """Register the choices of hydra/launcher; two of them replace those of submitit's plugin."""
    store = ConfigStore.instance()
    nodes = {
        "submitit_local": LocalLauncherConf,
        "submitit_slurm": SubmititSlurmLauncherConf,
        "slurm": SlurmLauncherConf,
    }
    for name, node in nodes.items():
        for group in ("hydra/launcher", "hydra/launcher/types"):
            store.store(group=group, name=name, node=node(), provider="queue_launcher", replace=True)


register()
