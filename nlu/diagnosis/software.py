"""The installed software, and credentials for storages, hubs and services.

Versions against the requirements of nlu, the location of the package, its checkout. Of credentials, only the names of
variables and files are shown, never their values.
"""

import importlib.metadata
import importlib.util
import os
import platform
import stat
import sys
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement

import nlu
from nlu.config.words import counted
from nlu.diagnosis.check import Check, broken, warning
from nlu.optim.apex import has_kernels, is_nvidias, places
from nlu.runs.provenance import describe_code, installed_version
from nlu.storage.environment import VARIABLES, pairs
from nlu.storage.redaction import found_in, is_secret_name

PACKAGE = Path(nlu.__file__).resolve().parent
PLUGINS = ("grid_sweeper", "hyperband_sweeper")
OPTIONAL = {
    "hf": ("transformers",), "onnx": ("onnx", "onnxruntime", "onnxscript"), "oss": ("ossfs",),
    "postgresql": ("psycopg2-binary",), "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "errors": ("cleanlab",), "tensorboard": ("tensorboard",), "mlflow": ("mlflow-skinny", "alembic"),
    "wandb": ("wandb",), "tf": ("tensorflow-cpu",), "zh": ("jieba",), "model2vec": ("model2vec",), "peft": ("peft",),
    "sentence-transformers": ("sentence-transformers",),
    "pai": ("alibabacloud_pai_dlc20201203", "alibabacloud_tea_openapi", "pyodps", "pandas", "oss2", "ossfs"),
}  # fmt: skip
"""the distributions of each extra"""


def versions() -> Iterator[Check]:
    """Check the versions of Python and of all required distributions; list the installed extras."""
    running = platform.python_version()
    yield Check("python", f"{running} at {sys.executable}")
    found = []
    for requirement in _requirements():
        # Requirements of extras have a marker that names their extra, and are listed below.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        if version is None:
            remedy = f"{sys.executable} -m pip install '{requirement}'"
            yield broken(requirement.name, f"is not installed; nlu needs {requirement}", remedy)
        # nlu itself requires release candidates, which a specifier leaves out by default.
        elif not requirement.specifier.contains(version, prereleases=True):
            remedy = f"{sys.executable} -m pip install '{requirement}'"
            yield broken(requirement.name, f"{version}, but nlu needs {requirement.specifier}", remedy)
        else:
            found.append(f"{requirement.name} {version}")
    yield Check("packages", ", ".join(found))
    there = [extra for extra, names in OPTIONAL.items() if all(installed_version(name) for name in names)]
    absent = [extra for extra in OPTIONAL if extra not in there]
    yield Check("extras", f"there: {', '.join(there) or 'none'}; not there: {', '.join(absent) or 'none'}")


def _requirements() -> list[Requirement]:
    """Return the requirements of nlu, from the checkout or from the metadata of the installed package."""
    checkout = PACKAGE.parent / "setup.cfg"
    if checkout.is_file():
        parser = ConfigParser()
        # The metadata of an editable installation may be older than the checkout.
        parser.read(checkout, encoding="utf-8")
        return [Requirement(line) for line in parser["options"]["install_requires"].split("\n") if line.strip()]
    try:
        return [Requirement(line) for line in importlib.metadata.requires("nlu") or ()]
    except importlib.metadata.PackageNotFoundError:
        return []


