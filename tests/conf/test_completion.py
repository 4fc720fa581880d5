"""Tab in a shell completes groups, choices and keys of the commands that pip installs."""

import configparser
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from tests import warm
from tests.conf.test_start import CHECKOUT, HEAVY

ENTRIES = configparser.ConfigParser()
ENTRIES.read(CHECKOUT / "setup.cfg")
COMMANDS = dict(
    line.split(" = ") for line in ENTRIES["options.entry_points"]["console_scripts"].splitlines() if " = " in line
)
TAB = """
press_tab() {
    COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1) COMPREPLY=()
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    [[ $1 == *" " ]] && COMP_CWORD=$((COMP_CWORD + 1))
    "$(complete -p "${COMP_WORDS[0]}" | sed -E 's/.*-F ([^ ]+) .*/\\1/')"
    echo "${COMPREPLY[*]}"
}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which the commands are installed as pip does it."""
    folder = tmp_path_factory.mktemp("installed")
    for name, entry in COMMANDS.items():
        module, _, function = entry.partition(":")
        program = folder / name
        program.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n\n{function}()\n")
        program.chmod(0o755)
    known = {name: value for name, value in os.environ.items() if not name.startswith("COMP_")}
    return {**known, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)}


def query(environment: dict[str, str], typed: str, *prefix: str, program: str = "nlu-train") -> list[str]:
    """Return the completions of a typed text; asserts that nothing else is printed."""
    found = shutil.which(program, path=environment["PATH"])
    arguments, asking = [found or program, "-sc", "query=bash"], {**environment, "COMP_LINE": typed}
    if prefix:
        done = subprocess.run([*prefix, *arguments], env=asking, capture_output=True, text=True, timeout=60)
    else:
        done = warm.run(arguments, cwd=CHECKOUT, env=asking)
    assert done.returncode == 0 and (prefix or done.stderr == ""), done.stderr
    return done.stderr.splitlines() if prefix else done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
@pytest.mark.parametrize(
    "installed_by",
    ["nlu-train", pytest.param(f"{shlex.quote(sys.executable)} -m nlu.train", marks=pytest.mark.thorough)],
)
def test_bash_completes_choices_and_keys(environment, installed_by):
    lines = ["nlu-train model=", "nlu-train data=afqmc trainer.batch_s", "nlu-train --multirun hydra/sweeper=hyper"]
    script = [f'eval "$({installed_by} -sc install=bash)"', TAB, *(f"press_tab '{line}'" for line in lines)]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(script)], env=environment, capture_output=True, text=True, timeout=60
    )
    models, keys, sweepers = (line.split() for line in done.stdout.splitlines())
    assert "model=bert_tiny" in models and all(offered.startswith("model=") for offered in models)
    assert keys == ["trainer.batch_size="] and sweepers == ["hydra/sweeper=hyperband"]
    assert done.stderr == ""


def test_each_program_completes_its_own_configuration(environment):
    offered = query(environment, "nlu-preprocess hydra.run.dir=", program="nlu-preprocess")
    assert offered == ["hydra.run.dir=."]


def test_completion_imports_nothing_heavy(environment):
    shown = query(environment, "nlu-train model=", sys.executable, "-X", "importtime")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in shown}
    assert "hydra" in imported and not imported & HEAVY
