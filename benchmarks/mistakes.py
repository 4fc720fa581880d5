"""Draw mistakes in the code, make one at a time in a copy, and count how many the tests notice.

    python benchmarks/mistakes.py --fresh 100 --seed 1 --results outputs/mistakes.jsonl
    python benchmarks/mistakes.py --fresh 40 --seed 1 --only nlu/losses nlu/metrics --tests tests/losses tests/metrics

Which lines a file of tests reaches, in all of its processes, is measured once by coverage and kept in .reached until
the file changes (--measure measures again). A mistake meets the test functions that reach its lines, those of its
module first, then those of its package, then the shortest files, at most --seconds of them. A failure counts only
where the same tests pass without the mistake; a hang counts. Given again with the same --results, a call makes only
the mistakes that were not found: after tests were written, for example. Which of them change nothing is for a person
to say. Several calls may run at a time: measure two halves of the tests (--fresh 0 --tests ...), then draw by several
seeds. mutmut and cosmic-ray draw neither calls, guards and keys that are missing nor arguments that change places.
"""

import argparse
import compileall
import json
import os
import py_compile
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import coverage

sys.path.insert(0, str(Path(__file__).parent))
from drawing import Mistake, draw, package_of

REPOSITORY = Path(__file__).resolve().parents[1]
REACHED = REPOSITORY / ".reached"
LEFT_OUT = ("tests/services/", "tests/slurm/", "tests/test_")
"""what needs servers, and what is about other things than the code of nlu"""
SETTINGS = """[run]
core = ctrace
parallel = true
dynamic_context = test_function
data_file = {data}
include = {copy}/nlu/*,{copy}/launchers/*
patch = fork,subprocess,_exit
disable_warnings = no-data-collected,module-not-imported,couldnt-parse
"""
MOST_BYTES = 12 << 30
"""A loop without an end may also fill the memory."""


class Reached(NamedTuple):
    """What a file of tests reaches."""

    file: str
    digest: str
    seconds: float
    lines: dict[str, dict[str, list[int]]]
    """by source and test function; "" has what imports, fixtures and other processes reach"""
    digests: dict[str, str]
    """of the sources as they were"""

    def functions(self, mistake: Mistake, digest: str) -> set[str]:
        """Return the functions that meet a mistake, "" for the whole file: all, if the source has changed since."""
        first, last = mistake.span
        contexts = self.lines.get(mistake.file, {}).items()
        is_same = self.digests.get(mistake.file) == digest
        return {name for name, lines in contexts if not is_same or any(first <= line <= last for line in lines)}


def digest_of(content: str) -> str:
    return sha256(content.encode()).hexdigest()[:16]


