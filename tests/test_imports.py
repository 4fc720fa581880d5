"""Imports run one way, from commands down to the configuration, and in no circle."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import nlu

ROOT = Path(nlu.__file__).parent
ORDER = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("Imports run one way")[2]
FLOORS = [
    re.findall(r"[a-z]+", floor) for floor in reversed(ORDER.partition("commands -> ")[2].partition(".")[0].split("->"))
]
"""the packages, lowest first, as CONTRIBUTING.md has them: each may import those of its floor and below"""
ALLOWED_AT_LAUNCHERS = {"config", "storage", "runs", "display", "search", "jobs", "reports"}


def modules(folder: Path, package: str) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "nlu":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module


def floor_of(module: str) -> int | None:
    """The floor of a module's package; None for a command, which may be a file in nlu/ or what a package is run by."""
    if module.endswith(".__main__"):
        return None
    package = module.split(".")[1] if module.count(".") else ""
    return next((number for number, packages in enumerate(FLOORS) if package in packages), None)


def test_no_package_imports_one_above_it() -> None:
    known = modules(ROOT, "nlu")
    wrong = []
    for module, path in known.items():
        if (own := floor_of(module)) is not None:
            for other in imported(path, known):
                theirs = floor_of(other)
                if theirs is not None and theirs > own or theirs is None and other != "nlu":
                    wrong.append(f"{module} imports {other}")
    assert wrong == [], "a command, or a package above"
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"conf", "commands"} == {name for names in FLOORS for name in names}


def test_the_configuration_names_no_class_of_a_package_above_it() -> None:
    above = {package for floor in FLOORS[1:] for package in floor}
    named = [
        (path.name, node.value)
        for path in (ROOT / "config").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and re.fullmatch(rf"nlu\.({'|'.join(above)})(\.\w+)*", node.value)
    ]  # fmt: skip
    assert named == []


def test_data_knows_no_models() -> None:
    known = modules(ROOT, "nlu")
    assert not [
        (module, other)
        for module, path in known.items()
        if module.startswith("nlu.data") and module != "nlu.data.__main__"
        for other in imported(path, known)
        if other.startswith(("nlu.models", "nlu.losses", "nlu.optim"))
    ]


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules(ROOT, "nlu")
    # A circle raises CycleError, which names the modules in it.
    order = TopologicalSorter(
        {
            module: {
                other for other in imported(path, known) if other != module and not known[other].stem == "__init__"
            }
            for module, path in known.items()
        }
    ).static_order()
    assert set(order) == set(known)


def test_launchers_import_no_training() -> None:
    launchers = ROOT.parent / "launchers" / "hydra_plugins"
    known = modules(ROOT, "nlu")
    for path in launchers.rglob("*.py"):
        packages = {other.split(".")[1] for other in imported(path, known) if "." in other}
        assert packages <= ALLOWED_AT_LAUNCHERS, path
