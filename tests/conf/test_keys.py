"""Each key of a YAML is explained beside it or in a file that the YAML names; experiments state what is recorded.

A comment is the meaning and the unit, then what values mean, `0 = off`, each part set apart by a semicolon.
"""

import ast
import importlib
import inspect
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from nlu.config.checks.values import broken_rule, check_value
from nlu.config.choices import PLAIN_GROUPS, RUN, SCHEMAS, conf_dir
from nlu.config.entry.app import find_plugins
from nlu.config.signature import read_signature
from nlu.config.targets import TARGET

# Only here; other tests of the same worker start processes.
with mock.patch.dict(os.environ):
    find_plugins()
ROOT = Path(__file__).parents[2]
KEY = re.compile(r"(?P<indent> *)(?P<dash>- )?(?P<key>\w+):(?: .*?)??(?:\s+# (?P<comment>.+))?$")
POINTER = re.compile(r"^# The keys are explained in (.+)\.$", re.MULTILINE)
MEANS = re.compile(r"(?:^|; )(\S+) = ")
GROUPS = [path.name for path in conf_dir().iterdir() if path.is_dir() and not path.name.startswith("_")]
RECORDED = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Page:
    """A YAML under conf/, by its place there."""

    name: str
    text: str

    @cached_property
    def config(self) -> dict[str, Any]:
        return yaml.safe_load(self.text)

    @cached_property
    def prefix(self) -> str:
        """What stands before its keys on the command line."""
        return "" if self.is_global else Path(self.name).parent.as_posix().replace("/", ".") + "."

    @cached_property
    def is_global(self) -> bool:
        return "/" not in self.name or self.text.startswith("# @package _global_\n")

    @cached_property
    def pointers(self) -> list[str]:
        """The YAMLs in which it says that its keys are explained."""
        return re.findall(r"conf/([\w/]+\.yaml)", " ".join(POINTER.findall(self.text)))

    @cached_property
    def keys(self) -> list[str]:
        """Full keys that it sets; for values that a search draws and for mappings, the key that holds them."""
        own = {key: value for key, value in self.config.items() if key not in (TARGET, "defaults")}
        if not self.is_global:
            return [self.prefix + key for key in own]
        return [key for name, value in own.items() for key in _nested(name, value, 3 if name == "hydra" else 2)]

    @property
    def own_keys(self) -> list[str]:
        """Those that are not Hydra's."""
        return [key for key in self.keys if _root(key) != "hydra"]

    @cached_property
    def comments(self) -> dict[str, str]:
        """The comment of each key that has one: on its line, or on the lines above it, behind the file's own."""
        lines = self.text.splitlines()
        first = next(number for number, line in enumerate(lines) if not line.startswith("#"))
        found: dict[str, str] = {}
        above: list[str] = []
        parents: list[tuple[int, str]] = []
        for line in lines[first:]:
            if line.lstrip().startswith("# "):
                above.append(line.lstrip()[2:])
                continue
            if match := KEY.match(line):
                parents = [parent for parent in parents if parent[0] < len(match["indent"])]
                parents.append((len(match["indent"]), match["key"]))
                comment = match["comment"] or " ".join(above)
                if comment:
                    found[self.prefix + ".".join(key for _, key in parents)] = comment
            above = []
        return found

    @cached_property
    def annotations(self) -> dict[str, ast.expr]:
        """What each key may be, read from what it configures; none of a file that configures nothing by itself."""
        if "/" not in self.name and (schema := SCHEMAS.get(Path(self.name).stem)) and self.own_keys:
            own = {key: each for key, each in _annotations(schema).items() if key not in {*GROUPS, *PLAIN_GROUPS}}
            if "train" in self.config["defaults"]:
                # What it takes over is explained there.
                own = {key: each for key, each in own.items() if key not in _annotations(RUN)}
            inner = [name for name in PLAIN_GROUPS if f"{name}." in " ".join(self.keys)]
            return own | {
                f"{name}.{key}": each for name in inner for key, each in _annotations(PLAIN_GROUPS[name]).items()
            }
        target = self.config.get(TARGET) or (PLAIN_GROUPS["trainer"] if self.name.startswith("trainer/") else None)
        return {self.prefix + key: each for key, each in _annotations(target).items()} if target else {}


