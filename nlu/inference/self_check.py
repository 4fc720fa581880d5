"""A short check of the promise that a score does not depend on its batch, for the layers of a model that is loaded.

The promise rests on the matrix libraries of the processor (docs/guarantees.md). Axes: R rows, I input features.
"""

import logging
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from nlu.config.mkl import is_strict
from nlu.config.sentences import counted
from nlu.models.layers.exact_linear import Linear
from nlu.models.task_model import TaskModel
from nlu.runs.provenance import cpu_model
from nlu.training.precision import NumberFormat

log = logging.getLogger(__name__)

BUDGET_S = 0.035
"""the time after which no further layer is looked at; with the last one the check takes at most 0.05 s"""
ROWS, INPUTS_PER_ROW = 320, 5
"""the most rows together, and one for so many inputs: libraries divide longer sums also of more rows, up to 300"""
ALONE, START = (17, 1), 50
"""rows alone, and where they begin among the others"""
_said: set[str] = set()
"""warnings of this process, each of which is given once"""


def warn_of_batches(model: TaskModel, precision: NumberFormat, device: torch.device) -> None:
    """Warn by name, once, of layers on a CPU whose rows depend on the number of rows. Takes at most 0.05 s."""
    if device.type != "cpu" or not isinstance(model, TaskModel):
        return
    # Every head computes in fp32.
    contexts: dict[str, AbstractContextManager[object]] = {"head": nullcontext()}
    layers = [
        (each, contexts.get(name.partition(".")[0], precision.autocast(device)))
        for name, each in model.named_modules()
        if type(each) is Linear
    ]
    found = list(uneven_layers(layers, budget_s=BUDGET_S))
    if found and (said := sentence(found)) not in _said:
        _said.add(said)
        log.warning("%s; compare only scores of one batch size", said)


def sentence(found: list[str]) -> str:
    """Return what to say of uneven layers."""
    used = [library_of(dtype) for dtype in ("float32", "bfloat16") if any(f" in {dtype}" in one for one in found)]
    return (
        f"a score may depend on its batch here, in its last digits: {'; '.join(found)} ({' and '.join(used)}, "
        f"{cpu_model()}); docs/guarantees.md names the libraries on which the promise rests"
    )


@torch.inference_mode()
def uneven_layers(layers: Iterable[tuple[Linear, AbstractContextManager[object]]], *, budget_s: float) -> Iterator[str]:
    """Yield, for each shape and precision, where a row has other bits among few rows than among many, and by what part
    of the largest output. A layer comes with the context of its forward pass.

    The rest is left out once `budget_s` is spent.
    """
    began, known = time.perf_counter(), set()
    # A library divides long sums, if any.
    for layer, context in sorted(layers, key=lambda pair: (-pair[0].in_features, -pair[0].out_features)):
        with context:
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
            if (shape := (layer.in_features, layer.out_features, dtype)) in known:
                continue
            known.add(shape)
            rows_RI, start_s = _rows(layer.in_features), time.perf_counter()
            alone = {rows: layer(rows_RI[START : START + rows]) for rows in ALONE}
            now_s = time.perf_counter()
            if (left_s := budget_s + began - now_s) < 0:
                return
            # As many rows as there is time for: some processors have no kernels for bf16.
            count = min(ROWS, layer.in_features // INPUTS_PER_ROW, int(sum(ALONE) * min(1, left_s) / (now_s - start_s)))
            count = max(START + max(ALONE), count)
            together = layer(rows_RI[:count])
        for rows, found in alone.items():
            if not torch.equal(found, there := together[START : START + rows]):
                apart = float((found - there).abs().max() / together.abs().max())
                yield f"{shape[0]} to {shape[1]} in {str(dtype)[6:]}, {counted(rows, 'row')}, by up to {apart:.0e}"
                break


def _rows(width: int) -> Tensor:
    # Overlapping pieces of one array: so many random numbers would take as long as the products.
    numbers = torch.randn(width + 7 * ROWS, generator=torch.Generator().manual_seed(width))
    return numbers.unfold(0, width, 7)[:ROWS].contiguous()


def library_of(dtype: str) -> str:
    """Return the name and version of the library that multiplies matrices of a type on a CPU, as far as known."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    wanted = "Math Kernel Library" if dtype == "float32" else "MKL-DNN"
    if named := next((line for line in lines if wanted in line), None):
        lax = ", not in its strict mode" if dtype == "float32" and is_strict(torch) is False else ""
        return named.partition(" (")[0].partition("-Product")[0].replace("Intel(R) MKL-DNN", "oneDNN") + lax
    blas = next((line.partition("BLAS_INFO=")[2].partition(",")[0] for line in lines if "BLAS_INFO=" in line), "")
    return f"{blas or 'an unknown BLAS'} on {platform.machine()}"
