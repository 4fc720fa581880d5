"""The program and its configuration are found from a checkout, from a wheel and from an editable install."""

import ast
import configparser
import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from nlu.launching.queue import Job, Ticket
from nlu.launching.submissions import Submissions
from tests.distribution import copy_checkout

REPOSITORY = Path(__file__).resolve().parents[1]
OPTIONAL = ("hf", "onnx", "oss", "errors", "excel", "pai", "serve", "tensorboard", "mlflow", "wandb", "tf", "zh")
DISTRIBUTIONS = {
    "hydra": "hydra-core",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "hydra_plugins": "hydra-optuna-sweeper",
    "mlflow": "mlflow-skinny",
    "odps": "pyodps",
    "tensorflow": "tensorflow-cpu",
}
"""Import names that differ from the names of their packages."""


@dataclass
class Installed:
    """One way of having the program: how to start Python there, and where its configuration must be."""

    python: str
    folder: Path
    path: str | None
    conf: Path
    package: Path

    def run(self, *arguments: str, status: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NLU_DATA")}
        if self.path is not None:
            environment["PYTHONPATH"] = self.path
        done = subprocess.run(
            [self.python, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == status, done.stderr[-2000:]
        return done.stdout if status == 0 else done.stderr


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
def checkout(copy_of_checkout: Callable[[str], Path]) -> Installed:
    root = copy_of_checkout("plain")
    return Installed(sys.executable, root, None, root / "conf", root / "nlu")


@pytest.fixture(scope="module")
def wheel_file(copy_of_checkout: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(copy_of_checkout("for-wheel")), "--wheel-dir", str(folder))
    (path,) = folder.glob("nlu-*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    unpacked, elsewhere = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("elsewhere")
    with zipfile.ZipFile(wheel_file) as archive:
        archive.extractall(unpacked)
    return Installed(sys.executable, elsewhere, str(unpacked), unpacked / "nlu/conf", unpacked / "nlu")


@pytest.fixture(scope="module")
def editable(copy_of_checkout: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A separate environment that borrows the packages of this one, and has the copy installed editable."""
    root, environment = copy_of_checkout("for-editable"), tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    paths = sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(paths["purelib"]) / "borrowed.pth").write_text("".join(f"{path}\n" for path in sorted(borrowed)))
    python = str(environment / "bin/python")
    pip("install", "--editable", str(root), python=python)
    return Installed(python, tmp_path_factory.mktemp("anywhere"), None, root / "conf", root / "nlu")


SWEEPERS = """
from nlu.config.entry.app import find_plugins
find_plugins()
import hydra_plugins.hyperband_sweeper
print(hydra_plugins.hyperband_sweeper.__file__)
"""


WAYS = [pytest.param(way, marks=pytest.mark.thorough) for way in ("wheel", "checkout", "editable")]


@pytest.mark.parametrize("way", WAYS)
def test_the_sweeper_is_found(request, way):
    installed = request.getfixturevalue(way)
    shown = installed.run("-m", "nlu.train", "hydra/sweeper=hyperband", "--cfg", "hydra", "-p", "hydra.sweeper")
    assert "HyperbandSweeper" in shown and "reduction_factor: 3" in shown
    beside = installed.package.parent
    root = beside if (beside / "hydra_plugins").is_dir() else beside / "launchers"
    assert installed.run("-c", SWEEPERS).strip() == str(root / "hydra_plugins/hyperband_sweeper/__init__.py")
    refused = "model=bert_tiny", "data=afqmc", "seed=3", "hydra/sweeper=hyperband", "hydra.sweep.dir=never-made"
    assert "nothing is drawn" in installed.run("-m", "nlu.train", "--multirun", *refused, status=2)


@pytest.mark.parametrize("way", WAYS)
def test_a_launcher_is_found_by_hydra_and_its_queue_by_name(request, way):
    installed = request.getfixturevalue(way)
    job = Job(0, str(installed.folder / "run"), (), "token")
    record = Submissions(installed.folder / "run")
    record.begin([job], "pai", {}, "the command")
    record.submitted([Ticket(job, "dlc1")])
    for command in (["nlu.train", "hydra/launcher=pai", "hydra.run.dir=new"], ["nlu.jobs", "run"]):
        assert "hydra.launcher.region is not set" in installed.run("-m", *command, status=2)


FOUND = "import nlu; from nlu.config.choices import conf_dir; print(conf_dir()); print(nlu.__file__)"


@pytest.mark.parametrize("way", WAYS)
def test_the_configuration_found_is_that_of_the_program_found(request, way):
    installed = request.getfixturevalue(way)
    assert installed.run("-c", FOUND).splitlines() == [str(installed.conf), str(installed.package / "__init__.py")]


@pytest.mark.parametrize("way", WAYS)
def test_a_run_composes_and_is_valid(request, way):
    installed = request.getfixturevalue(way)
    shown = installed.run("-m", "nlu.train", "--cfg", "job", "model=bert_tiny", "data=afqmc")
    assert "_target_: nlu.models.encoders.bert.Bert" in shown and "train: AFQMC/train.json" in shown
    dry = installed.run("-m", "nlu.train", "dry_run=true", "model=bert_tiny", "data=afqmc")
    assert "# Every key, type, range, path and rule between groups holds" in dry
    assert "Commands that matter" in installed.run("-m", "nlu.train", "--help")
    assert "max_len: 128" in installed.run("-m", "nlu.preprocess", "--cfg", "job", "data=afqmc")


def test_the_wheel_holds_every_module_and_every_choice_and_nothing_else(wheel_file):
    with zipfile.ZipFile(wheel_file) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {
        f"nlu/{path.relative_to(REPOSITORY / 'nlu').as_posix()}"
        for path in (REPOSITORY / "nlu").rglob("*")
        if path.suffix in (".py", ".css", ".html", ".js", ".c", ".h")
    }
    conf = {
        f"nlu/conf/{path.relative_to(REPOSITORY / 'conf').as_posix()}"
        for path in (REPOSITORY / "conf").rglob("*")
        if path.suffix in (".yaml", ".py")
    }
    plugins = {
        path.relative_to(REPOSITORY / "launchers").as_posix() for path in (REPOSITORY / "launchers").rglob("*.py")
    }
    # What people type who know another program is data beside the module that reads it.
    assert held == modules | plugins | conf | {"nlu/config/foreign.txt"}


def test_the_wheel_says_its_licence_and_holds_its_text(wheel_file):
    with zipfile.ZipFile(wheel_file) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = email.message_from_bytes(archive.read(metadata))
        text = archive.read(metadata.replace("METADATA", "licenses/LICENSE"))
    assert said["License-Expression"] == "Apache-2.0" and said.get_all("License-File") == ["LICENSE"]
    assert said["Author"] == "The nlu authors" and said["Summary"] and said["Keywords"]
    assert "Programming Language :: Python :: 3.11" in said.get_all("Classifier", [])
    assert said.get_payload().startswith("# nlu")
    assert text == (REPOSITORY / "LICENSE").read_bytes() and b"Version 2.0, January 2004" in text


@pytest.mark.thorough
def test_the_sdist_holds_what_the_tests_need_and_gives_the_same_wheel(wheel_file, tmp_path):
    checkout = tmp_path / "checkout"
    copy_checkout(checkout)
    wanted = {path.relative_to(checkout).as_posix() for path in checkout.rglob("*") if path.is_file()}
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True, timeout=120)
    (sdist,) = tmp_path.glob("nlu-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (root,) = (tmp_path / "unpacked").iterdir()
    assert wanted - {path.relative_to(root).as_posix() for path in root.rglob("*")} == set()
    pip("wheel", str(root), "--wheel-dir", str(tmp_path))
    (again,) = tmp_path.glob("nlu-*.whl")
    with zipfile.ZipFile(again) as ours, zipfile.ZipFile(wheel_file) as theirs:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())


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
    by_name = {"s3fs", "scikit-learn", "cmaes", "hydra-submitit-launcher", "hydra-optuna-sweeper"}
    assert required - names <= by_name, "declared, but never imported"
