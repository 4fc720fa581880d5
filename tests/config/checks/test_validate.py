"""A configuration is judged whole, key by key, against the schemas that it names, and each value by its type."""

import math
from typing import Any, Literal

import pytest

from nlu.config import types
from nlu.config.checks import validate
from nlu.config.checks.validate import problems, show, value_problem
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


CASES: list[tuple[Any, list[Any], list[Any], str]] = [
    (int, [1, -3], [True, "3", 3.0, None], "an integer"),
    (float, [1, 0.5], ["0.1", True, math.nan, math.inf], "a number"),
    (bool, [True], [1, "true"], "true or false"),
    (str, ["a"], [1, None], "a text"),
    (types.PositiveInt, [1, 10**12], [0, -1, 1.0, True], "an integer >= 1"),
    (types.PositiveInt | None, [None, 1], [-1], "an integer >= 1 or null"),
    (types.OddPositiveInt, [1, 3], [0, 2, -1], "an odd integer >= 1"),
    (types.FoldCount, [2, 3], [1, 0], "an integer >= 2"),
    (types.RowLength, [8], [7], "an integer >= 8"),
    (types.NonNegativeInt, [0, 1], [-1, 0.5], "an integer >= 0"),
    (types.PositiveFloat, [1e-300, 1], [0, 0.0, -1e-300, math.inf], "a number > 0"),
    (types.NonNegativeFloat, [0, 3], [-1e-9, math.nan], "a number >= 0"),
    (types.Port, [0, 65535], [-1, 65536], "an integer >= 0 and <= 65535"),
    (types.Probability, [0, 0.999], [-0.001, 1], "a number >= 0 and < 1"),
    (types.Fraction, [0, 1, 1.0], [-0.001, 1.001], "a number >= 0 and <= 1"),
    (types.TwoRates, [[0.9, 0.999]], [[0.9], [0.9, 1], 3], "a list of 2 items, each item a number >= 0 and < 1"),
    (types.Duration, ["3ep", "500st"], ["3", 3, "0ep", "1.5st"], "a duration above 0 such as 3ep"),
    (types.Interval, [0, "0", "500st"], [3, "x"], "0 or a duration such as 3ep"),
    (types.Warmup, [0, 0.3, "500st"], [1.5, "x"], "a ratio of the run from 0 to 1 or a duration"),
    (types.Weights, ["a"], [3, None], "a folder in Hugging Face layout"),
    (Literal["auto", "cpu"], ["cpu"], ["gpu", 1], "one of auto, cpu"),
    (list[str], [[], ["a"]], ["a", [1], {}], "a list, each item a text"),
    (dict[str, int], [{}, {"a": 1}], [{"a": "b"}, []], "a mapping, each value an integer"),
    (int | list[int], [1, [1]], [None, "a", ["a"]], "an integer or a list, each item an integer"),
]


@pytest.mark.parametrize(("annotation", "fits", "refused", "rule"), CASES, ids=[case[3] for case in CASES])
def test_a_type_takes_its_limits_and_nothing_beyond(annotation: Any, fits: list[Any], refused: list[Any], rule: str):
    assert [problem for value in fits if (problem := value_problem("k", annotation, value))] == []
    for value in refused:
        problem = value_problem("k", annotation, value)
        assert problem is not None and problem.startswith(f"k is {show(value)} but must be {rule}")


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (types.PositiveInt, 0, "k is 0 but must be an integer >= 1; set k to such a value"),
        (types.Duration, 500, "; write 500st (steps), 500ep (epochs) or 500ex (examples)"),
        (dict[str, int], "a:b", "quote the whole: 'k={a: b, c: d}'"),
        (list[str], [1, 2, 3, 4], 'quote what looks like a number: \'k=["1", "2", "3", "4"]\''),
        (str, 3, "quote it for the shell and for Hydra: 'k=\"3\"'"),
        (float, "1e-3", "write 1e-3 without quotes, or that of a variable as 'k=\"${oc.decode:${oc.env:NAME}}\"'"),
        (bool | None, "true", "${oc.decode:${oc.env:NAME}}"),
        (float, "fast", "must be a number; set k to such a value"),
        (Literal["mean", "max"], "maen", "one of mean, max; set k to such a value; nearest: mean"),
        (types.MethodNode | None, "rdrop", "a mapping such as {_target_: nlu.methods.rdrop.RDrop, alpha: 1} or null"),
    ],
)
def test_a_broken_rule_comes_with_its_remedy(annotation: Any, value: Any, said: str):
    assert said in (value_problem("k", annotation, value) or "")
