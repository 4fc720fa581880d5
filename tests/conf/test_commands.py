"""Every command that a file names can be run as it stands there."""

import ast
import os
import re
from pathlib import Path

import pytest
import yaml

import nlu
from nlu.config.choices import conf_dir
from tests import warm
from tests.few import only

FILES = sorted(path.relative_to(conf_dir()).as_posix() for path in conf_dir().rglob("*.yaml"))
COMMAND = re.compile(rf"-m nlu\.(?:{'|'.join(path.stem for path in conf_dir().glob('*.yaml'))})\b.*")
PACKAGE = Path(nlu.__file__).parent


def commands_in(text: str) -> list[str]:
    """The commands of a text, each without the explanation that two spaces or a `#` set apart."""
    return [re.split(r"  +|\s#", match[0])[0].strip() for match in COMMAND.finditer(text)]


@pytest.mark.parametrize("name", only(FILES[::12], FILES))
def test_a_file_begins_with_a_command_that_uses_it(composer, name):
    lines = (conf_dir() / name).read_text(encoding="utf-8").splitlines()
    first = lines[1] if lines[0].startswith("# @package") else lines[0]
    assert first.startswith("# python -m nlu."), "the first comment is a command"
    (command,) = commands_in(first)
    assert composer.command_problems(command) == []
    group, choice = Path(name).parent.as_posix(), Path(name).stem
    target = (yaml.safe_load((conf_dir() / name).read_text(encoding="utf-8")) or {}).get("_target_")
    if target and not group.startswith("hydra/"):
        arguments = re.findall(r"'[^']*'|\S+", command.partition(" ")[2])[1:]
        program = command.partition("-m nlu.")[2].partition(" ")[0]
        config = composer.plain(*(argument.strip("'") for argument in arguments), config_name=program)
        assert config[group]["_target_"] == target, f"{command} does not use {group}={choice}"


@pytest.mark.parametrize("module", [path.stem for path in conf_dir().glob("*.yaml")])
def test_the_commands_of_a_modules_docstring_are_right(composer, module):
    docstring = ast.get_docstring(ast.parse((PACKAGE / f"commands/{module}.py").read_text(encoding="utf-8")))
    commands = commands_in(docstring or "")
    assert len(commands) >= 2
    for command in commands:
        assert composer.command_problems(command) == [], command


def printed_by(*arguments, status=0):
    done = warm.run(["-m", *arguments], cwd=PACKAGE.parent, env=os.environ)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_the_package_without_a_command_lists_its_commands():
    listed = printed_by("nlu", "--help")
    commands = [path.stem for path in (PACKAGE / "commands").glob("[!_]*.py")]
    assert re.findall(r"-m nlu\.(\w+) ", listed) == sorted(commands)
    assert printed_by("nlu", status=2) == listed


@pytest.mark.parametrize(("name", "near"), [("trian", "nearest: train"), ("qqq", "valid: ")])
def test_a_command_that_there_is_not_is_answered_with_those_that_there_are(name, near):
    said = printed_by("nlu", name, "--help", status=2)
    assert said.startswith(f"nlu: error: unknown command {name}; {near}")
    assert "\nusage: python -m nlu.NAME" in said and said.endswith(printed_by("nlu", status=2))


def test_a_command_that_is_not_started_as_a_module_is_refused_with_the_right_form():
    assert printed_by("nlu", "train", "seed=2", status=2).endswith("write python -m nlu.train seed=2\n")