def python_files(folder: Path, *tops: str) -> dict[str, str]:
    paths = (path for top in tops for path in sorted((folder / top).rglob("*.py")))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def copy_to(folder: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout.split("\0"):
        if name and (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    # By content, not by time: a mistake may be as long as what was right, and as young.
    compileall.compile_dir(folder, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def run(copy: Path, command: list[str], limit_s: float) -> tuple[int | None, str]:
    """Run `python COMMAND` in the copy; return its status, None where it took too long, and what it said."""
    data = (REPOSITORY / os.environ.get("NLU_DATA", "../shared/data")).resolve()
    paths = f"{copy}{os.pathsep}{copy / 'launchers'}"
    environment = {**os.environ, "PYTHONPATH": paths, "NLU_DATA": str(data), "PYTHONDONTWRITEBYTECODE": ""}
    process = subprocess.Popen(
        [sys.executable, *command], cwd=copy, env=environment, text=True, start_new_session=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES)),
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit_s)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def pytest(copy: Path, tests: list[str], limit_s: float, *first: str) -> tuple[int | None, str]:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line"]
    return run(copy, [*(first or ["-m"]), "pytest", *options, *tests], limit_s)


def measure(copy: Path, file: str, sources: dict[str, str]) -> None:
    """Measure what a file of tests reaches, and keep it."""
    lines: dict[str, dict[str, set[int]]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = Path(folder, "settings")
        settings.write_text(SETTINGS.format(data=f"{folder}/data", copy=copy))
        began_s = time.monotonic()
        measured = ("-m", "coverage", "run", f"--rcfile={settings}", "-m")
        status, said = pytest(copy, [file, "--maxfail=99"], 3600.0, *measured)
        seconds = time.monotonic() - began_s
        for path in Path(folder).glob("data.*"):
            data = coverage.CoverageData(basename=str(path))
            data.read()
            for source in data.measured_files():
                of_source = lines.setdefault(Path(source).relative_to(copy).as_posix(), {})
                for line, contexts in data.contexts_by_lineno(source).items():
                    for context in contexts:
                        of_source.setdefault(context.rpartition(".")[2], set()).add(line)
    kept = {source: {name: sorted(found) for name, found in own.items()} for source, own in lines.items()}
    digests = {source: digest_of(sources[source]) for source in kept if source in sources}
    reached = Reached(file, digest_of((copy / file).read_text()), seconds, kept, digests)
    REACHED.mkdir(exist_ok=True)
    (REACHED / f"{file.replace('/', '+')}.json").write_text(json.dumps(reached))
    print(f"measured {file}: {seconds:.0f} s, status {status}{f': {said[-500:]}' if status else ''}", flush=True)


def chosen(mistake: Mistake, all_reached: list[Reached], texts: dict[str, str], limit_s: float) -> list[str]:
    """Return the tests that meet a mistake: the nearest first, then the shortest, at most `limit_s` of them."""
    folder = str(Path(mistake.file).parent).replace("nlu", "tests", 1).replace("launchers", "tests/launchers", 1)
    own = f"{folder}/test_{Path(mistake.file).stem.strip('_')}.py"
    ranked = sorted(all_reached, key=lambda one: (one.file != own, not one.file.startswith(folder), one.seconds))
    tests, all_s = [], 0.0
    for one in ranked:
        names = one.functions(mistake, digest_of(texts[mistake.file]))
        is_whole = "" in names or any(f"def {name}(" not in texts[one.file] for name in names) or one.file == own
        if (names or one.file == own) and (not tests or all_s + one.seconds <= limit_s):
            all_s += one.seconds
            tests += [one.file] if is_whole else [f"{one.file}::{name}" for name in sorted(names)]
    return tests


def judge(mistake: Mistake, copy: Path, tests: list[str], limit_s: float) -> str:
    """Return "found by TEST", "hangs" or "not found"."""
    path = copy / mistake.file
    right = path.read_text(encoding="utf-8")
    while tests:
        path.write_text(mistake.content, encoding="utf-8")
        status, said = pytest(copy, tests, 60 + 6 * limit_s)
        path.write_text(right, encoding="utf-8")
        if not status:
            return "hangs" if status is None else "not found"
        failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", said, re.MULTILINE)
        if failed is None:
            return f"found by a crash: {said[-200:]}"
        if passes(copy, failed[1]):
            return f"found by {failed[1]}"
        # What fails without the mistake too finds nothing; the others run again.
        tests = [test for test in tests if not failed[1].startswith(test)]
    return "not found"


@cache
def passes(copy: Path, test: str) -> bool:
    return pytest(copy, [test], 600.0)[0] == 0


def report(drawn: list[Mistake], results: dict[str, str]) -> str:
    """Return a table by package and what was not found, as Markdown."""
    total, found = Counter[str](), Counter[str]()
    for mistake in drawn:
        for name in (package_of(mistake.file), "all"):
            total[name] += 1
            found[name] += results[mistake.key] != "not found"
    lines = ["| package | drawn | found | share |", "| --- | --- | --- | --- |"]
    for name in sorted(total, key=lambda name: (name == "all", name)):
        lines.append(f"| {name} | {total[name]} | {found[name]} | {found[name] / total[name]:.0%} |")
    missed = [mistake for mistake in drawn if results[mistake.key] == "not found"]
    return "\n".join([*lines, "", *(f"- {mistake.kind}: `{mistake.key}`" for mistake in missed)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", type=int, default=100, metavar="N", help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="in files whose path has one of these")
    parser.add_argument("--tests", nargs="+", default=[""], metavar="TEXT", help="by tests whose path has one of these")
    parser.add_argument("--seconds", type=float, default=120.0, help="of tests for a mistake, as measured")
    parser.add_argument("--results", type=Path, metavar="FILE", help="a line for each mistake; what it has found stays")
    parser.add_argument("--measure", action="store_true", help="measure all these tests again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nlu-mistakes-") as name:
        copy = Path(name).resolve()
        copy.chmod(0o755)
        copy_to(copy)
        _, where = run(copy, ["-c", "import nlu, hydra_plugins.grid_sweeper as g; print(nlu, g)"], 600)
        assert where.count(str(copy)) == 2, f"the copy in {copy} is not what its tests import: {where}"
        sources, tests, reached = python_files(copy, "nlu", "launchers"), python_files(copy, "tests"), []
        for file, text in tests.items():
            is_wanted = any(part in file for part in arguments.tests) and not file.startswith(LEFT_OUT)
            if is_wanted and Path(file).name.startswith("test_"):
                kept = REACHED / f"{file.replace('/', '+')}.json"
                if arguments.measure or not kept.exists() or json.loads(kept.read_text())[1] != digest_of(text):
                    measure(copy, file, sources)
                reached.append(Reached(*json.loads(kept.read_text())))
        wanted = {file: text for file, text in sources.items() if any(part in file for part in arguments.only)}
        drawn, results = draw(wanted, arguments.fresh, arguments.seed), {}
        if arguments.results and arguments.results.exists():
            results = dict(json.loads(line) for line in arguments.results.read_text().splitlines())
        for number, mistake in enumerate(drawn, 1):
            if results.get(mistake.key, "not found") == "not found":
                nearest = chosen(mistake, reached, sources | tests, arguments.seconds)
                results[mistake.key] = judge(mistake, copy, nearest, arguments.seconds)
                print(f"{number}/{len(drawn)} {results[mistake.key]}: {mistake.key}", flush=True)
                if arguments.results:
                    with arguments.results.open("a", encoding="utf-8") as log:
                        log.write(json.dumps([mistake.key, results[mistake.key]], ensure_ascii=False) + "\n")
    print(report(drawn, results))


if __name__ == "__main__":
    main()
