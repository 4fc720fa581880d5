"""Imports run one way, from commands down to the configuration, and in no circle."""

import ast
import re
from functools import cache
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


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(["nlu", *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


KNOWN = modules()


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in KNOWN}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "nlu":
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in KNOWN else node.module for name in names}
    return found


def floor_of(module: str) -> int | None:
    """The floor of a module's package; None for a command, which may be a file in nlu/ or what a package is run by."""
    if module.endswith(".__main__"):
        return None
    package = module.split(".")[1] if module.count(".") else ""
    return next((number for number, packages in enumerate(FLOORS) if package in packages), None)


def test_no_package_imports_one_above_it() -> None:
    wrong = []
    for module, path in KNOWN.items():
        if (own := floor_of(module)) is not None:
            for other in imported(path):
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
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and re.fullmatch(rf"nlu\.({'|'.join(above)})(\.\w+)*", node.value)
    ]  # fmt: skip
    assert named == []


def test_data_knows_no_models() -> None:
    lower = {path for module, path in KNOWN.items() if module.startswith("nlu.data") and module != "nlu.data.__main__"}
    others = {other for path in lower for other in imported(path)}
    assert not [other for other in others if other.startswith(("nlu.models", "nlu.losses", "nlu.optim"))]


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {module for module, path in KNOWN.items() if path.stem != "__init__"}
    # A circle raises CycleError, which names the modules in it.
    order = TopologicalSorter({module: (imported(path) & files) - {module} for module, path in KNOWN.items()})
    assert set(order.static_order()) == set(KNOWN)


def test_launchers_import_no_training() -> None:
    for path in (ROOT.parent / "launchers/hydra_plugins").rglob("*.py"):
        packages = {other.split(".")[1] for other in imported(path) if "." in other}
        assert packages <= ALLOWED_AT_LAUNCHERS, path
