"""What doctor says of this machine: installed software, folders, devices, number formats, and a sum over ranks."""

import importlib.metadata
import importlib.util
import math
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from packaging.requirements import Requirement
from torch.utils import collect_env

import nlu
from nlu.config.choices import find_plugins
from nlu.config.sentences import path_text
from nlu.diagnosis.check import Check, broken, warning
from nlu.inference.self_check import library_of, sentence, uneven_layers
from nlu.models.layers.attention import packed_kernel
from nlu.models.layers.exact_linear import Linear
from nlu.runs.provenance import cpu_model, installed_version, usable_cores
from nlu.storage.locks import hold_lock
from nlu.training.auto import choice_for
from nlu.training.processes import in_processes
from nlu.training.ranks import choose_device, process_group

PACKAGE = Path(nlu.__file__).resolve().parent
PLUGINS = ("grid_sweeper", "hyperband_sweeper")

LITTLE_BYTES = 5 << 30
"""a checkpoint of BERT-base with its optimizer takes 1.6 GB, and `last` is written beside the older one"""
GIB = 2**30
SHAPES = (768, 2304), (768, 768), (768, 3072), (3072, 768)
"""the inputs and outputs of the layers of BERT-base"""
LIMIT_S = 90
COUNT = 4 << 20
"""the number of elements of a sum, 16 MiB in fp32, as many as the gradients of a small model"""


def environment() -> Check:
    """Report versions of Python, torch, CUDA, drivers and the system as PyTorch's own form for reports has them."""
    found = collect_env.get_env_info()
    # All of lscpu would be most of the text.
    return Check("collect_env", collect_env.pretty_str(found._replace(cpu_info=cpu_model())).strip())


def versions() -> Iterator[Check]:
    """Check the versions of all required distributions; list the extras that are installed as a whole."""
    required, extras = _declared()
    found = []
    for one in required:
        version = installed_version(one.name)
        # nlu itself requires release candidates, which a specifier leaves out by default.
        if version is not None and one.specifier.contains(version, prereleases=True):
            found.append(f"{one.name} {version}")
        else:
            says = "is not installed" if version is None else version
            yield broken(one.name, f"{says}, but nlu needs {one}", f"{sys.executable} -m pip install '{one}'")
    yield Check("packages", ", ".join(found))
    there = [extra for extra, some in extras.items() if all(installed_version(one.name) for one in some)]
    absent = [extra for extra in extras if extra not in there]
    yield Check("extras", f"there: {', '.join(there) or 'none'}; not there: {', '.join(absent) or 'none'}")


def _declared() -> tuple[list[Requirement], Mapping[str, list[Requirement]]]:
    """Return the requirements of nlu, and those of each extra, from the checkout or from the installed package."""
    checkout = PACKAGE.parent / "setup.cfg"
    if checkout.is_file():
        # The metadata of an editable installation may be older than the checkout.
        parser = ConfigParser()
        parser.read(checkout, encoding="utf-8")
        extras = {extra: _read(text.split("\n")) for extra, text in parser["options.extras_require"].items()}
        return _read(parser["options"]["install_requires"].split("\n")), extras
    lines = importlib.metadata.requires("nlu") or []
    named = importlib.metadata.metadata("nlu").get_all("Provides-Extra") or []
    extras = {extra: _read(line for line in lines if f'extra == "{extra}"' in line) for extra in named}
    return _read(line for line in lines if "extra ==" not in line), extras


def _read(lines: Iterable[str]) -> list[Requirement]:
    found = [Requirement(line.partition("; extra ==")[0]) for line in lines if line and not line.startswith("#")]
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def package() -> Iterator[Check]:
    """Check where nlu is imported from, and whether Hydra finds its plugins."""
    yield Check("nlu", f"{nlu.__version__} from {PACKAGE}")
    find_plugins()
    # Hydra ignores a plugin that it cannot find, and only a later search would fail.
    if absent := [name for name in PLUGINS if importlib.util.find_spec(f"hydra_plugins.{name}") is None]:
        yield broken(
            "searches",
            f"Hydra does not find {', '.join(absent)}",
            f"{sys.executable} -m pip install --editable {PACKAGE.parent}, or add {PACKAGE.parent / 'launchers'} to "
            "PYTHONPATH",
        )


