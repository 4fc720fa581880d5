"""Build the sdist and the wheel into dist/, and try the wheel where nothing but the wheel is: what `make dist` does.

    python tests/distribution.py

The wheel is installed into an environment made for it. From an empty folder outside the checkout it then trains,
searches and reports. The status is 1 where any of that fails, where a file is missing in the sdist or the wheel, or
where a module of the checkout was imported. It takes a package index that has all that setup.cfg requires.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
FOLDERS = ("nlu", "conf", "launchers", "tests", "benchmarks", "docs", "changes", ".ci", ".github")
FILES = (
    "Makefile",
    "constraints.txt",
    "MANIFEST.in",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "SECURITY.md",
    "CITATION.cff",
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")
TORCH = "torch==2.13.0"
"""as in the Makefile, which says why"""
TINY = (
    "model=bert_tiny", "model.hidden_size=16", "model.heads=2", "model.layers=2", "model.intermediate_size=32",
    "data=files", "data.train=shop.csv", "data.fields={text: review, label: stars}", "trainer.batch_size=8",
    "trainer.device=cpu", "trainer.max_duration=12st", "trainer.eval_interval=4st",
)  # fmt: skip
SEARCH = (
    "--multirun", "hydra/sweeper=hyperband", "hydra.sweep.dir=outputs/search", "hydra.sweeper.n_trials=4",
    "optimizer.lr=tag(log,interval(1e-4,1e-2))", "model.head_dropout=interval(0,0.3)",
)  # fmt: skip
WATCH = """
import atexit, os, sys

def note():
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    with open(os.environ["IMPORTED"], "a") as imported:
        imported.writelines(f"{os.path.realpath(file)}\\n" for file in files if file)

atexit.register(note)
"""
"""put into the environment: every Python there says at its end what it imported"""


class Failed(Exception):
    """What is wrong with the distribution."""


def run(*command: str | Path, folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed. Raises Failed, with the end of its output."""
    line = " ".join([Path(command[0]).name, *map(str, command[1:])])
    print(f"$ {line}", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode != 0:
        raise Failed(f"{line} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise Failed(problem)


def build() -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (sdist,), (wheel,) = DIST.glob("nlu-*.tar.gz"), DIST.glob("nlu-*.whl")
    return sdist, wheel


def copy_checkout(target: Path) -> None:
    """Copy what belongs to the checkout, so that nothing which an earlier build left there is built again."""
    target.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=LEFT_OUT)
    for name in ("_build", "api"):
        shutil.rmtree(target / "docs" / name, ignore_errors=True)
    for name in FILES:
        shutil.copy(ROOT / name, target / name)


def check_files(sdist: Path, wheel: Path, folder: Path) -> None:
    """Raise Failed where the sdist lacks a file, or its wheel holds others than a wheel of the checkout."""
    checkout = folder / "checkout"
    copy_checkout(checkout)
    wanted = {path.relative_to(checkout).as_posix() for path in checkout.rglob("*") if path.is_file()}
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    require(wanted <= held, f"{sdist.name} lacks {sorted(wanted - held)}; name them in MANIFEST.in")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "direct", checkout)
    (direct,) = (folder / "direct").glob("*.whl")
    differing = set(zipfile.ZipFile(wheel).namelist()) ^ set(zipfile.ZipFile(direct).namelist())
    require(not differing, f"only one of the wheels of the sdist and of the checkout holds {sorted(differing)}")
    print(f"{sdist.name}: {len(held)} files; {wheel.name}: {len(zipfile.ZipFile(wheel).namelist())} files")


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment and return the folder of its programs."""
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv/bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if shutil.which("nvidia-smi") is None:
        run(*pip, TORCH, folder=folder)
    run(*pip, wheel, folder=folder)
    (packages,) = (folder / "venv/lib").glob("python3*/site-packages")
    (packages / "watch_imports.py").write_text(WATCH)
    (packages / "watch_imports.pth").write_text("import watch_imports\n")
    return programs


def try_out(programs: Path, folder: Path) -> None:
    """Train, search and report from an empty folder. Raises Failed."""
    empty, noted = folder / "empty", folder / "imported"
    empty.mkdir()
    names = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {"NLU_CACHE": str(folder / "cache"), "IMPORTED": str(noted)}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    rows = [f'"{("bad", "good")[n % 2]} thing number {n}",{(1, 5)[n % 2]}' for n in range(120)]
    (empty / "shop.csv").write_text("\n".join(["review,stars", *rows, ""]))

    def within(*command: str) -> str:
        return run(programs / command[0], *command[1:], folder=empty, environment=environment)

    require("complete " in within("nlu-train", "-sc", "install=bash"), "nlu-train offers no completion")
    within("nlu-preprocess", "data=files", "data.train=shop.csv", "data.fields={text: review, label: stars}")
    within("nlu-train", *TINY, "hydra.run.dir=outputs/once")
    require((empty / "outputs/once/result.json").is_file(), "outputs/once has no result.json")
    within("python", "-m", "nlu.train", *TINY, *SEARCH)
    table = within("python", "-m", "nlu.report", "outputs")
    print(table)
    require("dev/accuracy" in table and "search" in table, "the report does not show the runs")

    imported = {Path(line) for line in noted.read_text().splitlines()}
    foreign = sorted(str(path) for path in imported if path.is_relative_to(ROOT))
    require(not foreign, f"the checkout was imported, not the wheel: {foreign[:5]}")
    ours = {
        path for path in imported if path.parts[-2:] in (("nlu", "__init__.py"), ("hyperband_sweeper", "__init__.py"))
    }
    require(len(ours) == 2, f"nlu and its sweeper were not imported once each, but {sorted(ours)}")
    print(f"{len(imported)} modules were imported, none of the checkout: {', '.join(sorted(map(str, ours)))}")


def main() -> int:
    """Build, check and try; returns the status."""
    with tempfile.TemporaryDirectory(prefix="dist-") as name:
        folder = Path(name).resolve()
        try:
            sdist, wheel = build()
            check_files(sdist, wheel, folder)
            try_out(install(wheel, folder), folder)
        except Failed as failure:
            print(f"failed: {failure}", file=sys.stderr)
            return 1
    print(f"good: {sdist.relative_to(ROOT)}, {wheel.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
