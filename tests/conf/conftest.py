"""The shipped configuration, composed as the command line composes it but in one process."""

import shlex
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nlu.config.checks.validate import problems
from nlu.config.choices import EVALUATE, RUN, SCHEMAS, conf_dir, with_defaults
from nlu.config.command_line import read_command_line
from nlu.config.resolving import resolve
from nlu.config.scoring import on_run, scored_sets
from tests.composing import composed


@cache
def _composed(config_name: str, *overrides: str) -> dict[str, Any]:
    """Compose once a session: tests share hundreds."""
    return resolve(composed(overrides, config_name))[0]


class Composer:
    """Composes configurations by name and overrides."""

    required = {
        ("data", "files"): ["data.train=my.csv", "data.fields={text: review, label: stars}"],
        ("model", "hf"): ["model.pretrained=hf://org/name"],
        **{("method", name): ["method.teacher=outputs/mine"] for name in ("distil", "minilm", "tinybert")},
    }
    """what a choice leaves to the user"""

    def plain(self, *overrides: str, config_name: str = "train") -> dict[str, Any]:
        return deepcopy(_composed(config_name, *overrides))

    def choose(self, **choices: str) -> dict[str, Any]:
        """Compose choices of groups, with what they leave to the user."""
        given = [text for choice in choices.items() for text in self.required.get(choice, [])]
        return self.plain(*(f"{group}={name}" for group, name in choices.items()), *given)

    def problems_of(self, config: dict[str, Any]) -> list[str]:
        return problems(config)

    def command_problems(self, command: str) -> list[str]:
        """Return what is wrong with `-m nlu.NAME ARGUMENTS`; of a sweep each value is tried."""
        name, *arguments = shlex.split(command.partition("-m nlu.")[2])
        if name not in SCHEMAS:  # It reads folders or paths and composes nothing.
            return []
        line = read_command_line(arguments)
        # What only shows something may leave out what a run needs.
        overrides = line.overrides
        if not overrides and any((line.flags.help, line.flags.cfg, line.flags.info, line.flags.shell_completion)):
            return []
        given: list[list[str]] = [[]]
        for override in OverridesParser.create().parse_overrides(overrides):
            key = override.get_key_element()
            values: Iterable[Any] = [override.get_value_string()]
            if override.is_interval_sweep():
                interval: Any = override.value()
                values = [interval.start, interval.end]
            elif override.is_sweep_override():
                values = override.sweep_string_iterator()
            given = [[*before, f"{key}={value}"] for value in values for before in given]
        return [text for each in given for text in problems(self._asked(name, each), SCHEMAS[name])]

    def _asked(self, name: str, overrides: list[str]) -> dict[str, Any]:
        """Return the configuration of a command; of an evaluation of a run, that of a run on files."""
        config = self.plain(*overrides, config_name=name)
        if name != "evaluate" or config["run"] is None:
            return config
        saved = with_defaults(self.choose(data="files"), RUN)
        return on_run(saved, with_defaults(config, EVALUATE), overrides, scored_sets(overrides), "outputs/mine")


@pytest.fixture
def composer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a composer in a folder that holds the files which commands in the documentation name."""
    for name in (
        "my.csv",
        "corpus.txt",
        "new.csv",
        "big.jsonl",
        "pairs.csv",
        "scores.csv",
        "topics.jsonl",
        "teacher.jsonl",
        "vocab.txt",
    ):
        (tmp_path / name).touch()
    for name in ("mine", "teacher", "teacher-of-tags"):
        (tmp_path / "outputs" / name).mkdir(parents=True)
    (tmp_path / "outputs/mine/overrides").write_text("model=bert_tiny\n")
    (tmp_path / "outputs/mine/checkpoints/best-1").mkdir(parents=True)
    (tmp_path / "outputs/mine/checkpoints/best-1/tokenizer.json").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NLU_DATA", "nowhere")
    # Which trackers are installed here has nothing to do with what composes.
    monkeypatch.setattr("nlu.config.checks.between_groups.find_spec", lambda name: object())
    return Composer()


OF_SEVERAL = ("data/mixture", "task/composite")
"""These are chosen together, for several sets: test_mixture.py."""
OF_PRETRAINING = ("data/corpus", "head/words", "head/words_and_class", "task/structbert")
"""These go with one another only: test_pretraining.py."""


@pytest.fixture
def choices() -> Callable[[str], list[str]]:
    """Return a function that lists the choices of a group, less those that are for several sets."""

    def of_group(group: str) -> list[str]:
        names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
        return [name for name in names if f"{group}/{name}" not in (*OF_SEVERAL, *OF_PRETRAINING)]

    return of_group
