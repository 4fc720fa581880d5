"""A wrong name is answered with the nearest valid one, or with what exists here for a name of another program."""

import re
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from nlu.config import nearest as tables
from nlu.config.choices import conf_dir
from nlu.config.nearest import (
    choice_elsewhere,
    function_elsewhere,
    hint,
    key_elsewhere,
    metrics_elsewhere,
    nearest,
    value_elsewhere,
)
from nlu.config.signature import read_signature
from tests.approving import assert_approved

KEYS = ["trainer.batch_size", "trainer.patience", "optimizer.lr", "model.hidden_size", "model"]


def test_a_misspelt_key_is_matched_by_its_last_part_rather_than_by_its_group():
    assert nearest("trainer.batchsize", KEYS) == ["trainer.batch_size"]


def test_a_key_without_its_group_finds_its_full_name():
    assert nearest("lr", KEYS) == ["optimizer.lr"]


def test_a_misspelt_group_finds_the_key_of_the_right_one():
    assert nearest("optimiser.lr", KEYS) == ["optimizer.lr"]


def test_all_names_are_listed_when_none_is_near():
    assert hint("zzz", ["b", "a"]) == "valid: a, b"
    assert hint("zzz", []) == "nothing to choose from"


@pytest.mark.parametrize(
    ("group", "choice", "expected"),
    [
        ("scheduler", "cosine", "write scheduler=one_cycle scheduler.anneal=cosine"),
        ("task", "ner", "write task=tag"),
        ("task", "NER", "write task=tag"),
        ("loss", "ce", "write loss=cross_entropy"),
        ("data", "shop.CSV", "write data=files data.train=shop.CSV for rows in a file"),
        ("model", "org/name", "write model=hf model.pretrained=hf://org/name for a model of the Hugging Face hub"),
        ("model", "bert-base-chinese", "write model=hf model.pretrained=hf://bert-base-chinese"),
    ],
)
def test_a_choice_of_another_program_is_answered_with_ours(group: str, choice: str, expected: str):
    assert (choice_elsewhere(group, choice) or "").startswith(expected)


@pytest.mark.parametrize(
    ("group", "choice"), [("task", "clasify"), ("data", "tnewz"), ("model", "brt"), ("no", "cosine")]
)
def test_a_misspelled_choice_has_an_unknown_equivalent(group: str, choice: str):
    assert choice_elsewhere(group, choice) is None


def test_every_answer_names_choices_and_keys_that_exist():
    texts = [text for choices in tables._CHOICES.values() for text in choices.values()]
    texts += [text for text in tables.KEYS.values() if "=" in text]
    named = [word for text in texts for word in re.findall(r"[a-z_.]+=[\w.:/]+", text)]
    assert len(named) > 20
    for key, value in (word.split("=") for word in named):
        group, _, name = key.partition(".")
        folder = conf_dir() / group
        if not name and folder.is_dir():
            assert (folder / f"{value}.yaml").is_file(), f"{key}={value}"
        elif folder.is_dir() and group != "hydra":
            targets = [yaml.safe_load(path.read_text()).get("_target_") for path in folder.glob("*.yaml")]
            parameters = [read_signature(target).parameters for target in targets if target]
            plain = [yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")]
            assert any(name in known for known in [*parameters, *plain]), key


def test_functions_of_other_search_spaces_are_answered_with_intervals_of_hydra():
    for name, example in tables._FUNCTIONS.items():
        assert function_elsewhere(f"{name}(1e-5, 1)") == example
        assert OverridesParser.create().parse_override(f"key={example}").is_sweep_override()
    assert function_elsewhere("interval(0,1)") is None and function_elsewhere("uniform") is None


def test_a_value_is_known_by_its_type_too():
    assert "resume=auto" in (value_elsewhere("resume", True) or "")
    assert value_elsewhere("resume", 1) is None and value_elsewhere("seed", True) is None


def test_a_metric_means_only_what_the_task_has():
    assert metrics_elsewhere("f1_score", ["f1_macro", "accuracy"]) == ["f1_macro"]
    assert metrics_elsewhere("roc_auc", ["rmse"]) == [] and metrics_elsewhere("accuracy", ["accuracy"]) == []


def test_a_key_is_known_by_its_last_part_and_some_only_as_a_whole():
    assert key_elsewhere("trainer.cv") == "write folds=5"
    assert key_elsewhere("model") == "write run=RUN for a trained run" and key_elsewhere("trainer.model") is None


def test_configurations_of_the_project_are_where_this_test_looks():
    assert isinstance(conf_dir(), Path) and (conf_dir() / "task" / "tag.yaml").is_file()


def test_every_answer_is_as_approved() -> None:
    lines = [f"{key} -> {key_elsewhere(key)}" for key in [*tables.KEYS, *tables._WHOLE_KEYS]]
    for group, choices in tables._CHOICES.items():
        lines += [f"{group}={choice} -> {choice_elsewhere(group, choice)}" for choice in choices]
    lines += [f"{key}={value} -> {value_elsewhere(key, value)}" for key in tables._VALUES for value in (True, False)]
    known = [name for names in tables._METRICS.values() for name in names]
    lines += [f"{metric} -> {metrics_elsewhere(metric.upper(), known)}" for metric in tables._METRICS]
    lines += [f"{name} -> {function_elsewhere(f' {name.upper()} (1, 2)')}" for name in tables._FUNCTIONS]
    lines += [f"data=x{suffix} -> {choice_elsewhere('data', f'x{suffix}')}" for suffix in (*tables._FILES, ".png")]
    assert_approved(Path(__file__).parent / "approved/nearest.txt", "\n".join(lines))
