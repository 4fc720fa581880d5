"""Each key of a choice is one that its target takes, and is explained beside it or in a file that the choice names."""

import ast
import re
from pathlib import Path

import yaml

from nlu.config.choices import PLAIN_GROUPS, conf_dir
from nlu.config.signature import read_signature
from nlu.config.targets import TARGET

KEY = re.compile(r"^(?P<above># .+\n)?(?P<key>\w+):(?P<value>[^#\n]*)(?P<beside># .+)?$", re.MULTILINE)
POINTER = re.compile(r"^# The keys are explained in .+\.$", re.MULTILINE)
NOT_KEYS = {TARGET, "defaults"}


def targets() -> dict[Path, str]:
    """Return the files of choices with the constructor of ours that each one configures."""
    found = {}
    for path in sorted(conf_dir().glob("*/*.yaml")):
        target = yaml.safe_load(path.read_text(encoding="utf-8")).get(TARGET, PLAIN_GROUPS.get(path.parent.name))
        if path.parent.name not in ("experiment", "debug") and (target or "").startswith("nlu."):
            found[path] = target
    assert len(found) > 60
    return found


def explained_in(path: Path) -> set[str]:
    """Return the keys that have a comment in a file, beside them or on the line above."""
    text = path.read_text(encoding="utf-8")
    body = text[text.index(TARGET) :] if TARGET in text else text.partition("\n")[2]
    return {key["key"] for key in KEY.finditer(body) if key["above"] or key["beside"]}


def sources(path: Path) -> list[Path]:
    """Return the files in which a file says that its keys are explained; none where it explains them."""
    said = " ".join(POINTER.findall(path.read_text(encoding="utf-8")))
    return [conf_dir() / name for name in re.findall(r"conf/([\w/]+\.yaml)", said)]


def test_a_choice_has_the_keys_that_its_target_takes_each_explained() -> None:
    for path, target in targets().items():
        keys = yaml.safe_load(path.read_text(encoding="utf-8")).keys() - NOT_KEYS
        parameters = read_signature(target).parameters
        # Data sets leave out what they do not differ in.
        assert keys <= parameters.keys() and (keys >= parameters.keys() or path.parent.name == "data"), path
        explained = set().union(*map(explained_in, [path, *sources(path)]))
        assert keys <= explained, f"{path}: {keys - explained} have no comment"


def test_the_file_that_explains_a_constructor_states_its_defaults() -> None:
    for path, target in targets().items():
        if sources(path) or path.stem == "bert_tiny":
            continue
        stated = yaml.safe_load(path.read_text(encoding="utf-8"))
        for key, parameter in read_signature(target).parameters.items():
            if key in stated and parameter.value is not None:
                default = ast.literal_eval(parameter.value)
                # YAML reads 2e-4 as a text, and knows no tuples.
                value = float(stated[key]) if isinstance(default, float) else stated[key]
                assert value == (list(default) if isinstance(default, tuple) else default), f"{path}: {key}"
