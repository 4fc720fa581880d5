"""The installed software: versions against the requirements of nlu, and which copy of nlu is imported."""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement
from torch.utils import collect_env

import nlu
from nlu.diagnosis.check import Check, broken
from nlu.runs.provenance import cpu_model, installed_version

PACKAGE = Path(nlu.__file__).resolve().parent
PLUGINS = ("grid_sweeper", "hyperband_sweeper")


def environment() -> Check:
    """Report versions of Python, torch, CUDA, drivers and the system as PyTorch's own form for reports has them."""
    found = collect_env.get_env_info()
    # All of lscpu would be most of the text.
    return Check("collect_env", collect_env.pretty_str(found._replace(cpu_info=cpu_model())).strip())


def versions() -> Iterator[Check]:
    """Check the versions of all required distributions; list the extras that are installed as a whole."""
    required, extras = _declared()
    found = []
    for one in required:
        version = installed_version(one.name)
        # nlu itself requires release candidates, which a specifier leaves out by default.
        if version is not None and one.specifier.contains(version, prereleases=True):
            found.append(f"{one.name} {version}")
        else:
            says = "is not installed" if version is None else version
            yield broken(one.name, f"{says}, but nlu needs {one}", f"{sys.executable} -m pip install '{one}'")
    yield Check("packages", ", ".join(found))
    there = [extra for extra, some in extras.items() if all(installed_version(one.name) for one in some)]
    absent = [extra for extra in extras if extra not in there]
    yield Check("extras", f"there: {', '.join(there) or 'none'}; not there: {', '.join(absent) or 'none'}")


def _declared() -> tuple[list[Requirement], Mapping[str, list[Requirement]]]:
    """Return the requirements of nlu, and those of each extra, from the checkout or from the installed package."""
    checkout = PACKAGE.parent / "setup.cfg"
    if checkout.is_file():
        # The metadata of an editable installation may be older than the checkout.
        parser = ConfigParser()
        parser.read(checkout, encoding="utf-8")
        extras = {extra: _read(text.split("\n")) for extra, text in parser["options.extras_require"].items()}
        return _read(parser["options"]["install_requires"].split("\n")), extras
    lines = importlib.metadata.requires("nlu") or []
    named = importlib.metadata.metadata("nlu").get_all("Provides-Extra") or []
    extras = {extra: _read(line for line in lines if f'extra == "{extra}"' in line) for extra in named}
    return _read(line for line in lines if "extra ==" not in line), extras


def _read(lines: Iterable[str]) -> list[Requirement]:
    found = [Requirement(line.partition("; extra ==")[0]) for line in lines if line and not line.startswith("#")]
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def package() -> Iterator[Check]:
    """Check where nlu is imported from, and whether Hydra finds its plugins."""
    yield Check("nlu", f"{nlu.__version__} from {PACKAGE}")
    # Hydra ignores a plugin that it cannot find, and only a later search would fail.
    if absent := [name for name in PLUGINS if importlib.util.find_spec(f"hydra_plugins.{name}") is None]:
        yield broken(
            "searches",
            f"Hydra does not find {', '.join(absent)}",
            f"{sys.executable} -m pip install --editable {PACKAGE.parent}, or add {PACKAGE.parent / 'launchers'} to "
            "PYTHONPATH",
        )
