"""A library of C: built once, kept by what decides their code, and what a user is told who has no compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.inference.int8 import compiled
from tests.inference.int8.machine import compiles_int8

pytestmark = pytest.mark.needs(compiles_int8, "no compiler, or no AVX-512 VNNI")
SOURCE = "int twice(int x) { return 2 * x; }\n"


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a source."""
    path = tmp_path / "small.c"
    path.write_text(SOURCE)
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    compiled.load.cache_clear()
    return path


def test_a_source_is_compiled_once_and_computes(tmp_path, monkeypatch, source):
    assert compiled.load(source).twice(21) == 42
    (kept,) = (tmp_path / "cache/compiled").iterdir()
    compiled.load.cache_clear()
    before = kept.stat().st_mtime_ns
    assert compiled.load(source).twice(4) == 8
    assert list((tmp_path / "cache/compiled").iterdir()) == [kept] and kept.stat().st_mtime_ns == before


def test_another_source_gets_another_library(tmp_path, monkeypatch, source):
    compiled.load(source)
    source.write_text(SOURCE.replace("2 *", "3 *"))
    compiled.load.cache_clear()
    assert compiled.load(source).twice(5) == 15
    assert len(list((tmp_path / "cache/compiled").iterdir())) == 2


def test_processes_that_build_at_once_all_get_a_whole_library(tmp_path, source):
    program = (
        "from nlu.inference.int8 import compiled\n"
        "from pathlib import Path\n"
        f"print(compiled.load(Path({str(source)!r})).twice(3))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == [b"6"] * 3
    assert len(list((tmp_path / "cache/compiled").iterdir())) == 1
    assert not list((tmp_path / "cache/staging").iterdir())


def test_without_a_compiler_the_user_is_told_what_to_install(tmp_path, monkeypatch, source):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs a C compiler, but cc does not start .*; install gcc or clang, set CC"):
        compiled.load(source)


def test_what_the_compiler_says_about_a_wrong_source_is_shown(tmp_path, source):
    source.write_text("int twice(int x) { return 2 * y; }\n")
    with pytest.raises(UserError, match="cannot compile small.c: .*'y'.*; set CC to another compiler"):
        compiled.load(source)
    assert not list((tmp_path / "cache/staging").iterdir()) and not (tmp_path / "cache/compiled").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path, source):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="NLU_CACHE to another folder"):
        compiled.load(source)
