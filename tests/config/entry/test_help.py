"""`--help` of every command, and docs/keys.md, which are written from the schemas of the keys."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nlu.config.choices import SCHEMAS
from nlu.config.entry.help import keys_page
from nlu.config.keys import schema_of
from tests import warm

PAGE = Path(__file__).parents[3] / "docs" / "keys.md"


def help_of(command: str, *arguments: str) -> str:
    done = warm.run(["-m", f"nlu.{command}", *arguments, "--help"], cwd=PAGE.parent, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_of_keys_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == keys_page(), "python -m nlu.config.entry.help > docs/keys.md"


@pytest.mark.parametrize("command", SCHEMAS)
def test_a_command_shows_what_it_does_and_the_meaning_of_its_keys(command):
    shown = help_of(command)
    assert shown.startswith(sys.modules.get(f"nlu.{command}", __import__(f"nlu.{command}", fromlist=["x"])).__doc__)
    of_run = schema_of(SCHEMAS["train"]).keys if command != "train" else {}
    words = " ".join(shown.split())
    for name, meaning in schema_of(SCHEMAS[command]).help.items():
        if name not in of_run:
            assert f"  {name}" in shown and meaning in words, name


def test_the_keys_of_the_chosen_choices_have_their_values():
    lines = help_of("train", "loss=focal", "loss.gamma=1", "optimizer=adamw_base").splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert {"loss=focal", "loss.gamma=1", "optimizer=adamw_base", "trainer.clip_norm=1.0"} <= set(shown)
    assert not any(name.startswith("loss.label_smoothing") for name in shown)
    assert "[angle, bce, bce_multilabel, circle, contrastive, cosent, " in " ".join(" ".join(lines).split())


def test_help_imports_no_torch():
    code = "import sys; sys.argv = ['nlu.train', '--help']\nimport atexit, runpy\n"
    code += "atexit.register(lambda: print('torch' in sys.modules))\nrunpy.run_module('nlu.train', run_name='__main__')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "False"
