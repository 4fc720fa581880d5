"""What a command costs before it does anything: --help, and a mistyped key or flag, of every command.

    python benchmarks/entries.py

Processor time of the whole process, beside that of a program that shows or refuses the same with nothing behind it: for
a command that composes a configuration a bare Hydra program over the same configuration files, for any other a bare
argparse script.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import options
from table import Row, show

from nlu.config.choices import SCHEMAS, conf_dir

ROOT = Path(__file__).resolve().parents[1]
MOST = {"help": 1.1, "refused": 1.5}
"""times the cost of bare Hydra; a refused key is composed once more without it, to report all other mistakes"""
MOST_OF_ARGPARSE = 3.0
HYDRA = """
import hydra

@hydra.main(config_path="{conf}", config_name="{name}", version_base=None)
def main(config):
    print(config)

main()
"""
ARGPARSE = """
import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("folders", nargs="+", type=Path)
parser.add_argument("--metric")
print(parser.parse_args())
"""
REPORT = (("diff",), ("errors",), ("clean",))


def commands() -> list[tuple[str, ...]]:
    """Return the words of each command behind `python -m`, as `python -m nlu` lists them, and those of the reports."""
    done = subprocess.run([sys.executable, "-m", "nlu", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("  python -m nlu.")]
    return [(name,) for name in names] + [("nlu.report", *words) for words in REPORT]


def bare_of(command: Sequence[str]) -> str:
    """Return the script that a command is measured against."""
    name = command[0].removeprefix("nlu.")
    return f"bare_{name}.py" if name in SCHEMAS else "bare.py"


def cpu_s(command: Sequence[str], folder: Path, environment: dict[str, str]) -> float:
    """Return the processor time of a process and of those that it waited for."""
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=nothing, stderr=nothing)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1, 2), f"{' '.join(command)} ended with {process.returncode}"
    return used.ru_utime + used.ru_stime


def measure(*given: str) -> list[Row]:
    """Measure in turns; `given` is as on the command line."""
    arguments = options.parser(__doc__).parse_args(given)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Where nothing compiled is kept, a checkout would be compiled at each start, and what pip installed would not.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        (folder / "bare.py").write_text(ARGPARSE)
        for name in SCHEMAS:
            (folder / f"bare_{name}.py").write_text(HYDRA.format(conf=conf_dir(), name=name))
        sides: dict[tuple[str, str], list[str]] = {}
        for words in commands():
            script = bare_of(words)
            wrong = ["--metrc=x", "."] if script == "bare.py" else ["devicee=cpu"]
            for kind, rest in (("help", ["--help"]), ("refused", wrong)):
                sides[" ".join(words), kind] = ["-m", *words, *rest]
                sides[script, kind] = [script, *rest]
        found: dict[tuple[str, str], list[float]] = {side: [] for side in sides}
        for turn in range(arguments.turns + 1):
            for side, rest in sides.items():
                taken_s = cpu_s([sys.executable, *rest], folder, environment)
                # The first turn compiles modules and brings files into the page cache.
                found[side] += [taken_s] if turn else []
    return _rows({side: statistics.median(values) for side, values in found.items()})


def _rows(median_s: dict[tuple[str, str], float]) -> list[Row]:
    rows = []
    for (command, what), seconds in median_s.items():
        if command.startswith("bare"):
            continue
        bare = bare_of(command.split())
        peer, most = ("bare argparse", MOST_OF_ARGPARSE) if bare == "bare.py" else ("bare Hydra", MOST[what])
        claim, theirs_s = f"entry, {command}: {what}", median_s[bare, what]
        rows.append(Row(claim, peer, "CPU s", theirs_s, seconds, target=1 / most, lower_is_better=True))
    show(rows)
    return rows


if __name__ == "__main__":
    measure(*sys.argv[1:])
