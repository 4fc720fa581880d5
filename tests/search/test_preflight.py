"""Before the first trial: the direction, and every combination of groups with both ends of every interval."""

import pytest

from nlu.config.errors import UserError
from nlu.search import preflight
from tests.search.composed import config, read_space


def test_the_direction_is_the_metrics():
    assert preflight.direction_of([config()], None) == "maximize"
    assert preflight.direction_of([config(major_metric="loss")], "minimize") == "minimize"
    with pytest.raises(UserError, match="loss is better when it is lower"):
        preflight.direction_of([config(major_metric="loss")], "maximize")
    with pytest.raises(UserError, match="accuracy and loss"):
        preflight.direction_of([config(), config(major_metric="loss")], None)


def test_every_choice_of_a_group_meets_every_other_and_every_end_is_tried():
    space = read_space(
        {"g": "choice(a,b)", "h": "choice(c,d)", "x": "interval(1,2)"}, {"g=a": {"y": "choice(5,6,7)"}}, []
    )
    tried = preflight.combinations(space, lambda key: key in ("g", "h"))
    assert len(tried) == 4
    probes = list(preflight.probes(space, {"g": "a", "h": "c"}, lambda key: None))
    assert len(probes) == 3
    assert {override for probe in probes for override in probe} >= {"x=1.0", "x=2.0", "y=5", "y=6", "y=7"}
    assert not any("y=" in override for override in list(preflight.probes(space, {"g": "b"}, lambda key: None))[0])


def test_each_choice_is_tried_once_if_combinations_are_too_many():
    space = read_space(dict.fromkeys("pqrs", "choice(a,b,c,d,e,f)"), None, [])
    tried = preflight.combinations(space, lambda key: True)
    assert len(tried) == 24
    assert {(name, row[name]) for row in tried for name in row} == {
        (name, choice) for name in "pqrs" for choice in "abcdef"
    }
