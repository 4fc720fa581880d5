"""The rules about the inside of a model, on constructed numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nlu.runs.inside import findings, findings_of
from nlu.runs.records import INSPECT, INSPECT_COLUMNS, Cell, Table

Rows = list[dict[str, Cell]]


def rows(column: str, values: Mapping[str, Sequence[float]], kind: str = "module") -> Rows:
    """Return rows with the values of each name, one for each step from 1."""
    return [
        {"step": step, "examples": 8 * step, "kind": kind, "name": name, column: value}
        for name, series in values.items()
        for step, value in enumerate(series, start=1)
    ]


def says(*tables: Rows) -> list[str]:
    return [finding.says for table in tables for finding in findings(table)]


def test_a_module_whose_gradient_grows_a_hundredfold_and_dominates_explodes() -> None:
    calm = [1.0] * 6
    (said,) = says(rows("gradient", {"a": calm, "b": [1, 1, 1, 1, 101, 1], "c": [2, 2, 2, 2, 50, 2]}))
    assert said == (
        "b explodes: its gradient norm is 101 at step 5, 101 times its median, and makes up most of the gradient"
    )
    assert says(rows("gradient", {"a": calm, "b": [1, 1, 1, 1, 99, 1]})) == []
    # All grow alike, so none of the three is most of the gradient.
    assert says(rows("gradient", {name: [1, 1, 1, 1, 500, 1] for name in "abc"})) == []
    assert says(rows("gradient", {"a": [1, 500, 1, 1]})) == [], "four rows are too few"


def test_a_module_with_almost_no_gradient_vanishes() -> None:
    (said,) = says(rows("gradient", {"a": [3.0] * 5, "b": [2e-8] * 5, "c": [1e-9] * 5, "d": [0.0] * 5}))
    assert said == "the gradient of d vanishes: its norm is 0 of that of the whole gradient (likewise c, b)"
    assert says(rows("gradient", {"a": [1.0] * 5, "b": [2e-8] * 5})) == []


@pytest.mark.parametrize(
    ("column", "high", "low", "begins"),
    [
        ("dead", 0.51, 0.5, "51% of the units that x reads are dead, near 0 for all tokens of a step"),
        ("peak", 0.96, 0.95, "the attention of x is saturated: the largest weight of a query is 0.960 on average"),
    ],
)
def test_dead_units_and_saturation_count_at_the_end(column: str, high: float, low: float, begins: str) -> None:
    early = [high] * 4 + [low] * 2
    assert says(rows(column, {"x": [low] * 4 + [high] * 2, "y": early})) == [begins]
    assert says(rows(column, {"x": [low] * 9})) == []


def test_updates_of_unusual_size_are_named_with_the_worst_first() -> None:
    values = {name: [ratio] * 5 for name, ratio in (("a", 0.2), ("b", 0.5), ("c", 1e-7), ("d", 1e-3), ("e", 0.0))}
    assert says(rows("update", values)) == [
        "a step changes the weights of b by 50% of their norm (likewise a)",
        "a step changes the weights of e by only 0 of their norm (likewise c)",
    ]


def test_parameters_and_numbers_that_are_not_finite_do_not_count() -> None:
    spike = [1, 1, 1, 1, 900, 1]
    assert says(rows("gradient", {"a.weight": spike}, "parameter")) == []
    assert says(rows("gradient", {"a": [1, 1, 1, 1, float("inf"), float("nan")]})) == []


def test_at_most_three_others_are_listed() -> None:
    (said,) = says(rows("dead", {name: [0.9] for name in "abcdef"}))
    assert said.endswith("(likewise b, c, d and 2 more)")


def test_findings_of_a_run_are_those_of_its_table(tmp_path: Path) -> None:
    assert findings_of(tmp_path) == []
    written = Table(tmp_path / INSPECT, INSPECT_COLUMNS)
    for row in rows("dead", {"layer.0": [0.75]}):
        written.append(**row)
    (finding,) = findings_of(tmp_path)
    assert finding.sentence.startswith("75% of the units that layer.0 reads") and "; lower" in finding.sentence
