"""A source of C as a library: built by the machine's own compiler on first use, and kept in the cache."""

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.cache import cache_dir, staging_folder, text_digest

log = logging.getLogger(__name__)

INSTRUCTIONS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
"""what a library may use, as /proc/cpuinfo names it"""
FLAGS = (
    "-std=gnu11", "-O3", *(f"-m{name.replace('_', '')}" for name in INSTRUCTIONS), "-ffp-contract=off",
    "-fno-math-errno", "-shared", "-fPIC",
)  # fmt: skip
"""For any processor with the instructions, and without -ffast-math: a compiler must not change the order of sums, nor
fuse a product with a sum by itself."""
COMPILERS = ("cc", "gcc", "clang")


@cache
def load(source: Path) -> ctypes.CDLL:
    """Return the library of a source, built if the cache lacks it. Several threads and processes may ask.

    Raises UserError if there is no compiler, if it refuses the source, or if the cache cannot be written.
    """
    library = cache_dir() / "compiled" / f"int8-{text_digest(source.read_text(encoding='utf-8'), *FLAGS)}.so"
    if not library.exists():
        with staging_folder() as folder:
            staged = folder / library.name
            _compile(source, staged)
            library.parent.mkdir(exist_ok=True)
            # The file of another process, if it was first, has the same content.
            os.replace(staged, library)
    return ctypes.CDLL(str(library))


def _compile(source: Path, library: Path) -> None:
    given = shlex.split(os.environ.get("CC", ""))
    command = given or [next(filter(shutil.which, COMPILERS), COMPILERS[0])]
    log.info("compiling %s with %s", source.name, command[0])
    command += [*FLAGS, "-o", str(library), str(source), "-lm"]
    try:
        # In English, whose word for an error is looked for below.
        plain = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=plain)
    except OSError as error:
        raise UserError(
            f"precision=int8_compiled needs a C compiler, but {command[0]} does not start ({error.strerror}); install "
            "gcc or clang, set CC to another, or set precision=int8"
        ) from error
    if done.returncode:
        lines = done.stderr.splitlines()
        said = next((line for line in lines if "error" in line), f"exit status {done.returncode}")
        raise UserError(f"the C compiler {command[0]} cannot compile {source.name}: {said}; set CC to another compiler")
