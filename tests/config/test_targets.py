"""A node becomes the object that its target describes, and nothing outside the trusted packages is imported."""

import sys

import pytest

from nlu.config.errors import UserError
from nlu.config.targets import build, trust

trust({"trusted_packages": ["store"]})


def test_a_target_is_called_with_the_runtime_arguments_and_the_keys_of_its_node():
    part = build({"_target_": "store.parts.Part", "size": 3}, "a", "b")
    assert (part.given, part.size) == (("a", "b"), 3)


def test_a_node_within_a_node_is_built_first_and_only_from_its_own_keys():
    inner = {"_target_": "store.parts.Part", "size": 1}
    part = build({"_target_": "store.parts.Part", "size": inner, "tags": [1]}, "a")
    assert part.given == ("a",) and type(part.size) is type(part)
    assert (part.size.given, part.size.size, part.size.tags) == ((), 1, ())
    with pytest.raises(UserError, match=r"trusted_packages=\[antigravity\]"):
        build({"_target_": "store.parts.Part", "size": {"_target_": "antigravity.Part"}})


def test_a_package_that_is_not_trusted_is_not_even_imported():
    with pytest.raises(UserError, match=r"trusted_packages=\[antigravity\]"):
        build({"_target_": "antigravity.Part"})
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("store.parts.Bit", "store.parts has no Bit"),
        ("store.bits.Bit", "store has no bits; "),
        ("store.parts.Part.mro", "store.parts has no Part.mro"),
        ("store.broken.Part", "needs the package a_package_that_is_missing"),
        (None, "must name a class"),
    ],
)
def test_a_target_that_cannot_be_imported_says_what_is_missing(target: str | None, expected: str):
    with pytest.raises(UserError, match=expected):
        build({"_target_": target})
