"""Draw mistakes in the code, make one at a time in a copy, and count how many the tests notice.

    python benchmarks/mistakes.py --fresh 200 --seed 1 --write benchmarks/MISTAKES.md
    python benchmarks/mistakes.py --fresh 40 --seed 1 --only nlu/losses nlu/metrics --results /tmp/losses.jsonl
    python benchmarks/mistakes.py --fresh 40 --seed 1 --only nlu/losses nlu/metrics --results /tmp/losses.jsonl --again

A mistake meets the tests that reach its line, those of its module and package first, then the shortest, at most
--seconds of them. The first failure ends it, and so does a hang. A failure counts only where the same test passes
without the mistake. Which tests reach a line is measured once, which takes several times as long as `make test`, and
again for files of tests that have changed (benchmarks/reached.py); --tests limits it to some of them. Mistakes that
change nothing are listed with the argument in benchmarks/equivalents.toml. After new tests were written, --again makes
those mistakes of --results again that were not found.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

import machine
from copied import REPOSITORY, Copy, copies, python_files
from drawing import Equivalent, Mutation, draw, unfit
from reached import LEFT_OUT, Folder, Reached, Test, by_folder

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+)$", re.MULTILINE)
NOT_FOUND = re.compile(r"^ERROR: not found: (.+)$", re.MULTILINE)
FOUND, HUNG, CRASHED, SURVIVED, UNREACHED = "found", "hung", "crashed", "not found", "not reached"
MEASURE_LIMIT_S = 3600.0
Work, Answer = TypeVar("Work"), TypeVar("Answer")


@dataclass(frozen=True)
class Result:
    """What the tests said of a mistake."""

    key: str
    found: str
    test: str = ""
    """the first that failed"""
    reason: str = ""
    seconds: float = 0.0
    ran: list[str] = field(default_factory=list)
    """the tests that it passed"""

    @property
    def is_found(self) -> bool:
        return self.found in (FOUND, HUNG, CRASHED)


def first_failed(said: str, tests: Sequence[str]) -> tuple[str, str] | None:
    """Return the first of these tests that failed, or its file where that could not be read, and the reason."""
    found = FAILED.search(said)
    if found is None:
        return None
    # A test's parameters may hold what stands before the reason, and a file that has changed is asked for all of them.
    names = [name for name in tests if f"{found[1]} - ".startswith((f"{name} - ", f"{name}["))]
    name = max(names, key=len, default=found[1].partition("::")[0].partition(" - ")[0])
    return name, found[1][len(name) :].removeprefix(" - ")


def with_whole_functions(tests: Sequence[Test], said: str) -> list[Test] | None:
    """Return the tests, with the whole function of each that pytest did not find; None where it found all of them.

    A mistake in a constant may change the parameters of tests, and with them their names.
    """
    unknown = NOT_FOUND.findall(said)
    names = {test.name for test in tests if "[" in test.name and any(end.endswith(test.name) for end in unknown)}
    if not names:
        return None
    found: dict[str, Test] = {}
    for test in tests:
        name = test.name.partition("[")[0] if test.name in names else test.name
        found[name] = Test(name, test.seconds + (found[name].seconds if name in found else 0.0))
    return list(found.values())


class Judge:
    """Makes mistakes and returns what the tests say of them."""

    def __init__(self, reached: Reached, limit_s: float):
        self._reached, self._limit_s = reached, limit_s
        self._passes: dict[str, bool] = {}
        """whether a test passes without a mistake"""
        self._lock = Lock()

    def __call__(self, mutation: Mutation, copy: Copy) -> Result:
        began_s = time.monotonic()
        tests = self._reached.tests_of(mutation, self._limit_s)
        while True:
            left = [test for test in tests if self._passes.get(test.name, True)]
            if not left:
                return Result(mutation.key, UNREACHED)
            names = [test.name for test in left]
            with copy.with_content(mutation.file, mutation.content):
                status, said = copy.pytest(["-x", *names], 60.0 + 6 * sum(test.seconds for test in left))
            seconds = round(time.monotonic() - began_s, 1)
            if status == 4 and (asked := with_whole_functions(left, said)):
                tests = asked
                continue
            failed = first_failed(said, names)
            if status == 0:
                return Result(mutation.key, SURVIVED, seconds=seconds, ran=names)
            if status is None:
                return Result(mutation.key, HUNG, seconds=seconds)
            if failed is None:
                # Statuses of pytest: 4 for wrong arguments, 5 if no test was collected. Only a mistake that breaks an
                # import may cause them.
                if status in (4, 5) and "ImportError" not in said and "conftest" not in said:
                    raise RuntimeError(f"pytest ended with {status} and named no test:\n{said[-3000:]}")
                return Result(mutation.key, CRASHED, seconds=seconds, reason=said[-300:])
            by, reason = failed
            if self._passes_without(by, copy):
                return Result(mutation.key, FOUND, by, reason[:200], seconds)
            failing = {test.name: False for test in left if by in (test.name, test.file)}
            if not failing:
                raise RuntimeError(f"{by} failed, which was not asked for:\n{said[-3000:]}")
            # A test that also fails without the mistake is flaky or broken here; it is left out, and the others run
            # again.
            self._passes |= failing
            print(f"{by} fails without any mistake too, so it finds none")

    def _passes_without(self, test: str, copy: Copy) -> bool:
        if test not in self._passes:
            status, _ = copy.pytest([test], 600.0)
            with self._lock:
                self._passes[test] = status == 0
        return self._passes[test]


def in_copies(work: Callable[[Work, Copy], Answer], todo: Sequence[Work], made: Sequence[Copy]) -> Iterator[Answer]:
    """Yield what `work` returns for each item, in their order, each worked on in a copy that is free."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in made:
        free.put(copy)

    def one(item: Work) -> Answer:
        copy = free.get()
        try:
            return work(item, copy)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(made)) as pool:
        yield from pool.map(one, todo)


