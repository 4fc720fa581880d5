"""Mistakes that benchmarks/mistakes.py draws, and which tests it takes for them."""

import ast
import sys
from pathlib import Path
from textwrap import dedent

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import drawing
    import mistakes
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
    return len(rows) + MOST
'''


@pytest.mark.parametrize(
    "kind, before, after",
    [
        ("comparison", "x = a < b", ["x = (a <= b)", "x = (a >= b)"]),
        ("comparison", "x = a is not None", ["x = (a is None)"]),
        ("comparison", "x = a == b < c", ["x = (a != b < c)", "x = (a == b <= c)", "x = (a == b >= c)"]),
        ("boolean operator", "x = a and f(b)", ["x = (a or f(b))"]),
        ("dropped not", "x = not (a or b)", ["x = (a or b)"]),
        ("dropped call", "x.sync(1)", ["pass"]),
        ("dropped guard", "if a:\n    raise E", ["if False:"]),
        ("dropped guard", "if a:\n    f()", []),
        ("dropped guard", "if (a := b):\n    raise E", []),
        ("swapped arguments", "x = f(a, b)", ["x = f(b, a)"]),
        ("swapped arguments", "x = f(p=a, q=b)", ["x = f(p=b, q=a)"]),
        ("swapped arguments", "x = max(a, b)", []),
        ("swapped arguments", "x = f(a, [b])", []),
        ("swapped statements", "sync(a)\nrename(b)", ["rename(b) sync(a)"]),
        ("swapped statements", "x = read(a)\nrename(x)", []),
        ("constant", "x = 0", ["x = 1"]),
        ("constant", "x = -1", ["x = 0", "x = -2"]),
        ("constant", "x = True", ["x = False"]),
        ("constant", "x = 0.5", ["x = 1.0"]),
        ("constant", "x = 'text'", []),
        ("constant", "zip(a, b, strict=True)", []),
        ("constant", "def f(a, b=0): ...", ["def f(a, b=1): ..."]),
        ("key", "x = a['b']", ["x = a['b_']"]),
        ("key", "x = {'b': 'c'}", ["x = {'b_': 'c'}"]),
        ("key", "x = a.get('b', 'c')", ["x = a.get('b_', 'c')"]),
        ("arithmetic", "x = a + b", ["x = (a - b)"]),
        ("arithmetic", "x = -a", ["x = (a)"]),
        ("arithmetic", "x = a + 'text'", []),
        ("arithmetic", "x = folder / name", []),
        ("arithmetic", "x = int | None", []),
        ("arithmetic", "a += b", ["a -= b", "a = b"]),
        ("arithmetic", 'x = {"键": 1 + a}', ['x = {"键": (1 - a)}']),
    ],
)
def test_each_kind_of_mistake_changes_its_place_and_nothing_else(kind: str, before: str, after: list[str]) -> None:
    places = drawing.mistakes_in("nlu/losses/a.py", dedent(before))
    assert sorted(made.lines[1] for place in places for made in place if made.kind == kind) == sorted(after)


def test_code_without_observable_behaviour_is_not_changed() -> None:
    found = {(made.kind, made.line) for place in drawing.mistakes_in("nlu/a.py", SOURCE) for made in place}
    info, guard, result = ("dropped call", 14), ("dropped guard", 15), ("arithmetic", 17)
    assert found == {("constant", 7), ("constant", 11), info, guard, ("comparison", 15), ("constant", 15), result}


def test_every_mistake_of_a_real_file_can_be_read_and_is_another_program() -> None:
    content = (FOLDER.parent / "nlu/storage/settle.py").read_text(encoding="utf-8")
    places = drawing.mistakes_in("nlu/storage/settle.py", content)
    assert len(places) > 30
    for made in [made for place in places for made in place][::7]:
        assert ast.dump(ast.parse(made.content)) != ast.dump(ast.parse(content)), made.key


def test_drawing_depends_only_on_seed_and_code_and_never_repeats_a_place() -> None:
    code = "\n".join(f"x{number} = a < {number}" for number in range(12))
    sources = {"nlu/losses/a.py": code, "nlu/data/b.py": code + "\n" + code, "launchers/c.py": code}
    drawn = drawing.draw(sources, 30, 3)
    assert drawing.draw(dict(reversed(sources.items())), 30, 3) == drawn != drawing.draw(sources, 30, 4)
    assert len({(made.file, made.start, made.end) for made in drawn}) == 30
    packages = [drawing.package_of(made.file) for made in drawing.draw(sources, 100, 3)]
    assert packages.count("data") > packages.count("losses") > 0 and packages.count("launchers") > 0


def test_a_mistake_meets_the_functions_that_reach_its_line_the_nearest_first() -> None:
    code, source = "MOST = 3\n\n\ndef f(x, y=2):\n    return x + y\n", "nlu/losses/a.py"
    digests = {source: mistakes.digest_of(code)}
    lines = {"own": {"test_f": [5]}, "near": {"": [1], "test_g": [5]}, "far": {"": [5]}, "slow": {"test_h": [5]}}
    folders = {"own": "losses/test_a", "near": "losses/test_b", "far": "data/test_c", "slow": "data/test_d"}
    files = {name: f"tests/{path}.py" for name, path in folders.items()}
    reached = [
        mistakes.Reached(files[name], "", 7.0 + place, {source: found}, digests)
        for place, (name, found) in enumerate(lines.items())
    ]
    texts = {file: "".join(f"def {test}(): ...\n" for test in lines[name]) for name, file in files.items()}
    by_line = {made.line: made for place in drawing.mistakes_in(source, code) for made in place}

    def asked(line: int, limit_s: float = 30, now: str = code) -> list[str]:
        return mistakes.chosen(by_line[line], reached[::-1], {source: now, **texts}, limit_s)

    assert asked(5) == [files["own"], f"{files['near']}::test_g", files["far"]]
    # A default is met by those who run the function.
    assert asked(4) == asked(5) and asked(5, limit_s=0) == [files["own"]]
    assert asked(1) == [files["own"], files["near"]]
    # Where the source has changed since, all count that reached any of it.
    assert asked(1, 90, code + "\n") == [*files.values()][:3] + [f"{files['slow']}::test_h"]


def test_the_report_counts_by_package_and_shows_what_was_not_found() -> None:
    sources = {"nlu/losses/a.py": "x = a == b\ny = c + d\n", "nlu/data/b.py": "z = not e\n"}
    drawn = [made for file, text in sources.items() for place in drawing.mistakes_in(file, text) for made in place]
    results = dict(zip((made.key for made in drawn), ("not found", "hangs", "found by a test"), strict=True))
    told = mistakes.report(drawn, results)
    assert "| data | 1 | 1 | 100% |" in told and "| losses | 2 | 1 | 50% |" in told and "| all | 3 | 2 | 67% |" in told
    assert "- comparison: `nlu/losses/a.py:1: x = a == b -> x = (a != b)`" in told and "c - d" not in told
