"""Which tests reach a line: measured once for each file of tests, kept in a folder, and carried over to changed code.

The folder is .reached, or what NLU_MISTAKES_MAP names, which several checkouts may share. A file of tests has one entry
there for each content that was measured: the tests that passed, how long they took, and the lines that they reached of
each source as it was then. Where a source has changed since, its lines are found again by comparing the two texts.
"""

import difflib
import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drawing import Mutation

REPOSITORY = Path(__file__).resolve().parents[1]
LEFT_OUT = ("tests/services/", "tests/slurm/", "tests/test_benchmarks.py", "tests/test_install.py")
"""what needs servers, and what is about other things than the code of nlu"""

READ_DEFAULTS = "tests/conf/test_keys.py"
"""reads the defaults of constructors from their source, without running a line of them"""


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Entry:
    """What was measured of one file of tests."""

    file: str
    content: str
    """the digest of the file of tests"""
    seconds: dict[str, float]
    lines: dict[str, dict[str, int]]
    """by test and source: a mask of lines"""
    sources: dict[str, str]
    """the digest of each source that it reached"""


@dataclass(frozen=True)
class Test:
    """A test that reaches a line."""

    name: str
    seconds: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


class Folder:
    """Where entries are kept."""

    def __init__(self, path: Path):
        self.path = path
        (path / "sources").mkdir(parents=True, exist_ok=True)

    @classmethod
    def of_environment(cls) -> "Folder":
        return cls(Path(os.environ.get("NLU_MISTAKES_MAP") or REPOSITORY / ".reached").resolve())

    def _entries(self, file: str) -> Path:
        return self.path / file.replace("/", "+")

    def latest(self, file: str, content: str) -> Entry | None:
        """Return what was measured of a file of tests as it is now, else what was measured of it last, if anything."""
        # The latest measurement is a good guess for a file of tests that has changed since: most of its tests are the
        # same.
        paths = sorted(self._entries(file).glob("*.json"), key=lambda path: path.stat().st_mtime)
        exact = [path for path in paths if path.stem == digest(content)]
        found = (exact or paths)[-1:]
        return Entry(file, **json.loads(found[0].read_text(encoding="utf-8"))) if found else None

    def source(self, key: str) -> str:
        return (self.path / "sources" / key).read_text(encoding="utf-8")

    def keep(self, file: str, content: str, told: Mapping[str, list], sources: Mapping[str, str]) -> None:
        """Keep the output of the plugin for the tests of one file."""
        of_file = {test: part for test, part in told.items() if test.partition("::")[0] == file}
        reached = {name for _, lines in of_file.values() for name in lines if name in sources}
        for name in reached:
            self._write(self.path / "sources" / digest(sources[name]), sources[name])
        entry = {
            "content": digest(content),
            "seconds": {test: seconds for test, (seconds, _) in of_file.items()},
            "lines": {
                test: {name: int(mask, 16) for name, mask in lines.items() if name in sources}
                for test, (_, lines) in of_file.items()
            },
            "sources": {name: digest(sources[name]) for name in sorted(reached)},
        }
        self._entries(file).mkdir(exist_ok=True)
        self._write(self._entries(file) / f"{digest(content)}.json", json.dumps(entry))

    @staticmethod
    def _write(path: Path, content: str) -> None:
        # Several threads may keep the same source.
        part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        part.write_text(content, encoding="utf-8")
        # Written under another name and renamed, so that a reader sees a whole file.
        part.replace(path)


def old_lines(old: str, new: str) -> list[list[int]]:
    """Return for each line of a text the lines of an older one that it has come from; both count from 1.

    A line that is new has come from those that stood in its place, or else from the one before it.
    """
    found: list[list[int]] = [[]]
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for kind, first, last, new_first, new_last in matcher.get_opcodes():
        if kind == "equal":
            found += [[line + 1] for line in range(first, last)]
        else:
            found += [list(range(first + 1, last + 1)) or [max(1, first)]] * (new_last - new_first)
    return found


