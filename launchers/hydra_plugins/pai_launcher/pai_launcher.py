"""The plugin `hydra/launcher=pai`, its keys, and everything that is wrong with their values, at once.

Hydra imports this at every start, so the clients of the services are imported only when their queue is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra_plugins.queue_launcher import queue_launcher

from nlu.config.addresses import address_problems
from nlu.config.redaction import ENDPOINT, PLACE, credential_problems, name_of

if TYPE_CHECKING:
    from nlu.jobs.queue import Queue, QueueContext


PREFIX = "hydra.launcher"
DLC, MAXCOMPUTE = "dlc", "maxcompute"
PYODPS, ODPSCMD = "pyodps", "odpscmd"
RANGES: dict[str, tuple[float, float]] = {
    "workers": (1, 1000), "gpus": (0, 16), "cpus": (0.1, 1000), "memory_gb": (0.1, 10_000), "priority": (1, 9),
    "max_minutes": (0, 60 * 24 * 365),
}  # fmt: skip
REQUIRED = {DLC: ("region", "workspace", "image", "oss_folder"), MAXCOMPUTE: ("region", "project", "oss_folder")}
OTHERS_OF = {
    DLC: ("project", "tables", "client"),
    MAXCOMPUTE: ("workspace", "image", "instance_type", "resource_quota", "max_minutes", "mounts", "work_folder"),
}
"""the keys that a backend does not use"""
OF_TABLES = (name_of("maxcompute", ENDPOINT), name_of("maxcompute", PLACE))
"""variables with the addresses of tables, which jobs get from this machine"""
_MOUNT = re.compile(r"([A-Za-z0-9][\w-]*|[A-Za-z]\w*://((?!:/)\S)+):(/[^/:\s]+)+/?")


@dataclass
class PaiSettings:
    """Keys of `hydra/launcher=pai`; conf/hydra/launcher/pai.yaml explains them."""

    backend: str = DLC
    region: str | None = None
    endpoint: str | None = None
    workspace: str | None = None
    project: str | None = None
    oss_folder: str | None = None
    oss_endpoint: str | None = None
    role: str | None = "default"
    image: str | None = None
    framework_version: str = "pytorch180"
    instance_type: str | None = None
    resource_quota: str | None = None
    workers: int = 1
    mounts: list[str] = field(default_factory=list)
    work_folder: str | None = None
    gpus: int = 1
    gpu_type: str | None = None
    cpus: float = 8
    memory_gb: float = 32
    priority: int | None = None
    max_minutes: int = 0
    tables: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    client: str = PYODPS


def settings_of(values: Mapping[str, Any]) -> PaiSettings:
    """Return the settings in a mapping, which may be the record of an older version with further keys."""
    return PaiSettings(**{item.name: values[item.name] for item in fields(PaiSettings) if item.name in values})


def missing_problems(settings: PaiSettings) -> Iterator[str]:
    """Yield a problem for each key that is null, and that a job of this backend needs."""
    required = REQUIRED.get(settings.backend, ())
    # An endpoint makes the region unnecessary.
    names = [name for name in required if not getattr(settings, name) and not (name == "region" and settings.endpoint)]
    if settings.backend == DLC and not settings.instance_type and not settings.resource_quota:
        names.append("instance_type (or resource_quota)")
    yield from (f"{PREFIX}.{name} is not set, but backend={settings.backend} needs it" for name in names)


def setting_problems(settings: PaiSettings) -> Iterator[str]:
    """Yield everything that is wrong with the settings, except for missing keys."""
    if settings.backend not in (DLC, MAXCOMPUTE):
        yield f"{PREFIX}.backend is {settings.backend}, but must be {DLC} or {MAXCOMPUTE}"
    if settings.client not in (PYODPS, ODPSCMD):
        yield f"{PREFIX}.client is {settings.client}, but must be {PYODPS} or {ODPSCMD}"
    for name, (low, high) in RANGES.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            yield f"{PREFIX}.{name} is {value}, but must be from {low:g} to {high:g}"
    if settings.oss_folder:
        yield from address_problems(settings.oss_folder, f"{PREFIX}.oss_folder")
    # Whoever may see a job can read its variables, also those that an interpolation takes from elsewhere.
    yield from credential_problems(settings.environment, f"{PREFIX}.environment")
    yield from _mount_problems(settings)
    yield from _backend_problems(settings)


def mounts_of(settings: PaiSettings) -> dict[str, str]:
    """Return the sources of mounted folders, by path."""
    found = {}
    for text in settings.mounts:
        source, _, path = text.rpartition(":/")
        found[f"/{path}".rstrip("/") or "/"] = source
    return found


def mount_of(path: str, mounts: Iterable[str]) -> str | None:
    """Return the mount in which an absolute path lies, or None."""
    # Of nested mounts the innermost one holds the path.
    return max((mount for mount in mounts if PurePosixPath(path).is_relative_to(mount)), key=len, default=None)


def _mount_problems(settings: PaiSettings) -> Iterator[str]:
    for text in settings.mounts:
        if not _MOUNT.fullmatch(text):
            yield (
                f"{PREFIX}.mounts holds {text}, but a mount is written SOURCE:/PATH, the source being the id of a data "
                "set (d-...) or an address such as nas://... or oss://..."
            )
    folder, known = settings.work_folder, mounts_of(settings)
    if folder is not None and mount_of(folder, known) is None:
        yield (
            f"{PREFIX}.work_folder is {folder}, but must lie below a path of {PREFIX}.mounts; there is "
            f"{', '.join(known) or 'none'}"
        )
    if settings.workers > 1 and not folder:
        # All machines of one run must see the same folder; each has only its own disk.
        yield (
            f"{PREFIX}.workers is {settings.workers}, but the machines of a job share no folder, which they need to "
            f"train one run; with backend={DLC} mount one into all of them ({PREFIX}.mounts and {PREFIX}.work_folder), "
            f"or take one machine with several GPUs ({PREFIX}.gpus)"
        )


def _backend_problems(settings: PaiSettings) -> Iterator[str]:
    for name in OTHERS_OF.get(settings.backend, ()):
        if getattr(settings, name) not in (None, 0, [], PYODPS):
            yield (
                f"{PREFIX}.{name} is set, but backend={settings.backend} does not use it; leave it out, or choose "
                f"the other backend"
            )
    for name in ("resource_quota", "gpu_type") if settings.instance_type else ():
        if getattr(settings, name):
            yield f"{PREFIX}.instance_type and {PREFIX}.{name} are both set, but exclude each other; leave one out"


def region_endpoint(settings: PaiSettings) -> str:
    """Return the address of the service: a host for DLC, a URL for MaxCompute."""
    if settings.endpoint:
        return settings.endpoint
    if settings.backend == DLC:
        return f"pai-dlc.{settings.region}.aliyuncs.com"
    return f"https://service.{settings.region}.maxcompute.aliyun.com/api"


def store_environment(settings: PaiSettings) -> dict[str, str]:
    """Return the variables by which jobs find the store and tables, without secrets."""
    # Hydra imports this module at every start.
    from nlu.storage.filesystems import ENDPOINT_OF_ALL, OWN_ENDPOINTS, own_endpoints

    found = {}
    if settings.oss_folder and settings.oss_folder.startswith("oss://"):
        if endpoint := settings.oss_endpoint or (
            f"https://oss-{settings.region}-internal.aliyuncs.com" if settings.region else None
        ):
            found[ENDPOINT_OF_ALL] = endpoint
        # Jobs reach the bucket of oss_folder by the region's internal address, and others as this machine does.
        own = {name: place for name, place in own_endpoints().items() if name != settings.oss_folder.split("/")[2]}
        if own:
            found[OWN_ENDPOINTS] = ",".join(f"{name}={place}" for name, place in own.items())
    elif settings.oss_endpoint:
        found["AWS_ENDPOINT_URL"] = settings.oss_endpoint
    found |= {name: os.environ[name] for name in OF_TABLES if os.environ.get(name)}
    if settings.backend == MAXCOMPUTE:
        found.setdefault(OF_TABLES[0], region_endpoint(settings))
    return found | {name: str(value) for name, value in settings.environment.items()}


@dataclass
class PaiLauncherConf(PaiSettings):
    """Jobs on Alibaba Cloud's PAI. DLC, or PAI commands of MaxCompute."""

    _target_: str = "hydra_plugins.pai_launcher.pai_launcher.PaiLauncher"
    wait: bool = True


for group in ("hydra/launcher", "hydra/launcher/types"):
    ConfigStore.instance().store(group=group, name="pai", node=PaiLauncherConf(), provider="pai_launcher")


class PaiLauncher(queue_launcher.QueueLauncher):
    """Jobs on Alibaba Cloud's PAI: DLC, or PAI commands of MaxCompute."""

    queue = "pai"

    @classmethod
    def open_queue(cls, context: QueueContext) -> Queue:
        """Return the queue of a backend. Raises UserError with all that is missing or wrong."""
        from hydra_plugins.pai_launcher._queue import open_pai

        return open_pai(context)
