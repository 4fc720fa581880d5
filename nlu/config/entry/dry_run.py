"""What `dry_run=true` prints: the resolved configuration, and the verdict on it."""

from collections.abc import Sequence
from typing import Any

import yaml

from nlu.config.pipes import printing
from nlu.config.signature import read_signature

_VERDICT = """\
# Every key, type, range, local path and rule between groups holds. Nothing was run or read: what only the
# data, the weights or the device can tell shows when a run begins."""


def show(config: dict[str, Any]) -> int:
    """Print the configuration, with what each group's target is, and the verdict; returns the exit status."""
    with printing():
        print(yaml.safe_dump(config, allow_unicode=True, sort_keys=False), end="")
        print()
        for group, node in config.items():
            if isinstance(node, dict) and "_target_" in node:
                print(f"# {group}: {read_signature(node['_target_']).doc}")
        print(_VERDICT)
    return 0


def show_grid(job_names: Sequence[str]) -> None:
    """Print which jobs a grid has, and the verdict on all of them."""
    with printing():
        for name in job_names:
            print(f"# {name}")
        print(_VERDICT)
