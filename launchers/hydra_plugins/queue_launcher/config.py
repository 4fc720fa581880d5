"""Keys of hydra/launcher=local and slurm, imported at every start; conf/hydra/launcher/*.yaml explain them."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore


@dataclass
class LocalLauncherConf:
    """Processes of this machine. A null leaves a key to the command."""

    _target_: str = "hydra_plugins.queue_launcher.queue_launcher.LocalLauncher"
    gpus: int | None = None
    timeout_min: int | None = None
    name: str = "${hydra.job.name}"
    submitit_folder: str = "${hydra.sweep.dir}/.submitit/%j"
    wait: bool = True


@dataclass
class SlurmLauncherConf:
    """Jobs of Slurm, a grid as one array. A null leaves a key to the cluster's own default."""

    _target_: str = "hydra_plugins.queue_launcher.queue_launcher.SlurmLauncher"
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
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    srun_args: list[str] = field(default_factory=list)
    name: str = "${hydra.job.name}"
    submitit_folder: str = "${hydra.sweep.dir}/.submitit/%j"
    wait: bool = True


for group in ("hydra/launcher", "hydra/launcher/types"):
    for name, keys in (("local", LocalLauncherConf()), ("slurm", SlurmLauncherConf())):
        # What a program itself has under such a name stays.
        with suppress(ValueError):
            ConfigStore.instance().store(name, keys, group=group, provider="queue_launcher", replace=False)
