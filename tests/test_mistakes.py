"""Mistakes that benchmarks/mistakes.py draws, and which tests it takes for them."""

import ast
import importlib
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import copied
    import drawing
    import mistakes
    import reached
finally:
    # Other scripts there have the names of modules that libraries try to import.
    sys.path.remove(str(FOLDER))

SOURCE = '''
"""A module: x == 1 and y < 2."""
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    LATE = 3 + 4
MOST = 20
log.debug("%d", 1 + 2)


def size(rows: Literal["x"], least: int = 5) -> "dict[1 < 2]":
    """Return 1 + 1."""
    assert rows != 3, "no rows"
    log.info("%s of %s", rows, least)
    if least > 7:
        raise ValueError(f"{least - 1} is less than {3}", 3 * 4)
    """An attribute: 1 < 2."""
    return len(rows) + MOST
'''


def changes(source: str, kind: str) -> set[tuple[str, str]]:
    """Return what lines a kind of mistake makes of a source, by the lines before."""
    sites = drawing.find_sites("nlu/losses/a.py", dedent(source))
    return {(made.before, made.after) for site in sites if site.kind == kind for made in site.mutations}


@pytest.mark.parametrize(
    "kind, before, after",
    [
        ("comparison", "a < b", ["a <= b", "a >= b"]),
        ("comparison", "a <= b", ["a < b", "a > b"]),
        ("comparison", "a > b", ["a >= b", "a <= b"]),
        ("comparison", "a >= b", ["a > b", "a < b"]),
        ("comparison", "a == b", ["a != b"]),
        ("comparison", "(a) != (b)", ["(a) == (b)"]),
        ("comparison", "a is b", ["a is not b"]),
        ("comparison", "a is not None", ["a is None"]),
        ("comparison", "a in b", ["a not in b"]),
        ("comparison", "a not in b", ["a in b"]),
        ("comparison", "x = a < b < c", ["x = a <= b < c", "x = a >= b < c", "x = a < b <= c", "x = a < b >= c"]),
        ("constant", "zip(a, b, strict=True)", []),
        ("constant", "zip(a, b, strict=False)", ["zip(a, b, strict=True)"]),
        ("boolean operator", "a and f(b)", ["a or f(b)"]),
        ("boolean operator", "a or b or c", ["a and b or c", "a or b and c"]),
        ("dropped not", "x = not (a or b)", ["x = (a or b)"]),
        ("dropped call", "x.sync(1)", ["pass"]),
        ("dropped call", "async def f():\n    await g()", ["pass"]),
        ("dropped guard", "if a:\n    raise E", ["if False:"]),
        ("dropped guard", "if a: return", None),
        ("dropped guard", "for a in b:\n    if a:\n        continue", ["if False:"]),
        ("dropped guard", "if a:\n    f()", []),
        ("dropped guard", "if (a := b):\n    raise E", []),
        ("swapped arguments", "x = f(a, b)", ["x = f(b, a)"]),
        ("swapped arguments", "x = f(p=a, q=b)", ["x = f(p=b, q=a)"]),
        ("swapped arguments", "x = max(a, b)", []),
        ("swapped arguments", "x = f(a, [b])", []),
        ("swapped arguments", "x = f(a, a)", []),
        ("swapped statements", "sync(a)\nrename(b)", ["rename(b) sync(a)"]),
        ("swapped statements", "x = read(a)\nrename(x)", []),
        ("swapped statements", "x = read(a)\nrename(b)", ["rename(b) x = read(a)"]),
        ("constant", "x = 0", ["x = 1"]),
        ("constant", "x = 3", ["x = 4", "x = 2"]),
        ("constant", "x = -1", ["x = 0", "x = -2"]),
        ("constant", "x = True", ["x = False"]),
        ("constant", "x = 0.5", ["x = 1.0"]),
        ("constant", "x = 0.0", ["x = 1.0"]),
        ("constant", "x = 'text'", []),
        ("key", "x = a['b']", ["x = a['b_']"]),
        ("key", "x = {'b': 'c'}", ["x = {'b_': 'c'}"]),
        ("key", "x = a.get('b', 'c')", ["x = a.get('b_', 'c')"]),
        ("axis", "x = a.shape[1]", ["x = a.shape[0]"]),
        ("axis", "x = a.sum(1)", ["x = a.sum(0)"]),
        ("axis", "x = torch.cat(a, 1)", ["x = torch.cat(a, 0)"]),
        ("axis", "x = a.mean(dim=-1)", ["x = a.mean(dim=0)"]),
        ("default", "def f(a, b=2, *, c=True): ...", [
            "def f(a, b=3, *, c=True): ...", "def f(a, b=1, *, c=True): ...", "def f(a, b=2, *, c=False): ...",
        ]),
        ("arithmetic", "x = a + b", ["x = a - b"]),
        ("arithmetic", "x = a * b", ["x = a / b"]),
        ("arithmetic", "x = a // b", ["x = a * b"]),
        ("arithmetic", "x = -a", ["x = a"]),
        ("arithmetic", "x = a + 'text'", []),
        ("arithmetic", "x = folder / name", []),
        ("arithmetic", "x: int | None = f(a | b)", ["x: int | None = f(a & b)"]),
        ("arithmetic", "a += b", ["a -= b", "a = b"]),
        ("arithmetic", "a |= b", ["a = b"]),
    ],
)  # fmt: skip
def test_each_kind_of_mistake_changes_its_place_and_nothing_else(kind: str, before: str, after: list[str]) -> None:
    if after is None:
        assert changes(f"def f():\n    {before}", kind) == {(before, "if False: return")}
        return
    made = changes(before, kind)
    assert {new for _, new in made} == set(after)
    assert all(old in " ".join(before.split()) for old, _ in made)


