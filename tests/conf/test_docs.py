"""Links, keys and choices of README and docs/ exist; tests/training/test_pages.py runs the commands."""

import re

import pytest

from nlu.config.choices import PLAIN_GROUPS, conf_dir, targets_of
from nlu.config.keys import schema_of
from tests.conf.pages import PAGES, ROOT

CODE = re.compile(r"`([^`\n]+)`")
NAMED_KEY = re.compile(r"(?<![\w.=/{])((?:hydra\.)?[a-z_]+\.[a-z_]+)(?=[=\s,']|$)")
NAMED_CHOICE = re.compile(r"(?<![\w./@])([a-z]+)=(\w+)")
KEY_LINE = re.compile(r"^(\w+):", re.MULTILINE)
OF_USERS = ("NAME", "small", "large", "shop")
"""Choices that pages name and a user adds."""


def keys_of_files(pattern: str) -> set[str]:
    """Return `hydra.GROUP.KEY` for the keys of all choices that a pattern finds in conf/."""
    files = conf_dir().glob(pattern)
    return {f"hydra.{path.parent.name}.{key}" for path in files for key in KEY_LINE.findall(path.read_text("utf-8"))}


def keys_of_groups() -> set[str]:
    """Return `GROUP.KEY` for the keys of all choices and of groups without a target."""
    groups = [path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra"]
    targets = [(group, target) for group in groups for target in targets_of(group).values()]
    return {f"{group}.{key}" for group, target in [*targets, *PLAIN_GROUPS.items()] for key in schema_of(target).keys}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_files(page):
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_keys_and_choices_that_a_page_names_exist(page):
    keys = keys_of_groups() | keys_of_files("hydra/*/*.yaml")
    sweeper = ROOT / "nlu/search/keys.py"
    keys |= {f"hydra.sweeper.{name}" for name in re.findall(r"^    (\w+): ", sweeper.read_text("utf-8"), re.MULTILINE)}
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()} - {"hydra"}
    for code in CODE.findall(page.read_text(encoding="utf-8")):
        for key in NAMED_KEY.findall(code):
            if key.startswith("hydra.sweeper.") or key.startswith("hydra.launcher.") or key.split(".")[0] in groups:
                assert key in keys, f"{key} in `{code}`"
        for group, choice in NAMED_CHOICE.findall(code):
            if group in groups and choice not in OF_USERS:
                assert (conf_dir() / group / f"{choice}.yaml").is_file(), f"{group}={choice} in `{code}`"
