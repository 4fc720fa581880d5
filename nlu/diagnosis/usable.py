"""What a profile says of the machine."""

import math
from dataclasses import replace

import torch

from nlu.diagnosis.bottlenecks import Measured
from nlu.diagnosis.machine import allowed_cores
from nlu.runs.provenance import usable_cores
from nlu.training import host_memory
from nlu.training.memory import peak_mb


def device_name(device: torch.device) -> str:
    """Return the name of a device, with the number of threads of a processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, threads: {torch.get_num_threads()}"


def with_machine(measured: Measured, device: torch.device) -> Measured:
    """Return what was measured with the memory of the device, its peak, threads and cores."""
    is_accelerator = device.type == "cuda"
    total_bytes = torch.cuda.mem_get_info(device)[1] if is_accelerator else host_memory.of_machine()[1]
    return replace(
        measured,
        is_accelerator=is_accelerator,
        peak_mb=peak_mb(device),
        limit_mb=total_bytes / 1e6,
        threads=torch.get_num_threads(),
        cores=min(usable_cores(), allowed_cores() or math.inf),
    )
