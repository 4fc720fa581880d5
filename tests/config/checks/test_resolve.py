"""Resolution collects what fails instead of stopping at the first."""

from omegaconf import OmegaConf

from nlu.config.checks.resolve import resolve
from nlu.config.unset import UNRESOLVED


def test_interpolations_become_values_and_containers_become_plain():
    plain, found = resolve(OmegaConf.create({"a": 1, "b": {"c": "${a}", "d": ["${b.c}"]}, "e": "${b}"}))
    assert plain == {"a": 1, "b": {"c": 1, "d": [1]}, "e": {"c": 1, "d": [1]}}
    assert type(plain["b"]["d"]) is list
    assert found == []


def test_every_interpolation_that_fails_is_named_with_its_full_key():
    plain, found = resolve(OmegaConf.create({"a": {"b": ["${x}"]}, "c": "${nope:1}"}))
    assert plain == {"a": {"b": [UNRESOLVED]}, "c": UNRESOLVED}
    assert [problem.split(" but ")[0] for problem in found] == ["a.b[0] is ${x}", "c is ${nope:1}"]


def test_a_value_that_is_not_set_is_named_once_and_not_again_by_those_that_point_to_it():
    plain, found = resolve(OmegaConf.create({"a": "???", "b": "${a}"}))
    assert plain == {"a": "???", "b": UNRESOLVED}
    assert found == []
