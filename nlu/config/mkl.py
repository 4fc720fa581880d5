"""The modes in which MKL and oneDNN multiply matrices on a CPU: those in which a row does not depend on the number of
rows.

By default MKL divides the sum of a product among threads depending on its number of rows. In its strict mode of
conditional numerical reproducibility it does not. On processors of Intel this alone makes scores independent of the
batch; `nlu.models.layers.exact_linear` says what others need.

oneDNN, which multiplies in bf16, divides sums by the number of rows where it uses the tiles of AMX, whose products take
a sixth of the time; with all other instructions it does not.
"""

import ctypes
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

VARIABLE, STRICT_MODE = "MKL_CBWR", "AUTO,STRICT"
WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
"""the variable of oneDNN, and the largest set of instructions without AMX"""
ALL, STRICT_BIT = -1, 0x10000
"""MKL_CBWR_ALL and MKL_CBWR_STRICT of MKL's header"""


def multiply_strictly() -> None:
    """Set these modes for this process and those that it starts, unless the user has chosen others.

    MKL reads the variable at its first product. Where one was computed before, which can only be if torch was imported
    before nlu, a warning says so.
    """
    os.environ.setdefault(*WITHOUT_TILES)
    if VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = STRICT_MODE
    if (torch := sys.modules.get("torch")) is not None and is_strict(torch) is False:
        log.warning(
            "a product was computed before nlu was imported, so MKL's mode is no longer changed, and the score of a "
            "text may depend on its batch in the last digits; import nlu first, or set %s=%s",
            VARIABLE,
            STRICT_MODE,
        )


def is_strict(torch: object) -> bool | None:
    """Return whether MKL in this torch is in the strict mode; None if it has no MKL, or one that does not say."""
    found = Path(getattr(torch, "__file__", None) or "").parent / "lib" / "libtorch_cpu.so"
    with suppress(OSError, AttributeError):
        # Reads the variable, but computes nothing.
        return bool(ctypes.CDLL(str(found)).mkl_serv_cbwr_get(ALL) & STRICT_BIT)
    return None