def _nested(key: str, value: Any, depth: int) -> list[str]:
    if depth == 1 or not isinstance(value, Mapping):
        return [key]
    return [each for name, item in value.items() for each in _nested(f"{key}.{name}", item, depth - 1)]


def _text_of(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _annotations(target: str) -> dict[str, ast.expr]:
    signature = read_signature(target)
    if target.startswith("nlu."):
        return {name: parameter.annotation for name, parameter in signature.parameters.items()}
    # Hydra's plugins take their keys by position too.
    module, _, name = target.rpartition(".")
    plugin = getattr(importlib.import_module(module), name)
    # A launcher takes all keys that it gets: those of a dataclass.
    constructor = inspect.signature(getattr(plugin, "keys", plugin))
    return {
        key: ast.parse(_text_of(each.annotation), mode="eval").body
        for key, each in constructor.parameters.items()
        if key != TARGET
    }


def pages_of(folder: Path) -> dict[str, Page]:
    """Return the YAMLs below a folder of configuration files, by their place in it."""
    paths = sorted(folder.rglob("*.yaml"))
    names = [path.relative_to(folder).as_posix() for path in paths]
    return {name: Page(name, path.read_text(encoding="utf-8")) for name, path in zip(names, paths, strict=True)}


def problems_of(page: Page, pages: Mapping[str, Page]) -> list[str]:
    """Return what is wrong with the keys of a file and with what it, or a file that it names, says of them."""
    found = [f"{name} explains no keys" for name in page.pointers if name not in pages or pages[name].pointers]
    sources = [pages[name] for name in page.pointers if name in pages]
    known = page.annotations.keys() | {key for source in sources for key in source.annotations}
    # Classes of other libraries take deprecated and experimental arguments too.
    if page.annotations and not str(page.config.get(TARGET)).startswith("optuna."):
        found += [f"{key} is missing" for key in page.annotations if key not in page.keys]
    found += [f"{key} is unknown" for key in page.keys if key not in known and _root(key) not in ("hydra", "defaults")]
    explaining = sources if sources and not page.is_global else [*sources, page]
    found += [
        f"{key} lacks a comment" for key in page.keys if not any(source.comments.get(key) for source in explaining)
    ]
    for key, annotation in page.annotations.items():
        if key in page.comments:
            found += statement_problems(key, annotation, page.comments[key], is_full=not page.pointers)
    return found


def statement_problems(key: str, annotation: ast.expr, comment: str, is_full: bool) -> list[str]:
    """Return what is wrong with the values that a comment gives a meaning: none that the key cannot take.

    With `is_full` it must explain null if the key accepts it, 0 unless that is a length, and each choice.
    """
    values = MEANS.findall(comment)
    found = [f"{key}: {text} is not set apart" for text in re.findall(r"(\S+) = ", comment) if text not in values]
    rules = [broken_rule(key, annotation, yaml.safe_load(value)) for value in values]
    found += [rule for rule in rules if rule is not None]
    wanted = ["null"] * (check_value(annotation, None) is None)
    wanted += ["0"] * (ast.unparse(annotation).rpartition(".")[2] in ("Interval", "Warmup"))
    wanted += [choice.value for choice in ast.walk(annotation) if _is_text(choice)]
    said = re.findall(r"[\w-]+", comment)
    return found + [f"{key}: nothing is said of {value}" for value in wanted if is_full and value not in said]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _root(key: str) -> str:
    return key.partition(".")[0]


PAGES = pages_of(conf_dir())


@pytest.mark.parametrize("name", PAGES)
def test_every_key_of_a_file_is_known_and_explained_with_valid_values_only(name):
    assert problems_of(PAGES[name], PAGES) == []


def test_exactly_one_file_explains_the_keys_of_a_constructor():
    full = [page for page in PAGES.values() if page.config.get(TARGET) and page.keys and not page.pointers]
    explained = Counter(page.config[TARGET] for page in full)
    with_keys = {page.config[TARGET] for page in PAGES.values() if page.config.get(TARGET) and page.keys}
    assert len(with_keys) > 20 and explained == Counter(with_keys)


@pytest.mark.parametrize(
    "name", [name for name, page in PAGES.items() if page.config.get(TARGET) and not page.pointers]
)
def test_the_file_that_explains_a_constructor_states_its_defaults(name):
    parameters = {} if name.startswith("hydra/") else read_signature(PAGES[name].config[TARGET]).parameters
    defaults = {key: ast.literal_eval(each.value) for key, each in parameters.items() if each.value is not None}
    stated = {key: value for key, value in PAGES[name].config.items() if key in defaults}
    for key, value in stated.items():
        # None stands for the value of pretrained weights; this file is also for training without them.
        if defaults[key] is None and name == "model/bert_tiny.yaml":
            continue
        # YAML reads 2e-4 as a text, and knows no tuples.
        number = float(value) if isinstance(value, str) and isinstance(defaults[key], float) else value
        assert number == (list(defaults[key]) if isinstance(defaults[key], tuple) else defaults[key]), key


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("hydra/launcher/")])
def test_a_launcher_has_the_same_defaults_in_other_programs(name):
    page = PAGES[name]
    module, _, kind = page.config[TARGET].rpartition(".")
    own = asdict(getattr(importlib.import_module(module), kind).keys())
    assert {key: value for key, value in page.config.items() if key != "defaults"} == own


