"""A source of C as a library: built by the machine's own compiler on first use, and kept in the cache.

A library is named by its source and by all that the compiler defines for this processor, so another version of the
compiler and another kind of processor, for example on the other side of a shared home folder, get their own.
"""

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
import threading
from functools import cache
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.cache import cache_dir, staging_folder, text_digest

log = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
"""Without -ffast-math: a compiler must not change the order of sums, nor fuse a product with a sum by itself."""
_lock = threading.Lock()
_loaded: dict[Path, ctypes.CDLL] = {}


def load(source: Path) -> ctypes.CDLL:
    """Return the library of a source, built if the cache lacks it. Several threads and processes may ask.

    Raises UserError if there is no compiler, if it refuses the source, or if the cache cannot be written.
    """
    with _lock:
        if source not in _loaded:
            _loaded[source] = ctypes.CDLL(str(_built(source)))
        return _loaded[source]


def _built(source: Path) -> Path:
    command = _compiler()
    identity = text_digest(source.read_text(encoding="utf-8"), *command, *FLAGS, _defined(tuple(command)))
    library = cache_dir() / "compiled" / f"int8-{identity}.so"
    if not library.exists():
        log.info("compiling %s with %s into %s", source.name, command[0], library.parent)
        with staging_folder() as folder:
            staged = folder / library.name
            _run([*command, *FLAGS, "-o", str(staged), str(source), "-lm"], source.name)
            library.parent.mkdir(exist_ok=True)
            # The file of another process, if it was first, has the same content.
            os.replace(staged, library)
    return library


def _compiler() -> list[str]:
    """Return the command of the C compiler: $CC, or the first of COMPILERS on the PATH."""
    given = shlex.split(os.environ.get("CC", ""))
    found = [given] if given else [[name] for name in COMPILERS if shutil.which(name)]
    if not found or shutil.which(found[0][0]) is None:
        absent = f"CC={given[0]} is not" if given else f"none of {', '.join(COMPILERS)} is"
        raise UserError(
            f"precision=int8_compiled needs a C compiler, but {absent} on the PATH; install gcc or clang, or set "
            "precision=int8"
        )
    return found[0]


@cache
def _defined(command: tuple[str, ...]) -> str:
    """Return all macros that the compiler defines for this processor: its version and the instruction sets."""
    return _run([*command, *FLAGS, "-dM", "-E", "-x", "c", os.devnull], "even an empty file")


def has_instructions(macro: str) -> bool:
    """Return whether the compiler uses a set of instructions on this processor, such as __AVX512VNNI__."""
    return f"#define {macro} " in _defined(tuple(_compiler()))


def _run(command: list[str], what: str) -> str:
    try:
        # In English, whose word for an error is looked for below.
        plain = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=plain)
    except OSError as error:
        raise UserError(f"the C compiler {command[0]} does not start: {error.strerror}; set CC to another") from error
    if done.returncode:
        lines = done.stderr.splitlines()
        said = next((line for line in lines if "error" in line), f"exit status {done.returncode}")
        raise UserError(f"the C compiler {command[0]} cannot compile {what}: {said}; set CC to another compiler")
    return done.stdout
