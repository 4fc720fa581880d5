"""A name of another program is answered with what to write here, in every command."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from hydra import initialize_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from nlu.config.checks.overrides import override_problems, settable_keys
from nlu.config.signature import read_signature

from nlu.__main__ import main as nlu_main
from nlu.config.checks.unknown import hint_of_key
from nlu.config.checks.values import broken_rule
from nlu.config.choices import RUN, SCHEMAS, conf_dir, target_of
from nlu.config.entry.flags import read_command_line
from nlu.config.errors import UserError
from nlu.config.foreign import (
    choice_elsewhere,
    command_elsewhere,
    function_elsewhere,
    table,
)
from nlu.config.resolving import compose

COMMANDS = sorted(path.stem for path in Path(__file__).parents[2].glob("nlu/*.py") if path.stem[0] != "_")


@cache
def valid_keys(command: str) -> frozenset[str]:
    with initialize_config_search_path([f"file://{conf_dir()}"]):
        return frozenset(settable_keys(compose(command, []), SCHEMAS[command]))


@pytest.mark.parametrize("key", ["{}", "trainer.{}", "model.{}", "scheduler.{}", "training.{}", "a.b.{}"])
def test_a_key_of_another_program_is_known_in_any_group(key: str):
    names = {"learning_rate": "optimizer.lr", "lower": "tokenizer.lowercase", "lr": "optimizer.lr"}
    for name, expected in names.items():
        assert expected in hint_of_key(key.format(name), valid_keys("train"), RUN)


def test_a_command_line_of_foreign_names_is_answered_name_by_name():
    given = ["lower=true", "trainer.max_epochs=3", "lr_scheduler=cosine", "hydra.sweeper.max_trials=3", "task=ner"]
    found = override_problems("train", [f"file://{conf_dir()}"], given)
    assert [problem.partition("; ")[2].partition(";")[0] for problem in found] == [
        "write task=tag",
        "write tokenizer.lowercase=true",
        "write trainer.max_duration, such as trainer.max_duration=3ep",
        "write scheduler=one_cycle",
        "write hydra.sweeper.n_trials, such as hydra.sweeper.n_trials=40",
    ]


def test_a_key_of_another_choice_names_that_choice():
    assert hint_of_key("loss.temperature", valid_keys("train"), RUN) == "it is a key of loss=info_nce or loss=kl"
    assert hint_of_key("adapter.rank", valid_keys("train"), RUN) == "it is a key of adapter=lora"
    assert hint_of_key("loss.threshold", valid_keys("train"), RUN) == "it is a key of loss=bce"
    of_both = hint_of_key("temperature", valid_keys("train"), RUN)
    assert of_both.startswith(
        "it is loss.temperature of loss=info_nce or loss=kl or method.temperature of method=distil"
    )
    assert hint_of_key("data.fields", [], RUN) == (
        "it is a key of data=corpus or data=files or data=afqmc or data=chnsenticorp or data=cluener or 5 more"
    )
    assert hint_of_key("scheduler.tempo", valid_keys("train"), RUN).startswith("valid: scheduler.anneal")
    of_predict = hint_of_key("lr", valid_keys("predict"), SCHEMAS["predict"])
    assert of_predict.startswith("it is method.lr of method=freelb or optimizer.lr of optimizer=adamw or")


@pytest.mark.parametrize(
    ("group", "choice", "expected"),
    [
        ("scheduler", "cosine", "write scheduler=one_cycle scheduler.anneal=cosine"),
        ("task", "ner", "write task=tag"),
        ("loss", "ce", "write loss=cross_entropy"),
        ("loss", "bce_distill", "write method=distil method.teacher=RUN"),
        ("optimizer", "adam", "write optimizer=adamw"),
        ("model", "mgimn-simple", "nlu cannot do this yet"),
        ("model", "AutoModelForSequenceClassification", "write model=hf model.pretrained=hf://NAME"),
        ("data", "shop.CSV", "write data=files data.train=shop.CSV for rows in a file"),
        ("model", "org/name", "write model=hf model.pretrained=hf://org/name for a model of the Hugging Face hub"),
    ],
)
def test_a_choice_of_another_program_is_answered_with_ours(group: str, choice: str, expected: str):
    assert (choice_elsewhere(group, choice) or "").startswith(expected)


def answers() -> Iterator[tuple[str, str]]:
    """Yield each alternative of each answer, with the name that it answers."""
    for section in ("whole keys", "keys", "choices", "values"):
        for name, row in table(section).items():
            assert row.ours not in ("", "-") or row.why, f"{name}: without an answer, say why"
            yield from ((name, ours) for ours in row.ours.split(" / ") if ours not in ("-", "later"))


def test_every_answer_names_choices_and_keys_that_exist():
    keys = frozenset().union(*map(valid_keys, SCHEMAS))
    of_groups = {
        f"{path.parent.name}.{key}"
        for path in conf_dir().glob("*/*.yaml")
        for key in yaml.safe_load(path.read_text(encoding="utf-8"))
    }
    of_hydra = {f"hydra.{path.parent.name}.{key}" for path in conf_dir().glob("hydra/*/*.yaml")
                for key in yaml.safe_load(path.read_text(encoding="utf-8"))}  # fmt: skip
    of_sweeper = {f"hydra.sweeper.{key}" for key in ("n_trials", "n_jobs", "params", "min_resource", "reduction_factor",
                                                     "pruner")}  # fmt: skip
    known = keys | of_groups | of_hydra | of_sweeper | {"hydra.run.dir", "hydra.sweep.dir", "hydra/sweeper/sampler"}
    count = 0
    for name, ours in answers():
        if ours.startswith("python"):
            assert re.match(r"python -m nlu\.(\w+)", ours)[1] in COMMANDS
            continue
        for word in re.findall(r"(?:^| |')([a-z_][\w./]*)=?", re.sub(r"=('[^']*'|\{[^}]*\}|\S+)", "=", ours)):
            count += 1
            assert word in known or (conf_dir() / word).is_dir(), f"{name}: {word}"
        for group, choice in re.findall(r"(?:^| )([a-z_/]+)=(\w+)", ours):
            folder = conf_dir() / group
            if folder.is_dir() and choice != "NAME" and group != "hydra/sweeper/sampler":
                assert (folder / f"{choice}.yaml").is_file() or group == "hydra/sweeper", f"{name}: {group}={choice}"
    assert count > 800


def test_every_value_in_the_table_is_refused_and_answered():
    plain = {"null": None, "true": True, "false": False, "-1": -1, "0": 0, "1": 1}
    count = 0
    for name in table("values"):
        key, _, shown = name.partition("=")
        group, _, last = key.rpartition(".")
        schema = {"": RUN, "trainer": "nlu.config.schema.Trainer"}.get(group) or next(
            target for path in sorted((conf_dir() / group).glob("*.yaml"))
            if (target := target_of(group, path.stem)) and last in read_signature(target).parameters
        )  # fmt: skip
        if key in ("device", "format"):
            schema = SCHEMAS["export" if key == "format" else "predict"]
        problem = broken_rule(key, read_signature(schema).parameters[last].annotation, plain.get(shown, shown))
        assert problem is not None and "; write " in problem, name
        count += 1
    assert count > 40


def test_functions_of_other_search_spaces_are_answered_with_intervals_of_hydra():
    for name, row in table("functions").items():
        assert function_elsewhere(f"{name}(1e-5, 1)") == row.ours
        assert OverridesParser.create().parse_override(f"key={row.ours}").is_sweep_override()
    assert function_elsewhere("trial.suggest_float('a', 0, 1)") == "interval(0,0.3)"
    assert function_elsewhere("interval(0,1)") is None and function_elsewhere("uniform") is None


def test_a_command_of_another_program_is_answered_with_ours():
    assert command_elsewhere("x-tune") == "write python -m nlu.train --multirun hydra/sweeper=hyperband"
    assert command_elsewhere("train") is None
    for row in table("commands").values():
        assert re.match(r"python -m nlu\.(\w+)", row.ours)[1] in COMMANDS


def test_a_flag_of_another_program_is_answered_with_ours():
    with pytest.raises(
        UserError,
        match="for --learning_rate write optimizer.lr, such as optimizer.lr=2e-5; for --fp16 write precision=fp16",
    ):
        read_command_line(["--learning_rate", "2e-5", "--fp16"])
    with pytest.raises(
        UserError,
        match="for --per_device_train_batch_size write trainer.batch_size, such as trainer.batch_size=32; over all",
    ):
        read_command_line(["--per-device-train-batch-size=16"])


def test_a_command_line_with_a_command_of_another_program_names_ours(capsys: pytest.CaptureFixture[str]):
    assert nlu_main(["x-eval"]) == 2
    assert "unknown command x-eval; write python -m nlu.evaluate" in capsys.readouterr().err