def test_values_are_given_a_meaning_in_many_comments():
    stated = {
        (key, value) for page in PAGES.values() for key in page.annotations for value in
        MEANS.findall(page.comments.get(key, ""))
    }  # fmt: skip
    assert len(stated) > 60
    assert {
        ("trainer.ema_decay", "0"), ("trainer.patience", "null"), ("optimizer.freeze", "[]"), ("folds.count", "null"),
        ("task.decode", "greedy"), ("hydra.sweeper.params", "null"),
    } <= stated  # fmt: skip


def test_every_group_is_explained_where_the_defaults_are_chosen():
    page = PAGES["train.yaml"]
    chosen = [name for entry in page.config["defaults"] if isinstance(entry, dict) for name in entry]
    groups = [name for name in chosen if not name.startswith("override ")]
    assert sorted(groups) == sorted({*GROUPS} - {"hydra"})
    for group in groups:
        comment = page.comments[f"defaults.{group}"]
        known = {"null", *(path.stem for path in (conf_dir() / group).glob("*.yaml"))}
        assert set(MEANS.findall(comment)) <= known, comment


LOSS = "# python -m nlu.train loss=mine\n_target_: nlu.losses.cross_entropy.CrossEntropy\n"
GOOD = """label_smoothing: 0.0  # share of the target that goes to all classes; 0 = off
# weight of a row by its class, {class: weight} or inverse_frequency; null = off
class_weights: null
"""


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (LOSS + GOOD, []),
        (LOSS + GOOD.replace("  # share of the target that goes to all classes; 0 = off", ""),
         ["loss.label_smoothing lacks a comment"]),
        (LOSS + GOOD + "gamma: 2.0  # exponent\n", ["loss.gamma is unknown"]),
        (LOSS + GOOD.splitlines()[0] + "\n", ["loss.class_weights is missing"]),
        (LOSS + GOOD.replace("0 = off", "1 = off"),
         ["loss.label_smoothing is 1 but must be a number >= 0 and < 1; set loss.label_smoothing to such a value"]),
        (LOSS + GOOD.replace("; 0 = off", ", 0 = off"), ["loss.label_smoothing: 0 is not set apart"]),
        (LOSS + GOOD.replace("; null = off", ""), ["loss.class_weights: nothing is said of null"]),
        (LOSS + GOOD.replace(" or inverse_frequency", ""),
         ["loss.class_weights: nothing is said of inverse_frequency"]),
        (LOSS + "# The keys are explained in conf/loss/full.yaml.\nlabel_smoothing: 0.1\nclass_weights: null\n", []),
        (LOSS + "# The keys are explained in conf/loss/half.yaml.\nlabel_smoothing: 0.1\nclass_weights: null\n",
         ["loss.class_weights lacks a comment"]),
        (LOSS + "# The keys are explained in conf/loss/none.yaml.\n" + GOOD, ["loss/none.yaml explains no keys"]),
        ("# @package _global_\n# python -m nlu.train experiment=mine\n"
         "# The keys are explained in conf/loss/full.yaml.\nloss:\n  label_smoothing: 0.1\n  gama: 2  # exponent\n",
         ["loss.gama is unknown"]),
    ],
)  # fmt: skip
def test_a_missing_comment_an_unknown_key_and_a_wrong_value_would_be_noticed(tmp_path, text, problems):
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss/full.yaml").write_text(LOSS + GOOD)
    (tmp_path / "loss/half.yaml").write_text(LOSS + GOOD.replace("# weight", "#weight"))
    (tmp_path / "loss/mine.yaml").write_text(text)
    pages = pages_of(tmp_path)
    assert problems_of(pages["loss/mine.yaml"], pages) == problems


