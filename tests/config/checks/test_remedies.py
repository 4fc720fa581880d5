"""What is written wrongly is answered with what to write instead."""

import pytest

from nlu.config.checks.values import value_problem


@pytest.mark.parametrize(("kind", "text"), [(float, "0.001"), (int, "3"), (bool, "true"), (float | None, "1e-3")])
def test_a_text_that_looks_like_a_number_may_come_from_the_environment(kind: type, text: str) -> None:
    found = value_problem("optimizer.lr", kind, text)
    assert found is not None and found.endswith(
        f"; write {text} without quotes, or that of a variable as 'optimizer.lr=\"${{oc.decode:${{oc.env:NAME}}}}\"'"
    )


def test_another_text_is_no_number() -> None:
    for text in ("fast", "", "3ep", "null"):
        found = value_problem("optimizer.lr", float, text)
        assert found is not None and "oc.decode" not in found
