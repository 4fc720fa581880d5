"""The values of keys whose type Hydra checks: ours says key, value, rule and remedy, for all keys of a search."""

import pytest
from hydra.conf import HydraConf
from hydra_plugins.hyperband_sweeper.hyperband_sweeper import HyperbandSweeperConf
from omegaconf import OmegaConf

from nlu.config.checks.typed import type_problem


@pytest.fixture(scope="module")
def config():
    found = OmegaConf.create({"hydra": OmegaConf.structured(HydraConf), "seed": 1})
    found.hydra.sweeper = OmegaConf.structured(HyperbandSweeperConf)
    return found


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("direction=[minimize]", "is ['minimize'] but must be a text or null; write hydra.sweeper.direction=minimize"),
        ("n_trials=[3]", "is [3] but must be an integer; write hydra.sweeper.n_trials=3"),
        # Without brackets it would not fit either.
        ("n_trials=[2.5]", "is [2.5] but must be an integer; set hydra.sweeper.n_trials to such a value"),
        ("n_trials=2.5", "is 2.5 but must be an integer; set hydra.sweeper.n_trials to such a value"),
        ("n_trials=null", "is null but must be an integer; set hydra.sweeper.n_trials to such a value"),
        ("max_hours=soon", 'is "soon" but must be a number or null; set hydra.sweeper.max_hours to such a value'),
        ("use_defaults=maybe", 'is "maybe" but must be true or false; set hydra.sweeper.use_defaults to such a value'),
        ("objectives=latency_ms",
         "is \"latency_ms\" but must be a list or null; write 'hydra.sweeper.objectives=[latency_ms]'"),
        ("warm_start='a b'", "is \"a b\" but must be a list or null; write 'hydra.sweeper.warm_start=[a b]'"),
        ("params=[1]",
         "is [1] but must be a mapping of keys to values or null; set hydra.sweeper.params to such a value"),
        ("storage={a: 1}", "is {'a': 1} but must be a text or null; set hydra.sweeper.storage to such a value"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_names_value_rule_and_remedy(config, override, said):
    key = f"hydra.sweeper.{override.partition('=')[0]}"
    assert type_problem(f"hydra.sweeper.{override}", config) == f"{key} {said}"