def measure(files: Sequence[str], made: Sequence[Copy], folder: Folder) -> None:
    """Measure which lines the tests of files reach, and keep it."""
    batches = by_folder(files)

    def of_batch(batch: Sequence[str], copy: Copy) -> str:
        began_s = time.monotonic()
        sources, tests = python_files(copy.folder, "nlu", "launchers"), python_files(copy.folder, "tests")
        with tempfile.TemporaryDirectory(prefix="nlu-reaching-", ignore_cleanup_errors=True) as name:
            status, said = copy.pytest(
                ["-p", "benchmarks.reaching", *batch], MEASURE_LIMIT_S, {"NLU_REACHING": name}
            )  # fmt: skip
            told = Path(name) / "reached.json"
            if not told.exists():
                return f"{', '.join(batch)} could not be measured ({status}):\n{said[-2000:]}"
            reached = json.loads(told.read_text(encoding="utf-8"))
        for file in batch:
            folder.keep(file, tests[file], reached, sources)
        failed = FAILED.findall(said)
        without = f"; left out, since they fail: {', '.join(failed)}" if failed else ""
        return f"{', '.join(batch)}: {len(reached)} tests, {time.monotonic() - began_s:.0f} s{without}"

    for number, said in enumerate(in_copies(of_batch, batches, made), 1):
        print(f"measured {number}/{len(batches)}: {said}", flush=True)


