"""The annotation decides whether a value is accepted."""

import ast
import math
from typing import Any

import pytest

from nlu.config.checks.values import broken_rule, check_value, show


def check(annotation: str, value: Any) -> str | None:
    return check_value(ast.parse(annotation, mode="eval").body, value)


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


def test_a_misspelled_word_is_refused_with_the_nearest_one():
    annotation = ast.parse("Literal['gradients', 'updates']", mode="eval").body
    assert broken_rule("inspect", annotation, "gradient") == (
        'inspect is "gradient" but must be one of gradients, updates; set inspect to such a value; nearest: gradients'
    )
    assert broken_rule("inspect", annotation, "loss") == (
        'inspect is "loss" but must be one of gradients, updates; set inspect to such a value'
    )


AT_THE_LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "PositiveInt": ([1, 2, 10**12], [0, -1, 1.0, True]),
    "OddPositiveInt": ([1, 3, 5], [0, 2, 4, -1]),
    "FoldCount": ([2, 3], [1, 0]),
    "RowLength": ([8, 9], [7, 0]),
    "NonNegativeInt": ([0, 1], [-1, 0.5]),
    "PositiveFloat": ([1e-300, 1, 2.5], [0, 0.0, -1e-300, math.inf]),
    "NonNegativeFloat": ([0, 0.0, 3], [-1e-9, math.nan]),
    "Port": ([0, 1, 65535], [-1, 65536]),
    "Probability": ([0, 0.5, 0.999999], [-0.001, 1, 1.0]),
    "Fraction": ([0, 0.5, 1, 1.0], [-0.001, 1.001]),
    "Path": (["a"], [1, None]),
    "list": ([[], (1,)], ["a", {}]),
    "dict[str, PositiveInt]": ([{}, {"a": 1}], [{"a": 0}, []]),
    "tuple[PositiveInt, ...]": ([[], [1, 2, 3]], [[1, 0]]),
    "Tuple[PositiveInt, str]": ([[1, "a"]], [[1], [1, "a", "a"], [0, "a"], ["a", 1]]),
    "Annotated[PositiveInt, 'words']": ([1], [0]),
    "Optional[PositiveInt]": ([None, 1], [0]),
    "Weights": (["a"], [3, None]),
}
"""what a type takes, and what it does not"""


@pytest.mark.parametrize("annotation", AT_THE_LIMITS)
def test_a_type_takes_its_limits_and_nothing_beyond(annotation: str) -> None:
    fits, refused = AT_THE_LIMITS[annotation]
    assert [value for value in fits if check(annotation, value) is not None] == []
    assert [value for value in refused if check(annotation, value) is None] == []


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        ("PositiveInt", 0, "k is 0 but must be an integer >= 1; set k to such a value"),
        ("Interval", 3, "k is 3 but must be "),
        ("dict[str, int]", "a:b", "quote the whole: 'k={a: b, c: d}'"),
        ("dict[str, int]", "ab", 'k is "ab" but must be a mapping of keys to values; set k to such a value'),
        ("list[str]", [1, 2, 3, 4], 'quote what looks like a number: \'k=["1", "2", "3", "4"]\''),
        ("list[str]", [1, 2, 3, 4, 5], '\'k=["1", "2", "3", "4", ...]\''),
        ("list[str]", [True], "not true; set k to such a value"),
    ],
)
def test_a_broken_rule_comes_with_its_remedy(annotation: str, value: Any, said: str) -> None:
    assert said in (broken_rule("k", ast.parse(annotation, mode="eval").body, value) or "")


@pytest.mark.parametrize("value", ["rdrop", {"alpha": 1}])
def test_a_node_within_a_node_says_what_it_looks_like(value: Any):
    problem = broken_rule("method.of", ast.parse("MethodNode | None", mode="eval").body, value)
    assert problem == (
        f"method.of is {show(value)} but must be a mapping such as {{_target_: nlu.methods.rdrop.RDrop, alpha: 1}} or "
        "null; set method.of to such a value"
    )
