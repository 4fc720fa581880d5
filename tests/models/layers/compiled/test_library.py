"""Libraries of C: built once, kept by what decides their code, and what a user is told who has no compiler."""

import ctypes
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.models.layers.compiled import library

pytestmark = pytest.mark.skipif(not any(map(shutil.which, library.COMPILERS)), reason="no C compiler")
SOURCE = "int twice(int x) { return 2 * x; }\n"


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder of sources with one in it."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "small.c").write_text(SOURCE)
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(library, "__file__", str(folder / "library.py"))
    monkeypatch.setattr(library, "_loaded", {})
    return folder


def test_a_source_is_compiled_once_and_computes(tmp_path, monkeypatch):
    assert library.load("small").twice(21) == 42
    (kept,) = (tmp_path / "cache/compiled").iterdir()
    monkeypatch.setattr(library, "_loaded", {})
    before = kept.stat().st_mtime_ns
    assert library.load("small").twice(4) == 8
    assert list((tmp_path / "cache/compiled").iterdir()) == [kept] and kept.stat().st_mtime_ns == before


def test_another_source_gets_another_library(tmp_path, sources, monkeypatch):
    library.load("small")
    (sources / "small.c").write_text(SOURCE.replace("2 *", "3 *"))
    monkeypatch.setattr(library, "_loaded", {})
    assert library.load("small").twice(5) == 15
    assert len(list((tmp_path / "cache/compiled").iterdir())) == 2


def test_another_header_gets_another_library(tmp_path, sources, monkeypatch):
    (sources / "small.c").write_text('#include "number.h"\nint twice(int x) { return NUMBER * x; }\n')
    for number in (2, 5):
        (sources / "number.h").write_text(f"#define NUMBER {number}\n")
        monkeypatch.setattr(library, "_loaded", {})
        assert library.load("small").twice(3) == 3 * number
    assert len(list((tmp_path / "cache/compiled").iterdir())) == 2


def test_threads_that_ask_at_once_get_one_library():
    found: list[ctypes.CDLL] = []
    threads = [threading.Thread(target=lambda: found.append(library.load("small"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(map(id, found))) == 1


def test_processes_that_build_at_once_all_get_a_whole_library(tmp_path, sources):
    program = (
        "from nlu.models.layers.compiled import library\n"
        f"library.__file__ = {str(sources / 'library.py')!r}\n"
        "print(library.load('small').twice(3))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == [b"6"] * 3
    assert len(list((tmp_path / "cache/compiled").iterdir())) == 1
    assert not list((tmp_path / "cache/staging").iterdir())


def test_without_a_compiler_the_user_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match="need a C compiler, but none of cc, gcc, clang is on the PATH; install gcc or clan"
    ):
        library.load("small")


def test_a_compiler_that_is_named_but_absent_is_refused(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(UserError, match="need a C compiler, but CC=no-such-compiler is not on the PATH; install gcc"):
        library.load("small")


def test_what_the_compiler_says_about_a_wrong_source_is_shown(tmp_path, sources):
    (sources / "small.c").write_text("int twice(int x) { return 2 * y; }\n")
    with pytest.raises(UserError, match="cannot compile small.c: .*'y'.*; set CC to another compiler"):
        library.load("small")
    assert not list((tmp_path / "cache/staging").iterdir()) and not (tmp_path / "cache/compiled").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="set NLU_CACHE to a folder that can"):
        library.load("small")


def test_no_compiler_may_fuse_or_reorder_sums():
    assert "-ffp-contract=off" in library.FLAGS and not {"-ffast-math", "-Ofast"}.intersection(library.FLAGS)
