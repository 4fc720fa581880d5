"""Within a command each configuration is composed once; resolution collects what fails."""

from unittest import mock

import hydra
import pytest
from hydra import initialize_config_search_path
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from nlu.config.resolving import UNRESOLVED, compose, composing_once, resolve
from nlu.config.choices import conf_dir
from nlu.config.entry.app import find_plugins


def test_a_configuration_is_composed_once_with_or_without_hydras_node():
    find_plugins()
    with (
        mock.patch("hydra.compose", wraps=hydra.compose) as composed,
        composing_once(),
        initialize_config_search_path([conf_dir().as_uri()]),
    ):
        whole, plain = compose("train", ["seed=2"], with_hydra=True), compose("train", ["seed=2"])
        assert "hydra" in whole and "hydra" not in plain and plain == hydra.compose("train", ["seed=2"])
        assert OmegaConf.is_struct(plain)
        for _ in range(2):
            with pytest.raises(ConfigCompositionException, match="sead"):
                compose("train", ["sead=2"])
    assert composed.call_count == 3


def test_interpolations_become_values_and_containers_become_plain():
    plain, found = resolve(OmegaConf.create({"a": 1, "b": {"c": "${a}", "d": ["${b.c}"]}, "e": "${b}"}))
    assert plain == {"a": 1, "b": {"c": 1, "d": [1]}, "e": {"c": 1, "d": [1]}}
    assert type(plain["b"]["d"]) is list
    assert found == []


def test_every_interpolation_that_fails_is_named_with_its_full_key():
    plain, found = resolve(OmegaConf.create({"a": {"b": ["${x}"]}, "c": "${nope:1}"}))
    assert plain == {"a": {"b": [UNRESOLVED]}, "c": UNRESOLVED}
    assert [problem.split(" but ")[0] for problem in found] == ["a.b[0] is ${x}", "c is ${nope:1}"]
