"""Values are accepted or refused by the annotation alone."""

import ast
import math
from typing import Any

import pytest

from nlu.config.checks.values import check_value, show


def check(annotation: str, value: Any) -> str | None:
    return check_value(ast.parse(annotation, mode="eval").body, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("int", 3),
        ("float", 3),
        ("float", 0.5),
        ("bool", False),
        ("str", ""),
        ("int | None", None),
        ("Optional[int]", None),
        ("Union[int, str]", "a"),
        ("'int | str'", 1),
        ("PositiveInt", 1),
        ("types.PositiveInt", 1),
        ("Probability", 0),
        ("Fraction", 1.0),
        ("Duration", "0.5ep"),
        ("Interval", 0),
        ("Interval", "500st"),
        ("Warmup", 0.1),
        ("Warmup", "1ep"),
        ("list[int]", []),
        ("list[PositiveInt] | None", [1, 2]),
        ("tuple[int, str]", [1, "a"]),
        ("tuple[int, ...]", [1, 2, 3]),
        ("dict[str, float]", {"a": 1}),
        ("list", ["a", 1]),
        ("Literal['auto', 1]", 1),
        ("Any", object()),
        ("my.Head", {"anything": 1}),
        ("Range", "the name of a class that constrains nothing"),
    ],
)
def test_a_fitting_value_is_accepted(annotation: str, value: Any):
    assert check(annotation, value) is None


@pytest.mark.parametrize(
    ("annotation", "value", "rule"),
    [
        ("int", True, "must be an integer"),
        ("int", "3", "must be an integer"),
        ("int", 3.0, "must be an integer"),
        ("float", "0.1", "must be a number"),
        ("float", True, "must be a number"),
        ("float", math.nan, "must be a finite number"),
        ("bool", 1, "must be true or false"),
        ("str", 1, "must be a text"),
        ("PositiveInt", 0, "must be an integer >= 1"),
        ("OddPositiveInt", 4, "must be an odd integer >= 1"),
        ("list[OddPositiveInt]", [3, 4], "must be a list of which item 1 is an odd integer >= 1, not 4"),
        ("PositiveInt | None", -1, "must be an integer >= 1 or null"),
        ("PositiveFloat", 0, "must be a number > 0"),
        ("Probability", 1, "must be a number >= 0 and < 1"),
        ("Fraction", 1.1, "must be a number >= 0 and <= 1"),
        ("Literal['auto', 'cpu']", "gpu", "must be one of auto, cpu"),
        ("Literal[1]", True, "must be one of 1"),
        ("list[PositiveInt]", [1, 0], "must be a list of which item 1 is an integer >= 1, not 0"),
        ("list[str]", "a", "must be a list"),
        ("tuple[int, int]", [1], "must be a list of 2 items"),
        ("dict[str, int]", {"a": "b"}, 'must be a mapping of which the value of a is an integer, not "b"'),
        ("int | list[int]", None, "must be an integer or a list"),
        ("int", None, "must be an integer"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_rule_in_words(annotation: str, value: Any, rule: str):
    assert check(annotation, value) == rule


@pytest.mark.parametrize("annotation", ["Duration", "Interval", "Warmup", "Duration | None"])
def test_a_number_without_its_unit_is_refused_with_every_unit_it_could_have(annotation: str):
    rule = check(annotation, 500)
    assert rule is not None
    assert rule.endswith("; write 500st (steps), 500ep (epochs) or 500ex (examples)")


def test_values_are_shown_as_in_yaml_and_shortened():
    assert [show(value) for value in (None, True, "a", 1.5)] == ["null", "true", '"a"', "1.5"]
    assert len(show("x" * 500)) == 80
