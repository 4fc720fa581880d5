"""Names of tests are sentences that fit on a line."""

import ast
from pathlib import Path

LONGEST = 80
"""characters of a name, without its file"""


def names_of_tests(source: str) -> list[str]:
    """Return the names of the test functions in a source, also of those in classes."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in found if node.name.startswith("test_")]


def test_no_test_name_has_more_than_80_characters() -> None:
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    names = {path: names_of_tests(path.read_text(encoding="utf-8")) for path in files}
    assert sum(map(len, names.values())) > 1000, "the files of tests were not found"
    long = [f"{path.name}: {name}, {len(name)}" for path in files for name in names[path] if len(name) > LONGEST]
    assert long == [], "shorten these names to one sentence of behavior: subject, verb, object"