@dataclass
class Reached:
    """Answers which tests reach what, of the code and the tests as they are now."""

    folder: Folder
    entries: list[Entry]
    sources: Mapping[str, str]
    tests: Mapping[str, str]
    """the files of tests, by path"""
    _old: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Folder, sources: Mapping[str, str], tests: Mapping[str, str]) -> "Reached":
        found = (folder.latest(file, content) for file, content in tests.items())
        return cls(folder, [entry for entry in found if entry is not None], sources, tests)

    def missing(self, only: Sequence[str]) -> list[str]:
        """Return the files of tests that were not measured as they are now.

        Of those that were measured earlier, only the ones that reached a file whose path holds one of `only`.
        """
        known = {entry.file: entry for entry in self.entries}
        return [
            file
            for file, content in self.tests.items()
            if file not in known
            or (
                known[file].content != digest(content)
                and any(text in name for name in known[file].sources for text in only)
            )
        ]

    def tests_of(self, mutation: Mutation, limit_s: float) -> list[Test]:
        """Return the tests that meet a mutation: those of its module and package first, then the shortest.

        Together they take at most `limit_s`, or are one. Those of a file stay together, because they share fixtures.
        """
        found = self._all_of(mutation)
        rank = {test.name: nearness(test.file, mutation.file) for test in found}
        chosen: list[Test] = []
        all_s, of_file_s = 0.0, Counter[str]()
        for test in sorted(found, key=lambda test: (rank[test.name], test.seconds, test.name)):
            if not chosen or all_s + test.seconds <= limit_s:
                chosen.append(test)
                all_s += test.seconds
                of_file_s[test.file] += test.seconds
        return sorted(chosen, key=lambda test: (rank[test.name], of_file_s[test.file], test.file, test.seconds))

    def _all_of(self, mutation: Mutation) -> list[Test]:
        if mutation.names is None:
            found = self._reaching({mutation.file: set(range(mutation.span[0], mutation.span[1] + 1))})
            # What was not seen to reach it: processes that are killed, or that import a copy of the code, and tests
            # that get a cached value which another one had computed.
            others = [test for file in self._named_like(mutation.file) for test in self._of_file(file)]
            others += self._of_file(READ_DEFAULTS) if mutation.kind == "default" else []
            return found + [test for test in others if test not in found]
        # Its line runs at imports only; tests that read the name it binds meet it.
        for where in (self._mentions(mutation), {mutation.file: set(range(1, self._length(mutation.file) + 1))}):
            if found := self._reaching(where):
                return found
        return []

    def _of_file(self, file: str) -> list[Test]:
        found: Counter[str] = Counter()
        for entry in self.entries:
            for test, seconds in entry.seconds.items() if entry.file == file else ():
                if name := self._name_now(entry, test):
                    found[name] += seconds
        return [Test(name, seconds) for name, seconds in found.items()]

    def _named_like(self, file: str) -> list[str]:
        """Return the files of tests whose name says that they test a file."""
        wanted = f"test_{Path(file).stem.strip('_')}.py"
        return [name for name in self.tests if Path(name).name == wanted]

    def _length(self, file: str) -> int:
        return self.sources[file].count("\n")

    def _mentions(self, mutation: Mutation) -> dict[str, set[int]]:
        if not mutation.names:
            return {}
        name = re.compile(rf"\b(?:{'|'.join(map(re.escape, mutation.names))})\b")
        return {
            file: {number for number, line in enumerate(content.splitlines(), 1) if name.search(line)}
            for file, content in self.sources.items()
            if name.search(content)
        }

    def _reaching(self, where: Mapping[str, Iterable[int]]) -> list[Test]:
        found: dict[str, float] = {}
        for entry in self.entries:
            files = where.keys() & entry.sources.keys()
            masks = {file: self._mask(file, entry.sources[file], where[file]) for file in files}
            for test, lines in entry.lines.items():
                if any(lines.get(file, 0) & mask for file, mask in masks.items()):
                    name = self._name_now(entry, test)
                    if name is not None:
                        found[name] = found.get(name, 0.0) + entry.seconds.get(test, 0.0)
        return [Test(name, seconds) for name, seconds in found.items()]

    def _mask(self, file: str, key: str, lines: Iterable[int]) -> int:
        if key == digest(self.sources[file]):
            return sum(1 << line for line in lines)
        if (file, key) not in self._old:
            self._old[file, key] = old_lines(self.folder.source(key), self.sources[file])
        old = self._old[file, key]
        return sum(1 << line for line in {earlier for line in lines if line < len(old) for earlier in old[line]})

    def _name_now(self, entry: Entry, test: str) -> str | None:
        """Return how a test is called now, None where it is gone; without its parameters where the file has changed."""
        if entry.content == digest(self.tests[entry.file]):
            return test
        plain = test.partition("[")[0]
        return plain if re.search(rf"\bdef {re.escape(plain.rpartition('::')[2])}\(", self.tests[entry.file]) else None


def nearness(test: str, file: str) -> int:
    """Return 0 for the tests of a module, 1 for those of its folder, 2 for others."""
    folder, _, name = file.rpartition("/")
    folder = "tests/launchers" if folder.startswith("launchers/") else f"tests{folder.removeprefix('nlu')}"
    if not test.startswith(f"{folder}/"):
        return 2
    return 0 if test == f"{folder}/test_{name.strip('_')}" else 1


def by_folder(files: Sequence[str], most: int = 6) -> list[list[str]]:
    """Return files of tests in batches that are measured in one process: of one folder, which share what they start."""
    batches: list[list[str]] = []
    for file in sorted(files, key=lambda file: (file.rpartition("/")[0], file)):
        if batches and len(batches[-1]) < most and batches[-1][-1].rpartition("/")[0] == file.rpartition("/")[0]:
            batches[-1].append(file)
        else:
            batches.append([file])
    return batches