def record_problems(name: str, text: str, recorded: str = RECORDED) -> list[str]:
    """Return what is wrong with what an experiment says of its score, its time and their source."""
    record = dict(re.findall(r"^# (score|time|source): (.+)$", text, re.MULTILINE))
    if list(record) != ["score", "time", "source"]:
        return [f"{name} has lines {list(record)}, not score, time, source"]
    files = [path for path in re.findall(r"[\w/]+\.md", record["source"]) if not (ROOT / path).is_file()]
    found = [f"{path} does not exist" for path in files]
    section = recorded.partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith(f"| {name} |")]
    if record["source"].startswith("none"):
        found += [f"{name} has a row in docs/experiments.md"] * len(rows)
        return found + [f"{key} has a figure" for key in ("score", "time") if re.search(r"\d", record[key])]
    if len(rows) != 1:
        return [*found, f"docs/experiments.md lacks the row of {name}"]
    figures = re.findall(r"\d\.\d+", record["score"])[:1] + re.findall(r"\d+ min", record["time"])
    found += [f"{name} states no score or no time"] * (len(figures) != 2)
    found += [f"{each} is not in its row" for each in figures if each not in rows[0]]
    others = re.findall(r"\d+\.\d+", text)
    return found + [f"{each} is not in docs/experiments.md" for each in others if each not in section]


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("experiment/")])
def test_an_experiment_states_score_time_and_source_as_they_are_recorded(name):
    header = PAGES[name].text.partition("defaults:")[0]
    assert record_problems(Path(name).stem, header) == []


RECORD = "# score: dev accuracy 0.75, at 1 of 2 epochs\n# time: 13 min\n# source: docs/experiments.md, recorded\n"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (RECORD, []),
        (RECORD.replace("# time", "# wall"), ["mine has lines ['score', 'source'], not score, time, source"]),
        (RECORD.replace("0.75", "0.57"), ["0.57 is not in its row", "0.57 is not in docs/experiments.md"]),
        (RECORD.replace("13 min", "31 min"), ["31 min is not in its row"]),
        (RECORD.replace("docs/experiments.md", "RESULT.md"), ["RESULT.md does not exist"]),
        (RECORD.replace("docs/experiments.md, ", "none; "),
         ["mine has a row in docs/experiments.md", "score has a figure", "time has a figure"]),
    ],
)  # fmt: skip
def test_a_record_that_contradicts_the_page_is_noticed(text, problems):
    page = "# Recorded experiments\n\n| mine | accuracy 0.75 | 1 epoch | 13 min | |\n\n## Next\n\n0.57\n"
    assert record_problems("mine", text, page) == problems
