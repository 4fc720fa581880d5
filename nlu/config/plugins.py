"""The folder of our Hydra plugins in a checkout or an editable install, where it is not on Python's path."""

import os
import sys
from pathlib import Path


def find_plugins() -> None:
    """Make Hydra and the jobs it starts find the plugins of a checkout; installed plugins are found anyway."""
    plugins = Path(__file__).resolve().parents[2] / "launchers"
    if not (plugins / "hydra_plugins").is_dir():
        return
    if str(plugins) not in sys.path:
        sys.path.append(str(plugins))
    known = os.environ.get("PYTHONPATH")
    # Jobs are other processes, and inherit the environment.
    if str(plugins) not in (known or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([*([known] if known else []), str(plugins)])
