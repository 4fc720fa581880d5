"""The keys of `hydra/launcher=pai`, and everything that is wrong with their values, at once."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from nlu.config.errors import UserError
from nlu.config.nearest import nearest
from nlu.storage.environment import ENDPOINT, PLACE, name_of
from nlu.storage.redaction import credential_problems, is_secret_name

PREFIX = "hydra.launcher"
DLC, MAXCOMPUTE = "dlc", "maxcompute"
PYODPS, ODPSCMD = "pyodps", "odpscmd"
STORES = ("oss", "s3")
RANGES: dict[str, tuple[float, float]] = {
    "workers": (1, 1000), "gpus": (0, 16), "cpus": (0.1, 1000), "memory_gb": (0.1, 10_000), "priority": (1, 9),
    "max_minutes": (0, 60 * 24 * 365), "code_limit_mb": (0.1, 5_000),
}  # fmt: skip
REQUIRED = {DLC: ("region", "workspace", "image", "oss_folder"), MAXCOMPUTE: ("region", "project", "oss_folder")}
MEANINGS = {
    "region": "the region of the service, such as cn-hangzhou",
    "workspace": "the number of the PAI workspace",
    "project": "the MaxCompute project",
    "image": "the container image that has Python and what nlu needs",
    "oss_folder": "where code and runs are kept, oss://BUCKET/FOLDER",
    "instance_type": "the machine of a worker, such as ecs.gn6v-c8g1.2xlarge; empty where a quota has it",
    "resource_quota": "the quota that the job takes its machines from",
}
"""what a key is, for the question on a terminal"""
OF_TABLES = (name_of("maxcompute", ENDPOINT), name_of("maxcompute", PLACE))
"""variables with the addresses of tables, which jobs get from this machine"""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOUNT = re.compile(r"([A-Za-z0-9][\w-]*|[A-Za-z]\w*://((?!:/)\S)+):(/[^/:\s]+)+/?")
_ROLE = re.compile(r"default|acs:ram::\d+:role/\S+")


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
    python: str = "python3"
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    include: list[str] = field(default_factory=list)
    code_limit_mb: float = 100.0


def settings_of(values: Mapping[str, Any]) -> PaiSettings:
    """Return the settings in a mapping. Raises UserError for unknown keys."""
    known = {item.name for item in fields(PaiSettings)}
    problems = [
        f"{PREFIX}.{name} is not a key of hydra/launcher=pai; did you mean {PREFIX}.{nearest(name, known, 1)[0]}?"
        for name in values
        if name not in known
    ]
    if problems:
        raise UserError(*problems)
    return PaiSettings(**values)


def missing(settings: PaiSettings) -> list[str]:
    """Return the keys that are null, and that a job of this backend needs."""
    required = REQUIRED.get(settings.backend, ())
    # An endpoint makes the region unnecessary.
    names = [name for name in required if not getattr(settings, name) and not (name == "region" and settings.endpoint)]
    if settings.backend == DLC and not settings.instance_type and not settings.resource_quota:
        names.append("instance_type")
    return names


def setting_problems(settings: PaiSettings) -> Iterator[str]:
    """Yield everything that is wrong with the settings, except for missing keys."""
    if settings.backend not in (DLC, MAXCOMPUTE):
        near = nearest(settings.backend, [DLC, MAXCOMPUTE])
        yield f"{PREFIX}.backend is {settings.backend}, but must be dlc or maxcompute" + (
            f"; did you mean {near[0]}?" if near else ""
        )
    if settings.client not in (PYODPS, ODPSCMD):
        yield f"{PREFIX}.client is {settings.client}, but must be {PYODPS} or {ODPSCMD}"
    for name, (low, high) in RANGES.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            yield f"{PREFIX}.{name} is {value}, but must be from {low:g} to {high:g}"
    if settings.oss_folder:
        yield from _folder_problems(settings.oss_folder)
    if settings.role is not None and not _ROLE.fullmatch(settings.role):
        yield (
            f"{PREFIX}.role is {settings.role}, but must be acs:ram::UID:role/NAME, default for PAI's own role, or null"
        )
    for name, commands in (("before", settings.before), ("after", settings.after)):
        for text in commands:
            if not re.fullmatch(r"\w+(\.\w+)*(\s.*)?", text, re.DOTALL):
                yield (
                    f"{PREFIX}.{name} holds {text!r}, but a command is written MODULE ARGUMENT ..., as in "
                    "nlu.preprocess"
                )
    if settings.gpu_type is not None and not re.fullmatch(r"[\w.-]+", settings.gpu_type):
        yield f"{PREFIX}.gpu_type is {settings.gpu_type!r}, but must be the name of a kind of GPU, such as V100"
    elif settings.gpu_type is not None and settings.gpus == 0:
        yield f"{PREFIX}.gpu_type is {settings.gpu_type}, but {PREFIX}.gpus is 0; leave out one of them"
    for table in settings.tables:
        if not re.fullmatch(r"odps://[^/]+/tables/[^/]+(/[^/]+=[^/]+)*", table):
            yield f"{PREFIX}.tables holds {table}, but a table is written odps://PROJECT/tables/NAME[/pt=VALUE]"
    for name, value in settings.environment.items():
        if not _VARIABLE.fullmatch(name):
            yield f"{PREFIX}.environment names {name}, which is not a name of a variable"
        elif is_secret_name(name) or list(credential_problems(str(value))):
            yield (
                f"{PREFIX}.environment.{name} has the name of a secret or holds one, which anyone who may see the job "
                f"could read; leave it out, and give the job a role ({PREFIX}.role)"
            )
    yield from _mount_problems(settings)
    yield from _backend_problems(settings)


def _folder_problems(folder: str) -> Iterator[str]:
    scheme, separator, rest = folder.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not separator or scheme not in STORES or not bucket or not prefix.strip("/"):
        yield f"{PREFIX}.oss_folder is {folder}, but must be oss://BUCKET/FOLDER, where jobs find it"
    elif set(prefix) & set("*?[]#\"'`$\\ \n"):
        yield f"{PREFIX}.oss_folder is {folder}, which holds a special character; choose another"
    else:
        yield from credential_problems(folder, f"{PREFIX}.oss_folder")


def mounts_of(settings: PaiSettings) -> dict[str, str]:
    """Return the sources of mounted folders, by path."""
    found = {}
    for text in settings.mounts:
        source, _, path = text.rpartition(":/")
        found[f"/{path}".rstrip("/") or "/"] = source
    return found


def mount_of(path: str, mounts: Iterable[str]) -> str | None:
    """Return the mount in which an absolute path lies, or None."""
    if ".." in path.split("/"):
        return None
    # Of nested mounts the innermost one holds the path.
    return max((mount for mount in mounts if PurePosixPath(path).is_relative_to(mount)), key=len, default=None)


def _mount_problems(settings: PaiSettings) -> Iterator[str]:
    for text in settings.mounts:
        if not _MOUNT.fullmatch(text) or ".." in text.split("/"):
            yield (
                f"{PREFIX}.mounts holds {text}, but a mount is written SOURCE:/PATH, the source being the id of a data "
                "set (d-...) or an address such as nas://... or oss://..."
            )
    yield from credential_problems(settings.mounts, f"{PREFIX}.mounts")
    if len(mounts_of(settings)) < len(settings.mounts):
        yield f"{PREFIX}.mounts has two sources for one path; give each of them another path"
    folder, known = settings.work_folder, mounts_of(settings)
    if folder is not None and mount_of(folder, known) is None:
        yield (
            f"{PREFIX}.work_folder is {folder}, but must lie below a path of {PREFIX}.mounts; there is "
            f"{', '.join(known) or 'none'}"
        )
    if settings.workers > 1 and not folder:
        mounted = (
            f"mount one into all of them and have jobs work there ({PREFIX}.mounts and {PREFIX}.work_folder)"
            if settings.backend == DLC
            else f"take {PREFIX}.backend={DLC}, which mounts folders"
        )
        # All machines of one run must see the same folder; each has only its own disk.
        yield (
            f"{PREFIX}.workers is {settings.workers}, but the machines of a job share no folder, which they need to "
            f"train one run; {mounted}, or take one machine with several GPUs ({PREFIX}.gpus)"
        )


def _backend_problems(settings: PaiSettings) -> Iterator[str]:
    other = {
        DLC: ("project", "tables"),
        MAXCOMPUTE: ("workspace", "image", "instance_type", "resource_quota", "max_minutes", "mounts", "work_folder"),
    }.get(settings.backend, ())
    for name in other:
        if getattr(settings, name):
            yield (
                f"{PREFIX}.{name} is set, but backend={settings.backend} does not use it; leave it out, or choose "
                f"the other backend"
            )
    if settings.backend == DLC and settings.client == ODPSCMD:
        yield f"{PREFIX}.client is {ODPSCMD}, but backend={DLC} does not use it; leave it out"
    if settings.gpu_type and settings.instance_type:
        yield (
            f"{PREFIX}.gpu_type is {settings.gpu_type}, but {PREFIX}.instance_type already says which GPUs a machine "
            "has; leave out gpu_type"
        )
    if settings.instance_type and settings.resource_quota:
        yield (
            f"{PREFIX}.instance_type and {PREFIX}.resource_quota are both set, but a job takes a machine of public "
            "resources or a share of a quota; leave one out"
        )


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
    from nlu.storage.buckets import ENDPOINT_OF_ALL, OWN_ENDPOINTS, own_endpoints

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
