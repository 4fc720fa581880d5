"""The configuration of an evaluation of a run: the run's own, with what the command line says of data and devices."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from nlu.config.errors import UserError
from nlu.config.inference import Evaluate
from nlu.config.schema import Run
from nlu.config.signature import read_signature

OWN = frozenset(read_signature(f"{Evaluate.__module__}.Evaluate").parameters) - frozenset(
    read_signature(f"{Run.__module__}.Run").parameters
)
"""keys that a run has not"""
ALLOWED = ("seed", "dry_run", "trusted_packages", "precision", "trainer.device", "trainer.devices",
           "trainer.eval_batch_size")  # fmt: skip
"""keys of a run that may be another's where it is scored"""
SETS = ("train", "dev", "test")


def on_run(
    saved: Mapping[str, Any], composed: Mapping[str, Any], overrides: Iterable[str], named: Sequence[str],
    checkpoint: str,
) -> dict[str, Any]:  # fmt: skip
    """Return a run's configuration for scoring it: `saved`, with what `overrides` say, whose values are in `composed`.

    Where other files are given, their format and columns are those of training only as far as that can be: a file of
    another suffix is read by its own, in which columns that were numbered are looked for by the names of the fields.
    `named` are the sets that rows are given for: then neither the run's own rows nor what its `checkpoint` began with
    are needed.
    Raises UserError for keys that would make another run of it.
    """
    given = _keys(overrides)
    wrong = [key for key in given if not (key in OWN or _is_data(key) or key in ALLOWED)]
    if wrong:
        raise UserError(*(f"{key}: a run is scored as it was trained; leave out {key}, or run=" for key in wrong))
    config = {**deepcopy(dict(saved)), **{key: composed[key] for key in OWN}}
    # How often it was repeated, and which choices were made, is said of training.
    config.pop("choices", None)
    # Nor is a tracker told of scores, which need not be installed here.
    config.pop("tracker", None)
    again = "data.fields" in given
    for key in given:
        if key in OWN:
            continue
        if key.startswith("data.fields.") and not again:
            # Some columns are named anew: the others are not those of training.
            config["data"]["fields"], again = {}, True
        _put(config, key, deepcopy(_at(composed, key)))
    # A named data set brings its own; how much of a text is read is the model's matter.
    if "data" not in given and {"data.dev", "data.test"} & set(given) and "data.format" not in given:
        config["data"] |= _reading(saved["data"], config["data"], given)
    if "data.max_len" not in given and "max_len" in saved["data"]:
        config["data"]["max_len"] = saved["data"]["max_len"]
    if named:
        sources = [config["data"][name] for name in named if config["data"].get(name) is not None]
        if not sources:
            raise UserError(
                f"{' and '.join(f'data.{name}' for name in named)} is null, so there is nothing to score; give "
                "data.test=FILE"
            )
        # A configuration has training rows; here nobody reads them, and they need not be on this machine.
        config["data"]["train"] = sources[0]
        config["data"] |= {name: None for name in ("dev", "test") if name not in named}
        if "data.max_rows" not in given:
            # What was left out of training is not left out of scoring.
            config["data"]["max_rows"] = None
        for group, key, value in (("tokenizer", "vocab", None), ("model", "pretrained", checkpoint)):
            if key in config[group]:
                config[group][key] = value
    return config


def scored_sets(overrides: Iterable[str]) -> list[str]:
    """Return which of train, dev and test the command line gives rows for; none where the run's own are meant."""
    given = _keys(overrides)
    if "data" in given:
        return ["dev", "test"]
    return [name for name in ("dev", "test") if any(key.partition("data.")[2].split(".")[0] == name for key in given)]


def _reading(saved: Mapping[str, Any], data: Mapping[str, Any], given: list[str]) -> dict[str, Any]:
    known = {Path(path).suffix for path in _paths([saved.get(name) for name in SETS])}
    new = {
        Path(path).suffix for path in _paths([data.get(name) for name in ("dev", "test") if f"data.{name}" in given])
    }
    if new <= known:
        return {}
    changed: dict[str, Any] = {"format": "auto", "header": None}
    # A column that is named has its name in any format; one that is counted may stand elsewhere.
    if any(isinstance(column, int) for column in (saved.get("fields") or {}).values()):
        changed["fields"] = None
    return {
        key: value for key, value in changed.items() if not any(f"{one}.".startswith(f"data.{key}.") for one in given)
    }


def _paths(source: Any) -> list[str]:
    if isinstance(source, str):
        return [source]
    inner = source.values() if isinstance(source, Mapping) else source or ()
    return [path for each in inner for path in _paths(each)]


def _keys(overrides: Iterable[str]) -> list[str]:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [
        str(one.key_or_group) for one in parsed if not (str(one.key_or_group).startswith("hydra") or one.is_delete())
    ]


def _is_data(key: str) -> bool:
    return key == "data" or key.startswith("data.")


def _at(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node[part]
    return node


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = config
    for part in parents:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value
