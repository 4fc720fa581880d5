"""Every command that README and docs/ show in a block for bash composes and is valid.

What stands in a block of another kind names runs and folders that only its reader has.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = (
    "shop.csv", "questions.csv", "spans.jsonl", "conll.txt", "scores.csv", "topics.jsonl", "answers.csv", "vocab.txt",
    "split0.tsv", "split1.tsv",
)  # fmt: skip


def commands_of(page: Path) -> list[str]:
    """The commands of a page's blocks for bash, continued lines joined, comments left out."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [re.split(r"\s+#\s", line)[0].strip() for line in lines]
    return [command for command in commands if "-m nlu." in command and not command.startswith("#")]


def test_the_commands_of_all_pages_compose_and_are_valid(composer):
    for name in FILES:
        Path(name).touch()
    commands = {" ".join(command.split()): page.name for page in PAGES for command in commands_of(page)}
    assert len(commands) > 20
    for command, page in commands.items():
        # What a folder of one's own holds is composed with it in tests/training/test_recipes.py.
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
