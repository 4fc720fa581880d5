"""The hardware of this machine: cores and threads, memory, devices, and a sum over ranks, as in each training step."""

import os
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
import torch.distributed as dist

from nlu.diagnosis.check import Check, broken, said, warning
from nlu.launching.local import in_processes
from nlu.runs.provenance import cpu_model, usable_cores
from nlu.storage.files import read_json, write_json, write_text
from nlu.training import host_memory
from nlu.training.ranks import process_group

GIB = 2**30
FEW_FILES = 1024
SMALL_SHARED_BYTES = GIB // 4
SHARED_MEMORY = Path("/dev/shm")


def devices() -> Iterator[Check]:
    """Check the processor and the CUDA devices, and why a device cannot be used."""
    yield Check("processor", f"{cpu_model()}, kernels for {torch.backends.cpu.get_cpu_capability()}")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            yield _cuda_device(number)
        return
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists():
        built = "is built without CUDA" if torch.version.cuda is None else f"is built for CUDA {torch.version.cuda}"
        yield broken(
            "CUDA",
            f"there is an NVIDIA driver, but torch sees no device; it {built}",
            "install a torch for the driver's CUDA (nvidia-smi shows it), and look at CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Check("CUDA", "no device; runs compute on the processor")


def _cuda_device(number: int) -> Check:
    facts = torch.cuda.get_device_properties(number)
    free_bytes, total_bytes = torch.cuda.mem_get_info(number)
    says = (
        f"{facts.name}, capability {facts.major}.{facts.minor}, {free_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GiB "
        "free"
    )
    name = f"cuda:{number}"
    if f"sm_{facts.major}{facts.minor}" not in torch.cuda.get_arch_list():
        # Kernels of a lower minor version run too; those of another major version do not.
        known = [arch for arch in torch.cuda.get_arch_list() if arch.startswith(f"sm_{facts.major}")]
        if not known:
            return broken(name, f"{says}; torch has no kernels for it", "install a torch built for this device")
    if free_bytes < total_bytes / 2:
        return warning(name, f"{says}; others use it", "choose another device by CUDA_VISIBLE_DEVICES")
    return Check(name, says)


def threads() -> Iterator[Check]:
    """Compare threads with cores and the limit of a container, and check the load of other processes."""
    cores, used = usable_cores(), torch.get_num_threads()
    allowed = allowed_cores()
    waiting = torch.get_num_interop_threads()
    says = f"{cores} of {os.cpu_count()} usable; torch computes with {used} and waits with {waiting}"
    set_by = f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}" if "OMP_NUM_THREADS" in os.environ else "torch"
    if allowed is not None and used > allowed:
        yield warning(
            "threads",
            f"{says}, but the container may use {allowed:g} cores",
            f"set OMP_NUM_THREADS={max(1, int(allowed))}: threads that wait for one another are slow",
        )
    elif used > cores:
        yield warning("threads", f"{says} ({set_by})", f"set OMP_NUM_THREADS={cores}")
    elif used < cores:
        yield warning(
            "threads",
            f"{says} ({set_by})",
            f"unset OMP_NUM_THREADS, or set it to {cores}, unless others need the rest; scores of another number of "
            "threads differ in the last digits",
        )
    else:
        yield Check("threads", says)
    load = os.getloadavg()[0]
    if load > 1.5 * cores:
        yield warning("load", f"{load:.1f} processes wait for {cores} cores", "speeds measured now are low")
    else:
        yield Check("load", f"{load:.1f} processes on {cores} cores")


