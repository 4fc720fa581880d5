"""Pruners are named, and what they cannot do is refused."""

import pytest

from nlu.config.errors import UserError
from nlu.sweeps import pruning


def test_a_name_or_a_mapping():
    assert pruning.read("none") == ("none", {}) == pruning.read(None)
    assert pruning.read({"name": "median", "n_startup_trials": 2})[1]["n_startup_trials"] == 2
    assert pruning.read({"name": "median", "n_warmup_steps": "2ep"})[1]["n_warmup_steps"] == "2ep"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("medain", "nearest: median"),
        ({"name": "median", "n_startup_trails": 2}, "nearest: n_startup_trials"),
        ("threshold", "needs a bound"),
        ({"n_startup_trials": 3}, "names no pruner; add one of hyperband, .*name: median"),
        (
            {"name": "median", "n_startup_trials": "x"},
            'pruner.n_startup_trials is "x" but must be an integer >= 0;',
        ),
        ({"name": "median", "n_warmup_steps": "3"}, r"pruner.n_warmup_steps is .* write 3st \(steps\)"),
        ({"name": "median", "interval_steps": 0}, "pruner.interval_steps is 0 but must be an integer >= 1 or"),
        ({"name": "wilcoxon", "p_threshold": 7}, "pruner.p_threshold is 7 but must be a number >= 0 and <= 1"),
        ({"name": "threshold", "lower": 2, "upper": 1}, "pruner.lower is 2, more than upper, 1"),
        ({"name": "threshold", "lower": "low"}, 'pruner.lower is "low" but must be a number or null'),
    ],
)
def test_what_cannot_be_is_refused_with_its_key_and_the_nearest(written, said):
    with pytest.raises(UserError, match=said):
        pruning.read(written)
