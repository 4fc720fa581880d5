"""The fast paths that this machine supports, and the speed of matrix products.

Axes: M, K and N sides of matrices.
"""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch

from nlu.diagnosis.check import Check, warning
from nlu.inference.self_check import library_of, sentence, uneven_layers
from nlu.models.layers.attention_in_one_kernel import packed_kernel
from nlu.models.layers.linear import Linear
from nlu.training import keys as schemas
from nlu.training.auto import choice_for
from nlu.training.hardware import instruction_sets
from nlu.training.precision import Precision
from nlu.training.ranks import choose_device

SHAPES = (768, 2304), (768, 768), (768, 3072), (3072, 768)
"""the inputs and outputs of the layers of BERT-base"""
SIDES = 512, 768, 768
"""the rows of a batch, and the width of layers, of BERT-base: M, K, N"""
TRIES, ENOUGH_S = 10, 0.3
SETS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
"""instruction sets, named as in /proc/cpuinfo, the fastest last"""


def processor() -> Iterator[Check]:
    """Check instruction sets, and compare the speed of matrix products in bf16 and fp32."""
    there = [name for name in SETS if name in instruction_sets()]
    kernels = torch.backends.cpu.get_cpu_capability()
    says = f"{', '.join(there) or 'none of ' + ', '.join(SETS)}; torch uses its kernels for {kernels}"
    if "avx512f" in there and "AVX512" not in kernels:
        yield warning("AVX512 and AMX", says, "unset ATEN_CPU_CAPABILITY")
    else:
        absent = [name for name in ("AVX512", "AMX") if not any(name.lower() in one for one in there)]
        yield Check("AVX512 and AMX", says + (f"; this processor has no {' and no '.join(absent)}" if absent else ""))
    if not torch.backends.mkldnn.is_available():
        yield warning("oneDNN", "torch is built without it", "install torch from its own index")
    device = torch.device("cpu")
    speeds = {dtype: _gigaflops(dtype, device) for dtype in (torch.float32, torch.bfloat16)}
    ratio = speeds[torch.bfloat16] / speeds[torch.float32]
    measured = (
        f"{speeds[torch.bfloat16]:,.0f} GFLOP/s against {speeds[torch.float32]:,.0f} in fp32, {ratio:.2g} times as fast"
    )
    if Precision(schemas.Precision(dtype="bfloat16")).warning(device) and ratio < 1:
        yield warning("bf16 kernels", measured, "keep precision=fp32 on this processor")
    else:
        yield Check("bf16 kernels", measured)


def batches() -> Check:
    """Check whether the layers of BERT-base give a row the same bits alone and among others, in fp32 and bf16."""
    contexts = (nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16))
    layers = [(Linear(*shape), context) for shape in SHAPES for context in contexts]
    found = list(uneven_layers(layers, both_threads=True, budget_s=math.inf))
    libraries = ", ".join(map(library_of, ("float32", "bfloat16")))
    if found:
        return warning("equal scores in any batch", sentence(found), "compare scores of one batch size only")
    return Check("equal scores in any batch", f"rows of layers have the same bits alone and among others: {libraries}")


def precision() -> Check:
    """Report what precision=auto chooses for the device of this machine."""
    choice, reason = choice_for(choose_device("auto", 0))
    return Check("precision=auto", f"{choice}: {reason}")


def cuda() -> Iterator[Check]:
    """Check packed attention, bf16 and speed of the first CUDA device, assuming that all devices are equal."""
    if not torch.cuda.is_available():
        yield Check("varlen attention", "only for CUDA; on a CPU nlu groups sequences by length instead")
        return
    device = torch.device("cuda", 0)
    if packed_kernel(device) is None:
        yield warning(
            "varlen attention",
            f"does not work on {torch.cuda.get_device_name(device)}; rows are padded inside attention",
            "it needs capability 8.0 or later and torch 2.11 or later",
        )
    else:
        yield Check("varlen attention", "works: no padding is computed in half precision")
    speeds = {dtype: _gigaflops(dtype, device) / 1000 for dtype in (torch.float32, torch.bfloat16)}
    says = f"{speeds[torch.bfloat16]:,.0f} TFLOP/s against {speeds[torch.float32]:,.0f} in fp32"
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        yield warning("bf16 on CUDA", f"{says}; the device emulates it", "keep precision=fp32")
    else:
        yield Check("bf16 on CUDA", says)


def _gigaflops(dtype: torch.dtype, device: torch.device) -> float:
    """Return the best speed of several products, which are larger on CUDA to use the whole device."""
    m, k, n = (16 * SIDES[0], 4 * SIDES[1], 4 * SIDES[2]) if device.type == "cuda" else SIDES
    left_MK, right_KN = torch.ones(m, k, dtype=dtype, device=device), torch.ones(k, n, dtype=dtype, device=device)
    times_s: list[float] = []
    # At least two, since the first product also loads the kernel. The best one counts: other programs only add time.
    while len(times_s) < 2 or (len(times_s) < TRIES and sum(times_s) < ENOUGH_S):
        _wait_for(device)
        begun_s = time.perf_counter()
        left_MK @ right_KN
        _wait_for(device)
        times_s.append(time.perf_counter() - begun_s)
    # A multiplication and an addition for each of m * k * n pairs.
    return 2 * m * k * n / min(times_s) / 1e9


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        # CUDA computes in the background, so a clock without this would time only the launch.
        torch.cuda.synchronize(device)
