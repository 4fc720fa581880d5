"""A name of another program or of an earlier version is answered with what to write here, in every command."""

import re
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from nlu.__main__ import main as nlu_main
from nlu.config import foreign
from nlu.config.checks.validate import value_problem
from nlu.config.choices import PLAIN_GROUPS, RUN, SCHEMAS, conf_dir, targets_of
from nlu.config.command_line import read_command_line
from nlu.config.errors import UserError
from nlu.config.foreign import LONGEST_HINT, choice_elsewhere, hint_of_key, key_elsewhere
from nlu.config.keys import schema_of

COMMANDS = [path.stem for path in Path(__file__).parents[2].glob("nlu/commands/*.py") if path.stem[0] != "_"]
TABLES = (foreign._OF_OTHERS, foreign._OURS)
PREDICT = SCHEMAS["predict"]


@cache
def known_keys() -> frozenset[str]:
    """Return the full keys of all commands, plain groups and shipped choices."""
    of_commands = (key for schema in SCHEMAS.values() for key in schema_of(schema).keys)
    targets = [*PLAIN_GROUPS.items()]
    for path in conf_dir().iterdir():
        targets += [(path.name, target) for target in targets_of(path.name).values()] if path.is_dir() else []
    return frozenset(of_commands) | {f"{group}.{key}" for group, target in targets for key in schema_of(target).keys}


@pytest.mark.parametrize("key", ["{}", "trainer.{}", "training.{}", "a.b.{}"])
def test_a_key_of_another_program_is_known_in_any_group(key: str):
    assert hint_of_key(key.format("learning_rate"), known_keys()) == "write optimizer.lr"
    assert hint_of_key(key.format("Update_Freq"), known_keys()) == "write trainer.accumulation"
    assert "optimizer.lr" in hint_of_key(key.format("lr"), ["optimizer.lr", "seed"])


def test_a_key_is_answered_for_the_command():
    assert key_elsewhere("test_file", RUN) == "write data.test=FILE"
    assert key_elsewhere("test_file", PREDICT) == "write input=FILE"
    assert key_elsewhere("model", PREDICT) == "write run=RUN; a trained run has its model"
    assert key_elsewhere("max_grad_norm", PREDICT) == "it is trainer.clip_norm of python -m nlu.train"
    assert hint_of_key("distill", known_keys(), PREDICT) == "write logits=true"
    assert hint_of_key("distill", known_keys(), RUN) == "write method=distil method.teacher=RUN"
    assert key_elsewhere("num_labels") == "leave it out: the data tell how many labels there are"


def test_a_key_of_another_choice_names_that_choice():
    assert hint_of_key("loss.temperature", known_keys()) == "it is a key of loss=info_nce or loss=kl"
    assert hint_of_key("loss.threshold", []) == "it is a key of loss=bce"
    assert hint_of_key("temperature", []).startswith("it is loss.temperature of loss=info_nce or loss=kl or method.")
    assert hint_of_key("lr", [], PREDICT).endswith("or others, in python -m nlu.train")
    assert hint_of_key("scheduler.tempo", ["scheduler.anneal", "seed"]) == "valid: scheduler.anneal, seed"
    assert hint_of_key("tempo", [f"{number}" * 9 for number in range(LONGEST_HINT)]) == "see --cfg job for all keys"


def test_a_choice_of_another_program_is_answered_with_ours():
    assert choice_elsewhere("scheduler", "Cosine") == "write scheduler=one_cycle scheduler.anneal=cosine"
    assert choice_elsewhere("data", "shop.CSV") == "write data=files data.train=shop.CSV for rows in a file"
    assert choice_elsewhere("model", "org/name") == (
        "write model=hf model.pretrained=hf://org/name for a model of the Hugging Face hub"
    )
    assert choice_elsewhere("model", "brt") is None
    assert (value_problem("trainer.device", Literal["cpu", "cuda"], "gpu") or "").endswith("; write cuda")


def test_every_answer_names_choices_and_keys_that_exist():
    assert len(foreign.table(foreign._OF_OTHERS)) <= 80
    for answer in [answer for table in TABLES for answer in foreign.table(table).values()]:
        ours, _, why = answer.partition(" | ")
        assert ours != "-" or why, "without an answer, say why"
        for command in re.findall(r"python -m nlu\.(\w+)", answer):
            assert command in COMMANDS
        for key, choice in re.findall(r"(?:^|[ '])([a-z_]+[./][\w./]+|[a-z_]+(?==))(?:=(\w+))?", ours):
            folder = conf_dir() / key
            if folder.is_dir() and choice != "NAME":
                assert (folder / f"{choice}.yaml").is_file() or choice in ("hyperband", "random", "tpe"), answer
            assert key in known_keys() or folder.is_dir() or key.startswith(("hydra", "nlu.")), answer


def test_a_flag_and_a_command_of_another_program_are_answered_with_ours(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UserError, match="for --learning_rate write optimizer.lr; for --fp16 write precision=fp16"):
        read_command_line(["--learning_rate", "2e-5", "--fp16"])
    with pytest.raises(UserError, match="for --per_device_train_batch_size write trainer.batch_size; over all devices"):
        read_command_line(["--per-device-train-batch-size=16"])
    assert nlu_main(["x-eval"]) == 2
    assert "unknown command x-eval; write python -m nlu.evaluate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["errors", "run", "--html"], "--html: unknown flag; leave it out: nlu.report errors --rows"),
        (["--join", "x"], "leave it out: the table"),
    ],
)
def test_a_flag_of_an_earlier_version_is_answered_with_its_substitute(arguments: list[str], said: str):
    from nlu.commands.report import main

    with pytest.raises(UserError, match=said):
        main(arguments)