def package() -> Iterator[Check]:
    """Check where nlu is imported from, whether another copy could be imported, and whether Hydra finds its plugins."""
    yield Check("nlu", f"{nlu.__version__} from {PACKAGE}")
    installed = installed_version("nlu")
    if installed is not None and installed != nlu.__version__:
        yield warning(
            "installed nlu",
            f"pip knows version {installed}, but {nlu.__version__} is imported from {PACKAGE}",
            f"{sys.executable} -m pip install --editable {PACKAGE.parent}, or leave the folder of the other",
        )
    others = [
        folder
        for entry in sys.path
        if (folder := Path(entry or ".").resolve() / "nlu") != PACKAGE and (folder / "__init__.py").is_file()
    ]
    if others:
        shown = ", ".join(str(folder) for folder in dict.fromkeys(others))
        yield warning(
            "another nlu",
            f"Python would also find {shown}",
            "keep one of them on PYTHONPATH, so that commands and notebooks run the same code",
        )
    # Hydra ignores a plugin that it cannot find, and only a later search would fail.
    if absent := [name for name in PLUGINS if importlib.util.find_spec(f"hydra_plugins.{name}") is None]:
        yield broken(
            "searches",
            f"Hydra does not find {', '.join(absent)}",
            f"{sys.executable} -m pip install --editable {PACKAGE.parent}, or add {PACKAGE.parent / 'launchers'} to "
            "PYTHONPATH",
        )
    else:
        yield Check("searches", f"Hydra finds {', '.join(PLUGINS)}")


def checkout() -> Check:
    """Report the commit and the changes that are not committed."""
    git = describe_code()["git"]
    if git is None:
        return Check("git", "nlu is installed, not run from a checkout; runs keep its code in code.zip")
    if git["commit"] is None:
        return Check("git", "a checkout without a commit; runs keep its code in code.zip")
    commit = git["commit"][:12]
    if not git["dirty"]:
        return Check("git", f"commit {commit}, nothing changed")
    changed = sum(line.startswith("diff --git") for line in (git["diff"] or "").splitlines())
    at_least = "at least " if git["diff_cut"] else ""
    what = f"changes to {at_least}{counted(changed, 'file')}" if changed else "only new files"
    return Check("git", f"commit {commit} with {what}; runs keep them in code.zip and provenance.json")


def apex() -> Check:
    """Check for NVIDIA's apex, which nlu does not need, and for the unrelated package of this name on PyPI."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return Check("apex", "not installed and not needed: torch has the optimizer and mixed precision")
    if not is_nvidias(folders := places()):
        return warning(
            "apex",
            f"{folders[0] if folders else spec.origin} is another package of the same name, not NVIDIA's",
            f"{sys.executable} -m pip uninstall apex; nlu needs neither",
        )
    if not has_kernels():
        return Check("apex", "NVIDIA's, without its kernels; not used: torch has the optimizer and mixed precision")
    return Check("apex", "NVIDIA's, with its kernels, which optimizer.kernel=apex uses; the default is that of torch")


PREFIX = "FSSPEC_"
"""the prefix of variables that fsspec reads for any driver"""
FILES = (
    "~/.aws/credentials", "~/.aws/config", "~/.ossutilconfig", "~/.netrc", "~/.pgpass", "~/.pg_service.conf",
    "~/.pypirc", "~/.cache/huggingface/token", "~/.alibabacloud/credentials", "~/.config/odps.conf",
    "~/.kaggle/kaggle.json",
)  # fmt: skip
READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def access(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """List what is set, and warn about incomplete pairs of variables and about files that other users can read."""
    # A variable with a harmless name may hold a secret, such as an address with a password.
    secret = sorted(name for name, value in environment.items() if value and (_is_listed(name) or found_in(value)))
    beside = sorted(one.name for one in VARIABLES if environment.get(one.name) and one.name not in secret)
    yield Check("variables", ", ".join([*secret, *beside]) or "none")
    for service, *pair in pairs():
        absent = [name for name in pair if not environment.get(name)]
        if len(absent) == 1:
            there = next(name for name in pair if name not in absent)
            yield broken(service, f"{there} is set, but {absent[0]} is not", f"set {absent[0]}, or unset {there}")
    files = [(name, path) for name in FILES if (path := Path(name).expanduser()).is_file()]
    yield Check("files", ", ".join(name for name, _ in files) or "none")
    for name, path in files:
        if path.stat().st_mode & READABLE_BY_OTHERS and not name.endswith("/config"):
            yield warning(name, "other users of this machine can read it", f"chmod 600 {name}")


def _is_listed(name: str) -> bool:
    return name.startswith(PREFIX) or is_secret_name(name)