def test_a_number_that_is_an_axis_is_one_site() -> None:
    kinds = [site.kind for site in drawing.find_sites("nlu/a.py", "x = a.sum(1)\ny = b.shape[0]\n")]
    assert kinds == ["axis", "axis"]


def test_code_without_observable_behaviour_is_not_changed() -> None:
    found = {(site.kind, site.text[site.start : site.end]) for site in drawing.find_sites("nlu/a.py", SOURCE)}
    assert found == {
        ("constant", "20"), ("default", "5"), ("comparison", ">"), ("constant", "7"), ("dropped guard", "least > 7"),
        ("arithmetic", "+"), ("dropped call", 'log.info("%s of %s", rows, least)'),
    }  # fmt: skip


def test_positions_count_letters_of_any_alphabet() -> None:
    assert changes('x = {"键": 1 + a}\n', "arithmetic") == {('x = {"键": 1 + a}', 'x = {"键": 1 - a}')}


def test_every_mistake_of_real_files_can_be_read_and_is_another_program() -> None:
    for file in ("nlu/losses/circle.py", "nlu/storage/settle.py"):
        content = (FOLDER.parent / file).read_text(encoding="utf-8")
        sites = drawing.find_sites(file, content)
        assert len(sites) > 30
        right = ast.dump(ast.parse(content))
        for mutation in [made for site in sites for made in site.mutations][::7]:
            assert ast.dump(ast.parse(mutation.content)) != right, mutation.key
            assert mutation.span[0] <= mutation.span[1] <= content.count("\n")


def test_drawing_depends_only_on_seed_and_code_and_never_repeats_a_site() -> None:
    code = "\n".join(f"x{number} = a < {number}" for number in range(12))
    sources = {"nlu/losses/a.py": code, "nlu/data/b.py": code + "\n" + code, "launchers/c.py": code}
    drawn = drawing.draw(sources, 30, 3)
    assert drawing.draw(dict(reversed(sources.items())), 30, 3) == drawn
    assert drawing.draw(sources, 10, 3) == drawn[:10]
    assert drawing.draw(sources, 30, 4) != drawn
    assert len({(mutation.file, mutation.line, mutation.kind) for mutation in drawn}) == 30
    packages = [mutation.package for mutation in drawing.draw(sources, 100, 3)]
    assert packages.count("data") > packages.count("losses") > 0 and packages.count("launchers") > 0
    assert len(drawing.draw({"nlu/a.py": "x = a < b\n"}, 10, 0)) == 1


