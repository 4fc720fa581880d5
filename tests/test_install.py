"""The program and its configuration are found from a checkout, from a wheel and from an editable install."""

import ast
import configparser
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import nlu
from tests.distribution import copy_checkout

REPOSITORY = Path(__file__).resolve().parents[1]
OPTIONAL = (
    "hf", "model2vec", "peft", "sentence-transformers", "onnx", "oss", "errors", "pai", "serve", "tensorboard",
    "mlflow", "wandb", "tf", "zh", "faiss",
)  # fmt: skip
DISTRIBUTIONS = {
    "annotated_types": "annotated-types",
    "hydra": "hydra-core",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "hydra_plugins": "hydra-optuna-sweeper",
    "mlflow": "mlflow-skinny",
    "odps": "pyodps",
    "tensorflow": "tensorflow-cpu",
    "faiss": "faiss-cpu",
    "python_calamine": "python-calamine",
    "sentence_transformers": "sentence-transformers",
}
"""Import names that differ from the names of their packages."""


def pip(*arguments: str, python: str | None = None) -> None:
    """Run pip offline; what builds the package is what is installed here."""
    pytest.importorskip("pip")
    options = ["--python", python] if python else []
    is_recent = int(version("setuptools").partition(".")[0]) >= 77
    offline = ["--no-build-isolation"] if is_recent else []
    command = [sys.executable, "-m", "pip", *options, "--disable-pip-version-check", *arguments, "--no-deps", *offline]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def copy_of_checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a copy of the checkout, so that building leaves nothing behind here."""

    def copy(name: str) -> Path:
        target = tmp_path_factory.mktemp(name) / "checkout"
        copy_checkout(target)
        return target

    return copy


@pytest.fixture(scope="module")
def wheel_file(copy_of_checkout: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(copy_of_checkout("for-wheel")), "--wheel-dir", str(folder))
    (path,) = folder.glob("nlu-*.whl")
    return path


def test_the_wheel_holds_every_module_and_every_choice_and_nothing_else(wheel_file):
    with zipfile.ZipFile(wheel_file) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {
        f"nlu/{path.relative_to(REPOSITORY / 'nlu').as_posix()}"
        for path in (REPOSITORY / "nlu").rglob("*")
        if path.suffix in (".py", ".css", ".html", ".js", ".c", ".h", ".typed")
    }
    conf = {
        f"nlu/conf/{path.relative_to(REPOSITORY / 'conf').as_posix()}"
        for path in (REPOSITORY / "conf").rglob("*")
        if path.suffix in (".yaml", ".py")
    }
    plugins = {
        path.relative_to(REPOSITORY / "launchers").as_posix() for path in (REPOSITORY / "launchers").rglob("*.py")
    }
    assert held == modules | plugins | conf


def declared(names: configparser.SectionProxy, key: str) -> set[str]:
    lines = [line.partition("[")[0] for line in names[key].splitlines() if line.strip()]
    return {re.split(r"[<>=!~ ;]", line)[0].lower() for line in lines}


def test_every_package_that_is_imported_is_declared():
    settings = configparser.ConfigParser()
    settings.read(REPOSITORY / "setup.cfg")
    required = declared(settings["options"], "install_requires")
    extras = set().union(*(declared(settings["options.extras_require"], key) for key in OPTIONAL))
    imported: dict[str, str] = {}
    for path in [*(REPOSITORY / "nlu").rglob("*.py"), *(REPOSITORY / "launchers").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            imported |= {module.partition(".")[0]: path.name for module in modules}
    foreign = set(imported) - set(sys.stdlib_module_names) - {"nlu"}
    names = {DISTRIBUTIONS.get(name, name) for name in foreign}
    assert names - required - extras == set()
    # What others import for us: fsspec, optuna and Hydra by name of a protocol, sampler or launcher; the configurations
    # of samplers (hydra/sweeper/sampler=tpe) are hydra-optuna-sweeper's; optuna's importances are scikit-learn's.
    by_name = {"s3fs", "scikit-learn", "hydra-submitit-launcher", "hydra-optuna-sweeper"}
    assert required - names <= by_name, "declared, but never imported"


def test_the_version_is_that_of_the_newest_notes_and_of_the_citation() -> None:
    notes, citation = ((REPOSITORY / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
    assert re.findall(r"^## (\S+)", notes, re.MULTILINE)[0] == nlu.__version__
    assert f"version: {nlu.__version__}\n" in citation


PROGRAM = """
import hydra

@hydra.main(config_path=None)
def main(config):
    print("ran", hydra.core.hydra_config.HydraConfig.get().runtime.choices["hydra/launcher"])

main()
"""


def test_an_editable_install_is_found_in_the_folder_that_contains_the_clone(tmp_path):
    clone, python = tmp_path / "nlu", tmp_path / "venv/bin/python"
    copy_checkout(clone)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=120)
    (packages,) = (tmp_path / "venv/lib").glob("*/site-packages")
    # What the packages of this Python need; a path in such a file does not load what is editable here.
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip("install", "--editable", str(clone), python=str(python))

    def said(*arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(python), *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0 and "warn" not in done.stderr.lower(), done.stderr
        return done.stdout

    assert "Every key, type, range" in said("-m", "nlu.train", "dry_run=true", "model=bert_tiny")
    assert said("-c", "import nlu; print(nlu.__file__)").strip() == str(clone / "nlu/__init__.py")
    # Programs of others find the plugins too.
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    assert "hyperband" in said("program.py", "--info", "plugins").lower()
    assert said("program.py", "hydra/launcher=local").endswith("ran local\n")
    official = said("program.py", "hydra/launcher=submitit_local", "--cfg", "hydra", "-p", "hydra.launcher")
    assert "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher" in official


BLOCKED = """
import importlib, sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
for name in {modules}:
    importlib.import_module(name)
"""


def test_commands_and_what_reads_any_path_need_no_extra() -> None:
    commands = [f"nlu.commands.{path.stem}" for path in (REPOSITORY / "nlu/commands").glob("*.py")]
    modules = [*commands, "nlu.storage.required", "nlu.storage.tables", "nlu.training.build", "nlu.inference.loaded"]
    absent = {"ossfs", "oss2", "odps", "transformers", "onnx", "fastapi", "uvicorn", "cleanlab", "tensorflow", "peft"}
    program = BLOCKED.format(absent=absent, modules=modules)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