def read_equivalents(path: Path = EQUIVALENTS) -> list[Equivalent]:
    """Return the mistakes that are known to change nothing."""
    return [Equivalent(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalents", [])]


def report(drawn: Sequence[Mutation], equal: Mapping[str, str], results: Mapping[str, Result]) -> str:
    """Return the table by package and the mistakes that were not found, as Markdown."""
    lines = ["| package | drawn | equivalent | found | share |", "| --- | --- | --- | --- | --- |"]
    for name in [*sorted({mutation.package for mutation in drawn}), "all"]:
        own = [mutation for mutation in drawn if name in (mutation.package, "all")]
        judged = [results[mutation.key] for mutation in own if mutation.key not in equal]
        found = sum(result.is_found for result in judged)
        share = f"{found / len(judged):.0%}" if judged else ""
        lines.append(f"| {name} | {len(own)} | {len(own) - len(judged)} | {found} | {share} |")
    lines += ["", "## Not found", ""]
    for mutation in sorted(drawn, key=lambda mutation: (mutation.file, mutation.line)):
        result = results.get(mutation.key)
        if result is None or result.is_found:
            continue
        shown = ", ".join(result.ran[:3]) + (", ..." if len(result.ran) > 3 else "")
        count = f"{len(result.ran)} test{'s' if len(result.ran) > 1 else ''}"
        how = f"{count} passed: {shown}" if result.ran else "no test reaches it"
        lines += [
            f"- `{mutation.file}:{mutation.line}`, {mutation.kind}; {how}", "", "      " + mutation.before,
            "      " + mutation.after, "",
        ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", type=int, default=100, metavar="N", help="how many are drawn (default 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the drawing (default 0)")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="in files whose path has one of these")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for a mistake, as measured (default 60)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="copies at work at a time (default 1)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write each result there, a JSON object a line")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--continue", dest="is_continued", action="store_true", help="keep what --results holds already")
    kept.add_argument("--again", action="store_true", help="keep what was found, make the others again")
    parser.add_argument("--measure", action="store_true", help="measure which tests reach what, and stop")
    parser.add_argument(
        "--tests", nargs="*", default=[""], metavar="TEXT",
        help="measure only files of tests whose path has one of these; the others count as they were measured last",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list what is drawn and stop")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table and what was not found there")
    return parser.parse_args()


def read_results(arguments: argparse.Namespace) -> dict[str, Result]:
    """Return the results that are kept of an earlier call."""
    file: Path | None = arguments.results
    if file is None or not file.exists():
        return {}
    if not (arguments.is_continued or arguments.again):
        sys.exit(f"{file} exists; add --continue or --again, or name another file")
    results = [Result(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return {result.key: result for result in results if result.is_found or not arguments.again}


def judge_all(
    drawn: Sequence[Mutation], judge: Judge, made: Sequence[Copy], known: dict[str, Result], file: Path | None
) -> None:
    """Judge the mutations that are not known yet, and write down each result as soon as it is there."""
    left = [mutation for mutation in drawn if mutation.key not in known]
    for number, (mutation, result) in enumerate(zip(left, in_copies(judge, left, made), strict=True), 1):
        known[mutation.key] = result
        if file is not None:
            # One line after each mistake, so that an interrupted call can be continued.
            with file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
        by = f" by {result.test}" if result.test else ""
        print(f"{number}/{len(left)} {result.found}{by} ({result.seconds:.0f} s): {mutation.key}", flush=True)


def main() -> None:
    arguments = parse_arguments()
    began_s = time.monotonic()
    known = read_results(arguments)
    sources = python_files(REPOSITORY, "nlu", "launchers")
    wanted = {file: content for file, content in sources.items() if any(text in file for text in arguments.only)}
    drawn = draw(wanted, arguments.fresh, arguments.seed)
    if arguments.list:
        print("\n".join(f"{mutation.kind}: {mutation.key}" for mutation in drawn))
        return
    equivalents = read_equivalents()
    if wrong := unfit(equivalents, sources):
        sys.exit("\n".join(f"{EQUIVALENTS.name}: {entry.file}: {entry.before} fits no site" for entry in wrong))
    tests = {file: content for file, content in python_files(REPOSITORY, "tests").items() if is_measured(file)}
    folder = Folder.of_environment()
    with tempfile.TemporaryDirectory(prefix="nlu-mistakes-") as name, copies(Path(name), arguments.workers) as made:
        # Tests that import another checkout would find no mistake at all.
        made[0].require_imported()
        missing = Reached.read(folder, sources, tests).missing(arguments.only)
        measure([file for file in missing if any(text in file for text in arguments.tests)], made, folder)
        if arguments.measure:
            return
        equal = {mutation.key: entry.argument for mutation in drawn for entry in equivalents if entry.is_of(mutation)}
        judged = [mutation for mutation in drawn if mutation.key not in equal]
        judge = Judge(Reached.read(folder, sources, tests), arguments.seconds)
        judge_all(judged, judge, made, known, arguments.results)
    text = report(drawn, equal, known)
    print(text)
    if arguments.write:
        words = ["--fresh", str(arguments.fresh), "--seed", str(arguments.seed)]
        words += ["--only", *arguments.only] if arguments.only != [""] else []
        head = (
            f"# Mistakes that the tests notice\n\n`python benchmarks/mistakes.py {' '.join(words)}`, "
            f"{time.strftime('%Y-%m-%d')}, {(time.monotonic() - began_s) / 60:.0f} minutes.\n"
            f"{machine.description(arguments.workers)}.\n{machine.versions()}.\n\n"
        )
        arguments.write.write_text(head + text, encoding="utf-8")


def is_measured(file: str) -> bool:
    return Path(file).name.startswith("test_") and not file.startswith(LEFT_OUT)


if __name__ == "__main__":
    main()
