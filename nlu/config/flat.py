"""A configuration as one mapping of dotted keys, the form in which two of them are compared."""

from collections.abc import Iterator
from typing import Any

WITHOUT_EFFECT = ("resume", "dry_run", "trial", "choices", "tracker", "mirror", "stores")
"""Keys that do not change what a run computes, with all below them; no comparison of runs looks at them."""


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return `{dotted key: value}`; lists are values, tuples become lists, an empty mapping is a value too."""
    return dict(_items(config, ""))


def _items(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(config, dict) and (config or not prefix):
        for key, value in config.items():
            yield from _items(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, list(config) if isinstance(config, tuple) else config
