"""Resolution makes plain values, and collects what fails."""

from omegaconf import OmegaConf

from nlu.config.resolving import UNRESOLVED, resolve


def test_interpolations_become_values_and_containers_become_plain():
    plain, found = resolve(OmegaConf.create({"a": 1, "b": {"c": "${a}", "d": ["${b.c}"]}, "e": "${b}"}))
    assert plain == {"a": 1, "b": {"c": 1, "d": [1]}, "e": {"c": 1, "d": [1]}}
    assert type(plain["b"]["d"]) is list
    assert found == []


def test_every_interpolation_that_fails_is_named_with_its_full_key():
    plain, found = resolve(OmegaConf.create({"a": {"b": ["${x}"]}, "c": "${nope:1}"}))
    assert plain == {"a": {"b": [UNRESOLVED]}, "c": UNRESOLVED}
    assert [problem.split(" but ")[0] for problem in found] == ["a.b[0] is ${x}", "c is ${nope:1}"]
