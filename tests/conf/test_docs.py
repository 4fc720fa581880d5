"""Every command that README and docs/ show in a block for bash composes and is valid; links lead somewhere.

tests/training/test_pages.py runs the commands.
"""

import re
from pathlib import Path

import pytest

from tests.conf.pages import PAGES, commands_of, write_files


@pytest.mark.thorough
def test_the_commands_of_all_pages_compose_and_are_valid(composer):
    write_files(Path())
    commands = {" ".join(command.split()): page.name for page in PAGES for command in commands_of(page)}
    assert len(commands) > 40
    for command, page in commands.items():
        # Commands that need the folder of a user are composed in tests/training/test_pages.py.
        if "--config-dir" not in command:
            assert composer.command_problems(command) == [], f"{page}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_files(page):
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_a_wrong_command_of_a_page_would_be_noticed(composer, tmp_path):
    (tmp_path / "page.md").write_text("```bash\n# a\npython -m nlu.train \\\n    trainer.batch_size=0  # b\n```\n")
    (command,) = commands_of(tmp_path / "page.md")
    assert len(composer.command_problems(command)) == 1


def test_the_front_page_is_short():
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 200
