"""Every command that a file names can be run as it stands there."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import nlu
from nlu.config.app import conf_dir

FILES = sorted(path.relative_to(conf_dir()).as_posix() for path in conf_dir().rglob("*.yaml"))
COMMAND = re.compile(r"-m nlu\.\w+.*")
PACKAGE = Path(nlu.__file__).parent


def commands_in(text: str) -> list[str]:
    """The commands of a text, each without the explanation that two spaces or a `#` set apart."""
    return [re.split(r"  +|\s#", match[0])[0].strip() for match in COMMAND.finditer(text)]


@pytest.mark.parametrize("name", FILES)
def test_a_file_begins_with_a_command_that_uses_it(composer, name):
    lines = (conf_dir() / name).read_text(encoding="utf-8").splitlines()
    first = lines[1] if lines[0].startswith("# @package") else lines[0]
    assert first.startswith("# python -m nlu."), "the first comment is a command"
    (command,) = commands_in(first)
    assert composer.command_problems(command) == []
    group, choice = Path(name).parent.as_posix(), Path(name).stem
    target = yaml.safe_load((conf_dir() / name).read_text(encoding="utf-8")).get("_target_")
    if target:
        arguments = re.findall(r"'[^']*'|\S+", command.partition(" ")[2])[1:]
        config = composer.plain(*(argument.strip("'") for argument in arguments))
        assert config[group]["_target_"] == target, f"{command} does not use {group}={choice}"


def test_the_commands_of_the_help_are_right(composer):
    template = yaml.safe_load((conf_dir() / "hydra/help/nlu.yaml").read_text(encoding="utf-8"))["template"]
    commands = commands_in(template)
    assert len(commands) >= 10
    for command in commands:
        assert composer.command_problems(command) == [], command


@pytest.mark.parametrize("module", [path.stem for path in conf_dir().glob("*.yaml")])
def test_the_commands_of_a_modules_docstring_are_right(composer, module):
    docstring = ast.get_docstring(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8")))
    commands = commands_in(docstring or "")
    assert len(commands) >= 2
    for command in commands:
        assert composer.command_problems(command) == [], command


def test_a_command_that_is_wrong_would_be_noticed(composer):
    assert composer.command_problems("-m nlu.train --multirun seed=1,-2,3 trainer.batch_size=0") != []
    assert composer.command_problems("-m nlu.train --multirun seed=1,2,3") == []


def test_help_shows_every_group_with_its_choices(choices):
    command = [sys.executable, "-m", "nlu.train", "--help"]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True, timeout=60)
    for group in ("task", "model", "data", "tokenizer", "loss", "optimizer", "scheduler", "precision", "experiment"):
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{group}:")]
        assert sorted(line.partition(":")[2].replace(",", " ").split()) == choices(group)
    assert "$" not in done.stdout
