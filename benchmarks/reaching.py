"""A plugin of pytest that writes down which lines each test reaches, in its own process and in those that it starts.

    NLU_REACHING=FOLDER python -m pytest -p benchmarks.reaching tests/losses

In the process of the tests each test is a context of coverage's. A process that a test starts, or that is forked for
it, writes a separate file when it ends; a file belongs to the test after which it is first seen. At the end
FOLDER/reached.json has {test: [seconds, {file: mask}]} of those that passed. Bit n of a mask, in hexadecimal, is
line n.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER, HERE = Path(os.environ["NLU_REACHING"]), Path.cwd()
SETTINGS = f"""[run]
core = ctrace
parallel = true
data_file = {FOLDER}/data
include = {HERE}/nlu/*,{HERE}/launchers/*
patch = fork,subprocess
disable_warnings = no-data-collected,module-not-imported,couldnt-parse,no-ctracer
"""


class Reaching:
    """Follows the tests."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._reached: dict[str, dict[str, int]] = {}
        self._files: dict[str, str] = {}
        self._failed: set[str] = set()
        (FOLDER / "settings").write_text(SETTINGS, encoding="utf-8")
        self._coverage = coverage.Coverage(config_file=str(FOLDER / "settings"))
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            # What runs between two tests, such as fixtures of a module, belongs to none of them.
            self._coverage.switch_context("")
            self._see(item.nodeid)

    def _see(self, test: str) -> None:
        for name in os.listdir(FOLDER):
            if name.startswith("data.") and "-journal" not in name:
                self._files.setdefault(name, test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        own = self._coverage.get_data()
        for file in own.measured_files():
            for line, contexts in own.contexts_by_lineno(file).items():
                for test in filter(None, contexts):
                    self._add(test, file, 1 << line)
        for name, test in self._files.items():
            self._add_process(test, FOLDER / name)
        told = {
            test: [round(seconds, 3), {file: hex(mask) for file, mask in self._reached.get(test, {}).items()}]
            for test, seconds in self._seconds.items()
            if test not in self._failed
        }
        (FOLDER / "reached.json").write_text(json.dumps(told), encoding="utf-8")

    def _add(self, test: str, file: str, mask: int) -> None:
        reached, name = self._reached.setdefault(test, {}), Path(file).relative_to(HERE).as_posix()
        reached[name] = reached.get(name, 0) | mask

    def _add_process(self, test: str, path: Path) -> None:
        data = coverage.CoverageData(basename=str(path))
        try:
            data.read()
            for file in data.measured_files():
                self._add(test, file, sum(1 << line for line in data.lines(file) or []))
        except coverage.CoverageException as problem:
            # Of a process that was killed while it wrote.
            print(f"{path.name}, of {test}, cannot be read: {problem}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reaching(), "nlu-reaching")