def allowed_cores() -> float | None:
    """Return the quota of a container in cores, None without one."""
    try:
        quota, period = (host_memory.CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def memory() -> Iterator[Check]:
    """Check memory, shared memory and the limit of open files."""
    free_bytes, total_bytes = host_memory.of_machine()
    says = f"{free_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GiB free"
    if free_bytes < 2 * GIB:
        yield warning("memory", says, "training a BERT of base size takes 2 GiB; end other programs")
    else:
        yield Check("memory", says)
    if SHARED_MEMORY.is_dir():
        state = os.statvfs(SHARED_MEMORY)
        free = state.f_bavail * state.f_frsize
        if free < SMALL_SHARED_BYTES and torch.cuda.device_count() > 1:
            yield warning(
                "shared memory",
                f"{free / GIB:.2f} GiB free in {SHARED_MEMORY}, which nccl needs",
                "start the container with --shm-size=8g or --ipc=host",
            )
        else:
            yield Check("shared memory", f"{free / GIB:.1f} GiB free in {SHARED_MEMORY}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each connection, store and log takes a file; a server and a search take many.
    if soft < FEW_FILES:
        yield warning("open files", f"{soft} at most", f"ulimit -n {hard if hard > 0 else 65536}")
    else:
        yield Check("open files", f"{soft:,} at most")


LIMIT_S = 90.0
COUNT = 4 << 20
"""the number of elements of a sum, 16 MiB in fp32"""
REPEATS = 3
FEWEST_ON_CPU = 2
FOUND, ERROR = "found.json", "error-"


def collectives() -> Iterator[Check]:
    """Test a sum over all CUDA devices with nccl, or over two processes with gloo."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        yield _collective("cuda", devices, f"nccl {version} and gloo")
    else:
        yield _collective("cpu", FEWEST_ON_CPU, "gloo")


def _collective(device: Literal["cpu", "cuda"], ranks: int, what: str) -> Check:
    name = f"{ranks} {'rank' if ranks == 1 else 'ranks'} on {device}"
    remedy = (
        "run it again with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1 or NCCL_SHM_DISABLE=1, to find what does not "
        "work; until then set trainer.devices=1"
        if device == "cuda"
        else "check whether a firewall or GLOO_SOCKET_IFNAME separates the processes of this machine; until then set "
        "trainer.devices=1"
    )
    with TemporaryDirectory(prefix="nlu-doctor-") as folder:
        try:
            # In separate processes with a limit of time, since a collective that does not work hangs instead of
            # failing.
            status = in_processes(partial(_sum_over_ranks, Path(folder), device), ranks, LIMIT_S)
        except (TimeoutError, RuntimeError, OSError) as error:
            return broken(name, f"{what}: {said(error)}", remedy)
        errors = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob(f"{ERROR}*"))]
        found = read_json(Path(folder) / FOUND)
    if errors or status or found is None:
        return broken(name, f"{what}: {errors[0] if errors else f'a process ended with status {status}'}", remedy)
    if not found["is_right"]:
        return broken(name, f"{what}: the sum is wrong", remedy)
    rate = COUNT * 4 / found["took_s"] / 1e9
    return Check(
        name, f"{what}: the sum is right; {COUNT * 4 >> 20} MiB in {1e3 * found['took_s']:.1f} ms ({rate:.1f} GB/s)"
    )


def _sum_over_ranks(folder: Path, device: Literal["cpu", "cuda"]) -> int:
    """Sum over the ranks, one process each; the first rank writes the result."""
    rank: int | str = "?"
    try:
        with process_group(device) as ranks:
            rank = ranks.rank
            # Rank r adds r + 1, so a rank that is counted twice or left out changes the sum.
            own = torch.full((COUNT,), float(ranks.rank + 1), device=ranks.device)
            wanted = ranks.world_size * (ranks.world_size + 1) / 2
            summed = own.clone()
            dist.all_reduce(summed)
            is_right = bool((summed == wanted).all()) and ranks.sum_on_host([float(ranks.rank + 1)])[0] == wanted
            times_s = []
            for _ in range(REPEATS):
                ranks.barrier()
                begun_s = time.perf_counter()
                dist.all_reduce(own.clone())
                # Reading an element waits for the device.
                own[0].item()
                times_s.append(time.perf_counter() - begun_s)
            if ranks.is_first:
                write_json(folder / FOUND, {"is_right": is_right, "took_s": min(times_s)})
    except (RuntimeError, OSError, ValueError) as error:
        write_text(folder / f"{ERROR}{rank}", said(error))
        return 1
    return 0