def test_an_equivalent_must_fit_a_place_and_have_an_argument() -> None:
    sources = {"nlu/a.py": "x = a < b\n"}
    right = drawing.Equivalent("nlu/a.py", "x = a < b", "x = a <= b", "a is never b")
    assert drawing.unfit([right], sources) == [] and right.is_of(
        drawing.find_sites("nlu/a.py", "x = a < b\n")[0].mutations[0]
    )
    for wrong in (
        drawing.Equivalent("nlu/a.py", "x = a < c", "x = a <= c", "a is never c"),
        drawing.Equivalent("nlu/b.py", "x = a < b", "x = a <= b", "a is never b"),
        drawing.Equivalent("nlu/a.py", "x = a < b", "x = a <= b", ""),
    ):
        assert drawing.unfit([right, wrong], sources) == [wrong]


def test_the_modules_by_which_a_copy_is_known_exist() -> None:
    (names,) = re.findall(r"^import (.*hydra_plugins.*)$", copied.WHERE, re.MULTILINE)
    assert [importlib.import_module(name).__name__ for name in names.split(", ")] == names.split(", ")


def test_the_equivalents_of_the_repository_fit() -> None:
    equivalents = mistakes.read_equivalents()
    files = {entry.file: FOLDER.parent / entry.file for entry in equivalents}
    sources = {file: path.read_text(encoding="utf-8") for file, path in files.items() if path.is_file()}
    assert drawing.unfit(equivalents, sources) == []


@pytest.fixture
def folder(tmp_path: Path) -> reached.Folder:
    return reached.Folder(tmp_path)


FILE, OTHER, TESTS, FAR = "nlu/losses/a.py", "nlu/data/b.py", "tests/losses/test_those.py", "tests/training/test_c.py"
CODE = "MOST = 3\n\n\ndef f(x, y=2):\n    if x > y:\n        return x\n    return y + 1\n"


def measured(folder: reached.Folder, tests: dict[str, str]) -> None:
    """Keep what would be measured of two files of tests."""
    lines = {"f": 0b1110000, "all": 0b11110000}
    told = {
        f"{TESTS}::test_f[1]": [2.0, {FILE: hex(lines["f"])}], f"{TESTS}::test_g": [1.0, {FILE: hex(lines["all"])}],
        f"{FAR}::test_h": [0.5, {FILE: hex(lines["all"])}], f"{FAR}::test_i": [0.1, {OTHER: hex(2)}],
    }  # fmt: skip
    for file, content in tests.items():
        folder.keep(file, content, told, {FILE: CODE, OTHER: "x = MOST\n"})


def of(line: int, code: str = CODE) -> drawing.Mutation:
    return next(made for site in drawing.find_sites(FILE, code) for made in site.mutations if made.line == line)


TEXTS = {TESTS: "def test_f(n): ...\ndef test_g(): ...\n", FAR: "def test_h(): ...\ndef test_i(): ...\n"}


def names(folder: reached.Folder, line: int, code: str = CODE, limit_s: float = 60.0, **tests: str) -> list[str]:
    texts = {**TEXTS, **tests}
    found = reached.Reached.read(folder, {FILE: code, OTHER: "x = MOST\n"}, texts).tests_of(of(line, code), limit_s)
    return [test.name.rpartition("::")[2] for test in found]


def test_the_tests_that_reach_a_line_run_those_of_its_module_first_then_the_shortest(
    folder: reached.Folder,
) -> None:
    measured(folder, TEXTS)
    assert names(folder, 7) == ["test_g", "test_h"]
    assert names(folder, 5) == ["test_g", "test_f[1]", "test_h"]
    assert names(folder, 5, limit_s=1.6) == ["test_g", "test_h"] and names(folder, 5, limit_s=0) == ["test_g"]
    # A default is met by those who run its function.
    assert names(folder, 4) == ["test_g", "test_f[1]", "test_h"]
    # What runs when the module is imported is met by those who read its name.
    assert names(folder, 1) == ["test_i"]


def test_a_line_also_meets_the_tests_of_the_file_named_like_its_own(folder: reached.Folder) -> None:
    """A process that is killed, or that imports a copy of the code, writes nothing down."""
    measured(folder, TEXTS)
    like, content = "tests/losses/test_a.py", "def test_k(): ...\n"
    folder.keep(like, content, {f"{like}::test_k": [3.0, {OTHER: hex(2)}]}, {OTHER: "x = MOST\n"})
    assert names(folder, 7, **{like: content}) == ["test_k", "test_g", "test_h"]


