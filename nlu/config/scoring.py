"""The configuration that scores a trained run: that of the run, with the values that `nlu.evaluate` may change."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from nlu.config.command_keys import Evaluate
from nlu.config.errors import UserError
from nlu.config.schema import Run
from nlu.config.types import Config, ConfigLike

ALLOWED = (
    "seed",
    "dry_run",
    "trusted_packages",
    "precision",
    "trainer.device",
    "trainer.devices",
    "trainer.eval_batch_size",
)
"""Keys of a run that may have other values when it is scored."""
SETS = ("train", "dev", "test")
_DIALECT = {"separator": None, "quote": None, "skip_lines": 0, "sheet": None, "records": None}
"""Keys of the files of a run that say nothing about files of another format."""


def on_run(
    saved: ConfigLike,
    composed: ConfigLike,
    overrides: Iterable[str],
    named: Sequence[str],
    checkpoint: str,
) -> Config:
    """Return the configuration that scores a run: `saved`, with the values in `composed` of the keys in `overrides`.

    `named` are the sets for which rows are given. They replace the run's own rows, and `checkpoint` its initial weights
    and vocabulary. Given files are read like those of training if they have the same suffix; otherwise the format is
    that of the suffix, and columns that were numbered in training are found by the names of the fields.
    Raises UserError for keys that would change the run.
    """
    of_run = {item.name for item in fields(Run)}
    own = [item.name for item in fields(Evaluate) if item.name not in of_run]
    given = _keys(overrides)
    wrong = [key for key in given if not (key in own or key.partition(".")[0] == "data" or key in ALLOWED)]
    if wrong:
        raise UserError(*(f"{key}: a run is scored as it was trained; leave out {key}, or run=" for key in wrong))
    # A deep copy, because values below are replaced in place.
    config = {**deepcopy(dict(saved)), **{key: composed[key] for key in own}}
    # The choices are those of training, and scoring needs no tracker's package.
    for key in ("choices", "tracker"):
        config.pop(key, None)
    # First the values that the command line gives; below, what follows from them for the files to score.
    has_own_fields = "data.fields" in given
    for key in given:
        if key in own:
            continue
        if key.startswith("data.fields.") and not has_own_fields:
            # One column differs from training, so the others are not taken from there.
            config["data"]["fields"], has_own_fields = {}, True
        # From the composed configuration, not from the text of the override: Hydra has parsed and resolved it.
        _put(config, key, deepcopy(reduce(getitem, key.split("."), composed)))
    # A named data set has its own format; the length of sequences belongs to the model.
    if "data" not in given and {"data.dev", "data.test"} & set(given) and "data.format" not in given:
        config["data"] |= _reading(saved["data"], config["data"], given)
    for key in ("max_len", "long", "stride"):
        if f"data.{key}" not in given and key in saved["data"]:
            config["data"][key] = saved["data"][key]
    if named:
        sources = [config["data"][name] for name in named if config["data"].get(name) is not None]
        if not sources:
            raise UserError(
                f"{' and '.join(f'data.{name}' for name in named)} is null, so nothing would be scored; give "
                "data.test=FILE"
            )
        # A configuration must name training rows. Scoring does not read them, so they need not be on this machine.
        config["data"]["train"] = sources[0]
        config["data"] |= {name: None for name in ("dev", "test") if name not in named}
        if "data.max_rows" not in given:
            # Score all rows, even if the run was trained on the first ones only.
            config["data"]["max_rows"] = None
        of_weights = {"pretrained": checkpoint, "keep_layers": None, "embeddings": None}
        for group, of_group in (("tokenizer", {"vocab": None}), ("model", of_weights)):
            config[group] |= {key: value for key, value in of_group.items() if key in config[group]}
    # Scoring needs no teacher, which need not be on this machine.
    for key, value in (("teacher", checkpoint), ("logits", None)):
        if key in config["method"]:
            config["method"][key] = value
    return config


def scored_sets(overrides: Iterable[str]) -> list[str]:
    """Return the sets for which the command line gives rows; [] if the run's own are to be scored."""
    given = _keys(overrides)
    if "data" in given:
        return ["dev", "test"]
    return [name for name in ("dev", "test") if any(key.partition("data.")[2].split(".")[0] == name for key in given)]


def _reading(saved: ConfigLike, data: ConfigLike, given: list[str]) -> dict[str, object]:
    known = {Path(path).suffix for path in _paths([saved.get(name) for name in SETS])}
    new = {
        Path(path).suffix for path in _paths([data.get(name) for name in ("dev", "test") if f"data.{name}" in given])
    }
    # Files with a suffix of the training files are read like these.
    if new <= known:
        return {}
    changed: dict[str, object] = {"format": "auto", "header": None, **_DIALECT}
    # A named column has its name in any format; a numbered one may have another number.
    if any(isinstance(column, int) for column in (saved.get("fields") or {}).values()):
        changed["fields"] = None
    return {
        key: value
        for key, value in changed.items()
        if (key in saved or key not in _DIALECT) and not any(f"{one}.".startswith(f"data.{key}.") for one in given)
    }


def _paths(source: Any) -> list[str]:
    if isinstance(source, str):
        return [source]
    inner = source.values() if isinstance(source, Mapping) else source or ()
    return [path for each in inner for path in _paths(each)]


def _keys(overrides: Iterable[str]) -> list[str]:
    """Return the keys that overrides set, without Hydra's own."""
    keys = (text.partition("=")[0].strip("+").partition("@")[0] for text in overrides if not text.startswith("~"))
    return [key for key in keys if not key.startswith("hydra")]


def _put(config: Config, key: str, value: object) -> None:
    *parents, last = key.split(".")
    node = config
    for part in parents:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value