def disk(name: str, folder: Path) -> Check:
    """Check a folder. Raises OSError if it cannot be written, and NoLocks if it cannot be locked, as runs need."""
    # A folder that does not exist yet is on the file system of the nearest one above it. doctor creates none.
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    probe = there / f".nlu-doctor-{secrets.token_hex(4)}"
    try:
        with hold_lock(probe, wait_s=0):
            free_bytes = shutil.disk_usage(there).free
    finally:
        probe.unlink(missing_ok=True)
    says = f"{path_text(folder)}{'' if folder.exists() else ' (to be made)'}: {free_bytes / 1e9:,.1f} GB free"
    if free_bytes < LITTLE_BYTES:
        return warning(name, says, "free some space: python -m nlu.report clean outputs shows what can go")
    return Check(name, says)


def devices() -> Iterator[Check]:
    """Check the CUDA devices, and why a device cannot be used."""
    if torch.cuda.is_available():
        yield from map(_cuda_device, range(torch.cuda.device_count()))
    elif Path("/proc/driver/nvidia/version").exists():
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
    # Kernels of a lower minor version run too; those of another major version do not.
    if not any(arch.startswith(f"sm_{facts.major}") for arch in torch.cuda.get_arch_list()):
        return broken(name, f"{says}; torch has no kernels for it", "install a torch built for this device")
    if packed_kernel(torch.device("cuda", number)) is None:
        remedy = "attention without padding needs capability 8.0 or later and torch 2.11 or later"
        return warning(name, f"{says}; rows are padded inside attention", remedy)
    return Check(name, says)


def threads() -> Check:
    """Compare threads with the cores that this process may use."""
    cores, used = usable_cores(), torch.get_num_threads()
    says = f"torch computes with {used}, and {cores} of {os.cpu_count()} cores may be used"
    if used <= cores:
        return Check("threads", says)
    remedy = f"set OMP_NUM_THREADS={cores}: threads that wait for one another are slow"
    return warning("threads", says, remedy)


def precision() -> Check:
    """Report what precision=auto chooses for the device of this machine."""
    choice, reason = choice_for(choose_device("auto", 0))
    return Check("precision=auto", f"{choice}: {reason}")


def batches() -> Check:
    """Check whether the layers of BERT-base give a row the same bits alone and among others, in fp32 and bf16."""
    contexts = (nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16))
    layers = [(Linear(*shape), context) for shape in SHAPES for context in contexts]
    if found := list(uneven_layers(layers, budget_s=math.inf)):
        return warning("equal scores in any batch", sentence(found), "compare scores of one batch size only")
    libraries = ", ".join(map(library_of, ("float32", "bfloat16")))
    return Check("equal scores in any batch", f"rows of layers have the same bits alone and among others: {libraries}")


def collectives() -> Check:
    """Test a sum over all CUDA devices with nccl, or over two processes with gloo; raises what they raise."""
    on_cuda = torch.cuda.is_available()
    ranks = torch.cuda.device_count() if on_cuda else 2
    if status := in_processes(partial(_sum_over_ranks, "cuda" if on_cuda else "cpu"), ranks):
        raise RuntimeError(f"a process ended with status {status}")
    what = f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))} and gloo" if on_cuda else "gloo"
    return Check("ranks", f"the sum over {ranks} {'devices' if on_cuda else 'processes'} by {what} is right")


def _sum_over_ranks(device: Literal["cpu", "cuda"]) -> int:
    # The system ends this process then, since a collective that does not work hangs instead of failing.
    signal.alarm(LIMIT_S)
    with process_group(device) as ranks:
        # Rank r adds r + 1, so a rank that is counted twice or left out changes the sum.
        summed = torch.full((COUNT,), float(ranks.rank + 1), device=ranks.device)
        wanted = ranks.world_size * (ranks.world_size + 1) / 2
        dist.all_reduce(summed)
        if not (summed == wanted).all() or ranks.sum_on_host([float(ranks.rank + 1)])[0] != wanted:
            raise RuntimeError("the sum is wrong")
    return 0