def test_lines_are_found_again_where_the_code_has_changed(folder: reached.Folder) -> None:
    measured(folder, TEXTS)
    longer = CODE.replace("def f", "NEW = 1\n\n\ndef f").replace("return y + 1", "z = y\n    return z + 1")
    assert names(folder, 11, longer) == ["test_g", "test_h"]
    assert names(folder, 8, longer) == ["test_g", "test_f[1]", "test_h"]
    assert reached.old_lines("a\nb\nc\n", "a\nnew\nb\nother\n") == [[], [1], [1], [2], [3]]


def test_a_file_of_tests_that_has_changed_is_measured_again_by_itself(folder: reached.Folder) -> None:
    measured(folder, TEXTS)
    changed = {**TEXTS, TESTS: "def test_f(): ...\n", "tests/test_new.py": ""}
    found = reached.Reached.read(folder, {FILE: CODE}, changed)
    assert found.missing([""]) == [TESTS, "tests/test_new.py"]
    assert found.missing(["nlu/data"]) == ["tests/test_new.py"]
    # Until then its tests count by their names, as far as they are there.
    assert names(folder, 5, **{TESTS: changed[TESTS]}) == ["test_f", "test_h"]
    folder.keep(TESTS, changed[TESTS], {f"{TESTS}::test_f": [1.0, {FILE: hex(1 << 7)}]}, {FILE: CODE})
    assert names(folder, 7, **{TESTS: changed[TESTS]}) == ["test_f", "test_h"]
    # Another checkout that shares the folder keeps its measurements.
    assert names(folder, 7) == ["test_g", "test_h"]


@pytest.mark.parametrize(
    "line, name",
    [
        ("FAILED t/test_a.py::test_f[a - b] - assert 1 == 2", "t/test_a.py::test_f[a - b]"),
        ("FAILED t/test_a.py::test_f - assert 1 == 2", "t/test_a.py::test_f"),
        ("ERROR t/test_a.py - NameError: x", "t/test_a.py"),
        ("ERROR t/test_a.py::test_f[a - b]", "t/test_a.py::test_f[a - b]"),
    ],
)
def test_the_first_failed_test_is_parsed_without_its_reason(line: str, name: str) -> None:
    said = f"..F\n=== short test summary info ===\n{line}\n1 failed, 2 passed in 0.1s\n"
    found = mistakes.first_failed(said, ["t/test_a.py::test_f", "t/test_a.py::test_f[a - b]"])
    assert found is not None and found[0] == name
    assert mistakes.first_failed("3 passed\n", ["t/test_a.py::test_f"]) is None


def test_a_test_whose_parameters_a_mistake_renamed_is_asked_for_as_a_whole() -> None:
    tests = [mistakes.Test(f"t/test_a.py::test_f[{name}]", 1.0) for name in ("7", "8")] + [
        mistakes.Test("t/b.py::test_g", 2.0)
    ]
    said = "ERROR: not found: /copy/t/test_a.py::test_f[7]\n(no match in any of [<Module test_a.py>])\n"
    found = mistakes.with_whole_functions(tests, said)
    assert [test.name for test in found] == ["t/test_a.py::test_f", "t/test_a.py::test_f[8]", "t/b.py::test_g"]
    assert mistakes.with_whole_functions(tests, "3 passed\n") is None


def test_the_report_counts_by_package_and_shows_what_was_not_found() -> None:
    sources = {"nlu/losses/a.py": "x = a < b\ny = c + d\n", "nlu/data/b.py": "z = not e\n"}
    less, plus, other = (
        site.mutations[0]
        for file in ("nlu/losses/a.py", "nlu/data/b.py")
        for site in drawing.find_sites(file, sources[file])
    )
    results = {
        plus.key: mistakes.Result(plus.key, mistakes.SURVIVED, ran=["tests/losses/test_a.py::test_g"]),
        other.key: mistakes.Result(other.key, mistakes.HUNG),
    }
    told = mistakes.report([less, plus, other], {less.key: "a is never b"}, results)
    assert "| data | 1 | 0 | 1 | 100% |" in told and "| losses | 2 | 1 | 0 | 0% |" in told
    assert "| all | 3 | 1 | 1 | 50% |" in told
    assert "`nlu/losses/a.py:2`, arithmetic; 1 test passed: tests/losses/test_a.py::test_g" in told
    assert "y = c + d" in told and "y = c - d" in told and "x = a <= b" not in told and "not e" not in told
