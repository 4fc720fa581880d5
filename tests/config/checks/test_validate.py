"""A configuration is judged whole, key by key, against the schemas that it names."""

from typing import Any

import pytest

from nlu.config.checks import validate
from nlu.config.checks.validate import problems
from nlu.config.choices import SCHEMAS, with_defaults

SCHEMA = "shop.schema.Job"


def config(**changes: Any) -> dict[str, Any]:
    return {
        "name": "a",
        "task": {"_target_": "shop.models.Task", "labels": ["a"]},
        "model": {"_target_": "shop.models.Model", "hidden_size": 8},
        "trainer": {"batch_size": 32},
        "trusted_packages": ["shop"],
        "hydra": {"ignored": "???"},
        **changes,
    }


def found(**changes: Any) -> list[str]:
    return problems(config(**changes), SCHEMA)


def test_a_valid_configuration_passes():
    assert found() == []


def test_a_value_out_of_range_is_refused_with_key_value_rule_and_remedy():
    assert found(trainer={"batch_size": 0}) == [
        "trainer.batch_size is 0 but must be an integer >= 1 or auto; set trainer.batch_size to such a value"
    ]


def test_a_key_that_the_program_supplies_itself_is_refused():
    assert (
        "model.labels cannot be set: shop.models.Model gets it"
        in found(model={"_target_": "shop.models.Model", "labels": 3})[0]
    )


def test_a_required_key_that_is_absent_or_not_set_is_named():
    extended = {"_target_": "shop.models.Extended"}
    assert found(model=extended) == ["model.width is not set; set it to a number"]
    assert found(model={**extended, "width": "???"}) == found(model=extended)
    assert found(name="???") == ["name is not set; set it to a text"]


def test_a_target_within_a_target_is_checked_by_its_own_signature():
    model = {"_target_": "shop.models.Model", "head": {"_target_": "shop.models.make", "rate": 0}}
    assert found(model=model) == ["model.head.rate is 0 but must be a number > 0; set model.head.rate to such a value"]


def test_a_target_of_a_package_that_is_not_trusted_is_refused_unread():
    (problem,) = found(model={"_target_": "torch.nn.Linear", "in_features": 1})
    assert problem == (
        "model._target_ is refused: torch.nn.Linear is outside nlu; "
        "if you trust torch, add it: trusted_packages=[torch]"
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (
            "shop.models.X",
            "model._target_ cannot be read: shop.models.X: shop.models has no X; valid: Ancestor, Base, Extended, "
            "Heir, Model, Open, Task, make",
        ),
        ("???", 'model._target_ is "???" but must name a class; set it to package.module.Class'),
        (3, "model._target_ is 3 but must name a class; set it to package.module.Class"),
    ],
)
def test_a_target_that_names_no_class_is_refused(target: Any, expected: str):
    assert found(model={"_target_": target}) == [expected]


def test_a_group_with_a_short_form_is_named_by_it_and_its_keys_are_checked():
    schema = SCHEMAS["predict"]
    given = {"run": "outputs/mine", "output": "out.csv"}
    assert problems({**given, "input": {"pth": "x"}}, schema) == [
        "input.pth: unknown key; nearest: input.path",
        "input is not set; set it to a list or a file, a URL or - for standard input",
    ]


def test_a_key_that_is_left_out_has_the_default_of_its_signature():
    filled = with_defaults({"seed": 7, "trainer": {"batch_size": 4}}, validate.RUN)
    assert filled["seed"] == 7 and filled["resume"] == "never"
    assert filled["trainer"]["batch_size"] == 4 and filled["trainer"]["accumulation"] == 1
