"""Mistakes of one place in a file, found in its syntax tree; drawn with a seed.

A site is a place in the text with what may stand there instead. Sites are found for comparisons, boolean operators,
calls and guards that are left out, arguments and statements that change places, constants, keys, axes, defaults of
parameters and arithmetic. Not changed is what no test of behaviour should see: docstrings, annotations, what only type
checkers read, errors' and logs' texts, log.debug, assertions, of which zip's strict=True is one, and what stands in
f-strings, whose positions Python 3.11 does not know.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import operators
from operators import Change, Text


@dataclass(frozen=True)
class Mutation:
    """One mistake."""

    file: str
    kind: str
    line: int
    before: str
    """the lines that it touches, as one line"""
    after: str
    content: str
    """the whole file with the mistake"""
    span: tuple[int, int]
    """the first and last of the lines that a test must run to meet it"""
    names: tuple[str, ...] | None
    """what its statement binds where it runs when the module is imported; None in functions"""

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"

    @property
    def package(self) -> str:
        return package_of(self.file)


@dataclass(frozen=True)
class Site:
    """A place, and what may stand there instead."""

    file: str
    text: str
    kind: str
    start: int
    end: int
    choices: tuple[str, ...]
    span: tuple[int, int]
    names: tuple[str, ...] | None

    def mutation(self, choice: str) -> Mutation:
        """Return the mistake that puts `choice` there."""
        first, last = self.text.rfind("\n", 0, self.start) + 1, self.text.find("\n", self.end)
        last = len(self.text) if last < 0 else last
        before, after = self.text[first : self.start], self.text[self.end : last]
        return Mutation(
            self.file, self.kind, self.text.count("\n", 0, self.start) + 1,
            " ".join(self.text[first:last].split()), " ".join(f"{before}{choice}{after}".split()),
            self.text[: self.start] + choice + self.text[self.end :], self.span, self.names,
        )  # fmt: skip

    @cached_property
    def mutations(self) -> list[Mutation]:
        return [self.mutation(choice) for choice in self.choices]


def package_of(file: str) -> str:
    """Return what a file is counted with: a folder of nlu/, the commands directly in it, or all launchers."""
    top, *others = file.split("/")
    return top if top == "launchers" else others[0] if len(others) > 1 else "commands"


class Finder:
    """Finds the sites of one file."""

    def __init__(self, file: str, content: str):
        self._file, self._text = file, Text(content)
        self._span: tuple[int, int] = (1, 1)
        self._names: tuple[str, ...] | None = ()
        self.sites: dict[tuple[int, int], Site] = {}
        self.visit(ast.parse(content))

    def _add(self, changes: Iterator[Change]) -> None:
        for change in changes:
            if change.choices:
                # A number that is an axis is found as an axis first, by the call that it stands in.
                self.sites.setdefault(
                    (change.start, change.end),
                    Site(
                        self._file, self._text.content, change.kind, change.start, change.end, change.choices,
                        self._span, self._names,
                    ),
                )  # fmt: skip

    @contextmanager
    def _within(self, span: tuple[int, int], names: tuple[str, ...] | None) -> Iterator[None]:
        before = self._span, self._names
        self._span, self._names = span, names
        try:
            yield
        finally:
            self._span, self._names = before

    def visit(self, node: ast.AST) -> None:
        if operators.is_exempt(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._visit_function(node)
        elif isinstance(node, ast.ClassDef):
            self._visit_all([*operators.decorators(node), *node.body])
        elif isinstance(node, ast.stmt):
            with self._within(header(node), self._names if self._names is None else bound(node)):
                self._visit_here(node)
        else:
            self._visit_here(node)

    def _visit_here(self, node: ast.AST) -> None:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, name, None), list):
                self._visit_neighbours(body)
        if operators.is_log_call(node):
            return
        self._add(operators.changes(node, self._text))
        if operators.is_negative(node):
            return
        self._visit_all(child for name, child in children(node) if name not in ("annotation", "returns"))

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        inside = (node.body[0].lineno, node.end_lineno or node.lineno)
        with self._within(inside, None):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._add(operators.defaults(default, self._text))
                self.visit(default)
            self._visit_all(operators.decorators(node))
            self._visit_neighbours(node.body)
            self._visit_all(node.body)

    def _visit_neighbours(self, body: Sequence[ast.stmt]) -> None:
        for first, second in pairwise(body):
            with self._within((first.lineno, second.end_lineno or second.lineno), self._names):
                self._add(operators.swapped_statements(first, second, self._text))

    def _visit_all(self, nodes: Iterator[ast.AST] | Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes directly in a node, with the names of their fields."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                yield name, child


def header(node: ast.stmt) -> tuple[int, int]:
    """Return the first and last line of a statement, without those of the statements in it."""
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body and isinstance(body, list) else node.end_lineno or node.lineno
    return node.lineno, max(node.lineno, last)


def bound(node: ast.stmt) -> tuple[str, ...]:
    """Return the names that a statement binds."""
    return tuple(
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )  # fmt: skip


def find_sites(file: str, content: str) -> list[Site]:
    """Return the sites of a file, in their order in the text."""
    return sorted(Finder(file, content).sites.values(), key=lambda site: (site.start, site.end))


def runs(mutation: Mutation, right: str) -> bool:
    """Whether Python can read the file with the mistake, and reads something else than without."""
    try:
        return tree(mutation.content) != tree(right)
    except SyntaxError:
        return False


@lru_cache(maxsize=8)
def tree(content: str) -> str:
    return ast.dump(ast.parse(content))


def draw(sources: Mapping[str, str], count: int, seed: int) -> list[Mutation]:
    """Return that many mutations of files, by path: a function of the seed and the files.

    A package is drawn by its number of lines, then a site of it, then what stands there instead. No site is drawn
    twice, and the first of many are those that fewer would be.
    """
    pools: dict[str, list[Site]] = {}
    lines: dict[str, int] = {}
    # Sorted, so that a seed draws the same mistakes on every machine.
    for file in sorted(sources):
        package = package_of(file)
        pools.setdefault(package, []).extend(find_sites(file, sources[file]))
        lines[package] = lines.get(package, 0) + sources[file].count("\n")
    generator, drawn = random.Random(seed), []
    while len(drawn) < count:
        left = [package for package in pools if pools[package]]
        if not left:
            break
        # By lines, not by sites: a package with many constants has many sites, but no more mistakes of programmers.
        (package,) = generator.choices(left, [lines[name] for name in left])
        site = pools[package].pop(generator.randrange(len(pools[package])))
        mutation = site.mutation(generator.choice(site.choices))
        # A mistake that is a syntax error would be found by any import, so it says nothing of the tests.
        if runs(mutation, sources[mutation.file]):
            drawn.append(mutation)
    return drawn


@dataclass(frozen=True)
class Equivalent:
    """A mistake that changes nothing that anyone could see, and why."""

    file: str
    before: str
    after: str
    argument: str

    def is_of(self, mutation: Mutation) -> bool:
        return (self.file, self.before, self.after) == (mutation.file, mutation.before, mutation.after)


def unfit(equivalents: Sequence[Equivalent], sources: Mapping[str, str]) -> list[Equivalent]:
    """Return those that fit no site any more, or lack an argument."""
    possible = {
        (mutation.file, mutation.before, mutation.after)
        for file in {entry.file for entry in equivalents} & sources.keys()
        for site in find_sites(file, sources[file])
        for mutation in site.mutations
    }
    return [
        entry
        for entry in equivalents
        if (entry.file, entry.before, entry.after) not in possible or not re.search(r"\w+ \w+", entry.argument)
    ]
