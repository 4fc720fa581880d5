"""Put mistakes into a copy, one at a time, and count how many of them the tests notice.

    python benchmarks/mistakes.py --write benchmarks/MISTAKES.md
    python benchmarks/mistakes.py --quick --workers 2
    python benchmarks/mistakes.py --quick --only nlu/losses --results /tmp/mistakes.jsonl --continue

The mistakes are those of benchmarks/mistakes.toml. For each the tests that are named there are run and, where these
pass, all that `make test` runs; the first failure ends it. With --quick the named tests alone decide. A failure counts
only where the same test passes without the mistake, which is tried at the end, of all tests that failed at once.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

import machine

REPOSITORY = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
WANTED = 0.95
NAMED_LIMIT_S, ALL_LIMIT_S = 600.0, 3600.0
FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>.+?)(?: - (?P<reason>.*))?$", re.MULTILINE)
NAMED, ALL, HUNG, NOT_FOUND = "by its tests", "by the others", "by a hang", "not found"
WHERE = '''
import os, subprocess, sys
from pathlib import Path
import hydra_plugins.hyperband_sweeper.config, nlu
from tests import warm
HERE, ASK = Path(__file__).resolve().parents[1], ("-c", "import nlu; print(nlu.__file__)")

def test_the_copy_is_what_is_imported(tmp_path):
    alone = subprocess.run([sys.executable, *ASK], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    forked = warm.run(ASK, cwd=tmp_path, env=dict(os.environ)).stdout
    for file in (nlu.__file__, hydra_plugins.hyperband_sweeper.config.__file__, alone, forked):
        assert Path(file.strip()).is_relative_to(HERE), f"{file} is imported instead of {HERE}"
'''


@dataclass(frozen=True)
class Mistake:
    """One mistake in one place."""

    file: str
    line: str
    """what stands there; once in the file, or once behind `after`"""
    mistake: str
    """what is put in its stead"""
    says: str
    """what is wrong then"""
    tests: list[str]
    """tried first"""
    known: bool = False
    """whether it passed unnoticed in an earlier count"""
    after: str = ""
    survives: str = ""
    """why no test can find it"""

    @property
    def key(self) -> str:
        return f"{self.file}: {self.line.strip()} -> {self.mistake.strip()}"

    @property
    def package(self) -> str:
        return "launchers" if self.file.startswith("launchers/") else self.file.split("/")[1]

    def made(self, content: str) -> str:
        """Return the content of the file with the mistake. Raises ValueError where its place is not to be found."""
        before, anchor, behind = content.partition(self.after) if self.after else ("", "", content)
        count = behind.count(self.line) if anchor or not self.after else 0
        if count != 1:
            raise ValueError(f"{self.line.strip()!r} stands there {count} times, not once")
        return before + anchor + behind.replace(self.line, self.mistake)


@dataclass(frozen=True)
class Result:
    """What the tests said of a mistake."""

    key: str
    found: str
    test: str = ""
    """the first that failed"""
    reason: str = ""
    seconds: float = 0.0


@dataclass
class Copy:
    """A copy of the working tree, in which one mistake at a time is made."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
        for name in filter(None, tracked.decode().split("\0")):
            if (REPOSITORY / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, self.folder / name)
        data = (REPOSITORY / os.environ.get("NLU_DATA", "../shared/data")).resolve()
        # Without bytecode nothing stale can hide a mistake; one thread, since bytes are compared.
        self.environment = {
            **os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'launchers'}", "NLU_DATA": str(data),
            "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    @contextmanager
    def with_mistake(self, mistake: Mistake) -> Iterator[None]:
        """Make the mistake for the block."""
        path = self.folder / mistake.file
        right = path.read_text(encoding="utf-8")
        path.write_text(mistake.made(right), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(right, encoding="utf-8")

    def pytest(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Run pytest as `make test` does; returns its status, None where it took too long, and what it said."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *arguments]
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said = process.communicate(timeout=limit_s)[0]
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]

    def require_imported(self) -> None:
        """Leave where tests in this copy would import nlu, or their processes would, from elsewhere."""
        test = self.folder / "tests" / "test_where.py"
        test.write_text(WHERE, encoding="utf-8")
        status, said = self.pytest([str(test)], NAMED_LIMIT_S)
        test.unlink()
        if status != 0:
            sys.exit(f"the copy in {self.folder} is not what its tests import:\n{said}")


def read_list(path: Path = LIST) -> list[Mistake]:
    """Return the mistakes of a list."""
    return [Mistake(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mistakes"]]


def require_places(mistakes: Sequence[Mistake]) -> None:
    """Leave where a mistake has no place, or would not even parse."""
    problems = []
    for mistake in mistakes:
        try:
            ast.parse(mistake.made((REPOSITORY / mistake.file).read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError) as error:
            problems.append(f"{mistake.file}: {mistake.says}: {error}")
    if problems:
        sys.exit("\n".join(problems))


def spread_over(processes: int) -> list[str]:
    """Return what has pytest share its files out among processes, as `make test` does."""
    return ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []


def judge(copy: Copy, mistake: Mistake, is_quick: bool, processes: int) -> Result:
    """Make a mistake and return what the tests say of it."""
    began_s = time.monotonic()
    spread = spread_over(processes)
    steps = [(NAMED, mistake.tests, NAMED_LIMIT_S)] + ([] if is_quick else [(ALL, spread, ALL_LIMIT_S)])
    found, match = NOT_FOUND, None
    with copy.with_mistake(mistake):
        for how, arguments, limit_s in steps:
            status, said = copy.pytest(["-x", *arguments], limit_s)
            if status != 0:
                found, match = HUNG if status is None else how, FAILED.search(said)
                if status is not None and match is None:
                    raise RuntimeError(f"pytest ended with {status} and named no test:\n{said[-3000:]}")
                break
    test, reason = (match["test"], match["reason"] or "") if match else ("", "")
    return Result(mistake.key, found, test, reason[:200], round(time.monotonic() - began_s, 1))


def judge_all(
    mistakes: Sequence[Mistake], copies: Sequence[Copy], known: dict[str, Result], file: Path, is_quick: bool
) -> None:
    """Judge all mistakes that are not known yet, and write down each result as soon as it is there."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)
    processes = max(1, (os.cpu_count() or 1) // len(copies))

    def work(mistake: Mistake) -> tuple[Mistake, Result]:
        copy = free.get()
        try:
            return mistake, judge(copy, mistake, is_quick, processes)
        finally:
            free.put(copy)

    left = [mistake for mistake in mistakes if mistake.key not in known]
    with ThreadPoolExecutor(len(copies)) as pool, file.open("a", encoding="utf-8") as log:
        for number, (mistake, result) in enumerate(pool.map(work, left), 1):
            known[mistake.key] = result
            log.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
            log.flush()
            by = f", {result.test}" if result.test else ""
            print(f"{number}/{len(left)} {result.found}{by} ({result.seconds:.0f} s): {mistake.file}: {mistake.says}")


def without_false(results: dict[str, Result], copy: Copy, processes: int) -> dict[str, Result]:
    """Run every test that found something without any mistake, and take back what one found that fails then too."""
    tests = sorted({result.test for result in results.values() if result.test})
    if not tests:
        return results
    status, said = copy.pytest([*spread_over(processes), *tests], ALL_LIMIT_S)
    if status not in (0, 1):
        sys.exit(f"the tests that found something could not be run again ({status}):\n{said[-3000:]}")
    false = {match["test"] for match in FAILED.finditer(said)}
    for test in sorted(false):
        print(f"{test} fails without any mistake too, so it has found none")
    return {
        key: replace(result, found=NOT_FOUND, test="") if result.test in false else result
        for key, result in results.items()
    }


def report(mistakes: Sequence[Mistake], results: dict[str, Result], is_quick: bool) -> str:
    """Return the table by package and the mistakes that were not found, as Markdown."""
    lines = ["| package | mistakes | found | share |", "| --- | --- | --- | --- |"]
    packages = list(dict.fromkeys(mistake.package for mistake in mistakes))
    for name in [*packages, "all"]:
        own = [mistake for mistake in mistakes if name in (mistake.package, "all")]
        found = sum(results[mistake.key].found != NOT_FOUND for mistake in own)
        lines.append(f"| {name} | {len(own)} | {found} | {found / len(own):.0%} |")
    how = "their named tests alone" if is_quick else "all tests of `make test`"
    lines += ["", f"Found by {how}; a test that hangs counts as one that fails.", "", "## Not found", ""]
    for mistake in mistakes:
        if results[mistake.key].found == NOT_FOUND:
            lines.append(f"- `{mistake.file}`: {mistake.says}. {mistake.survives or 'Not explained yet.'}")
            lines.append(f"  `{mistake.line.strip()}` became `{mistake.mistake.strip()}`".replace("\n", " "))
    hung = [mistake for mistake in mistakes if results[mistake.key].found == HUNG]
    return "\n".join([*lines, *(f"- hung: `{mistake.file}`: {mistake.says}" for mistake in hung)]) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="those whose file or sentence holds this text")
    parser.add_argument("--list", action="store_true", help="list them and stop")
    parser.add_argument("--quick", action="store_true", help="let the named tests alone decide")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="copies at work at a time (default 1)")
    parser.add_argument("--sample", type=int, metavar="N", help="that many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write each result there, a JSON object a line")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="keep what --results holds already")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    mistakes = read_list()
    if arguments.only:
        mistakes = [mistake for mistake in mistakes if arguments.only in f"{mistake.file} {mistake.says}"]
    if arguments.sample is not None:
        mistakes = random.Random(arguments.seed).sample(mistakes, min(arguments.sample, len(mistakes)))
    if arguments.list or not mistakes:
        print("\n".join(f"{mistake.file}: {mistake.says}" for mistake in mistakes) or "there is none such")
        return
    require_places(mistakes)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nlu-mistakes-") as folder:
        file = arguments.results or Path(folder) / "results.jsonl"
        if file.exists() and not arguments.goes_on:
            sys.exit(f"{file} exists; add --continue to go on with it, or name another file")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        results = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}
        copies = [Copy(Path(folder) / f"copy-{number}") for number in range(max(1, arguments.workers))]
        copies[0].require_imported()
        judge_all(mistakes, copies, results, file, arguments.quick)
        results = {mistake.key: results[mistake.key] for mistake in mistakes}
        results = without_false(results, copies[0], len(copies))
    text = report(mistakes, results, arguments.quick)
    print(text)
    if arguments.write:
        head = (
            f"# Mistakes that the tests notice\n\n`python benchmarks/mistakes.py`, {time.strftime('%Y-%m-%d')}, "
            f"{(time.monotonic() - began_s) / 60:.0f} minutes.\n{machine.description(1)}.\n{machine.versions()}.\n\n"
        )
        arguments.write.write_text(head + text, encoding="utf-8")
    found = sum(result.found != NOT_FOUND for result in results.values())
    print(f"{found} of {len(mistakes)} found ({found / len(mistakes):.1%}); at least {WANTED:.0%} are wanted")
    sys.exit(found < WANTED * len(mistakes))


if __name__ == "__main__":
    main()
