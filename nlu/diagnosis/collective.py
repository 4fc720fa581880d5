"""Test a sum over all ranks of this machine, as in each step of a training on several devices."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
import torch.distributed as dist

from nlu.diagnosis.check import Check, said
from nlu.launching.local import in_processes
from nlu.storage.files import read_json, write_json, write_text
from nlu.training.ranks import process_group

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
            status = in_processes(partial(_sum_over_ranks, Path(folder), device), ranks, LIMIT_S)
        except (TimeoutError, RuntimeError, OSError) as error:
            return Check(name, f"{what}: {said(error)}", "broken", remedy)
        errors = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob(f"{ERROR}*"))]
        found = read_json(Path(folder) / FOUND)
    if errors or status or found is None:
        return Check(
            name, f"{what}: {errors[0] if errors else f'a process ended with status {status}'}", "broken", remedy
        )
    if not found["is_right"]:
        return Check(name, f"{what}: the sum is wrong", "broken", remedy)
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
