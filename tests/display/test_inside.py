"""Heat maps of the inside of a model: their rows, columns, colours and names."""

from pathlib import Path

import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from nlu.display.inside import MAX_COLUMNS, MAX_ROWS, draw_inside, inside_figures
from nlu.runs.records import INSPECT, INSPECT_COLUMNS, Cell, Table

Row = dict[str, Cell]


def row(step: int, name: str, kind: str = "module", **values: Cell) -> Row:
    return {"step": step, "epoch": 0.0, "examples": 8 * step, "kind": kind, "name": name, **values}


def drawn(rows: list[Row], name: str) -> tuple[Figure, list[str], np.ndarray, QuadMesh]:
    """Return a figure, the names of its rows, the values, 0 where it is grey, and the mesh."""
    figure = inside_figures("run", rows)[name]()
    assert figure is not None
    axes = figure.axes[0]
    (mesh,) = (each for each in axes.collections if isinstance(each, QuadMesh))
    names = [label.get_text() for label in axes.get_yticklabels()]
    return figure, names, np.ma.filled(mesh.get_array(), 0.0), mesh


def test_rows_are_modules_in_their_order_and_columns_are_steps() -> None:
    rows = [row(step, name, gradient=value * step) for step in (1, 2) for name, value in (("b", 1.0), ("a", 100.0))]
    rows += [
        row(1, "b.weight", "parameter", gradient=7.0),
        row(2, "c", gradient=0.0),
        row(2, "d", gradient=float("inf")),
    ]
    figure, names, values, mesh = drawn(rows, "gradients")
    assert names == ["b", "a", "c", "d"]
    np.testing.assert_array_equal(values, [[1, 2], [100, 200], [0, 0], [0, 0]])
    assert isinstance(mesh.norm, LogNorm) and (mesh.norm.vmin, mesh.norm.vmax) == (1, 200)
    axes = figure.axes[0]
    # From the top to the bottom, from the first example to the last.
    assert axes.get_ylim() == (4, 0) and axes.get_xlim() == (0, 16)


def test_shares_have_a_scale_from_0_to_1_and_0_is_a_value() -> None:
    rows = [row(1, "a", dead=0.0), row(1, "b", dead=0.25), row(2, "a", dead=0.5)]
    _, names, values, mesh = drawn(rows, "dead")
    assert names == ["a", "b"] and (mesh.norm.vmin, mesh.norm.vmax) == (0, 1)
    np.testing.assert_array_equal(values, [[0, 0.5], [0.25, 0]])


def test_a_column_without_values_has_no_figure() -> None:
    figures = inside_figures("run", [row(1, "a", gradient=1.0, dead=0.0)])
    assert {name for name, draw in figures.items() if draw() is not None} == {"gradients"}


def test_many_modules_are_joined_within_a_module_and_many_steps_with_neighbours() -> None:
    steps = MAX_COLUMNS + 50
    rows = [
        row(step, f"layer.{layer}.part.{part}", gradient=float(1 + part + (step == 3) * layer))
        for step in range(1, steps + 1)
        for layer in range(MAX_ROWS // 2)
        for part in range(3)
    ]
    rows = [each for each in rows if int(each["step"] or 0) in (1, 2, 3) or each["name"] == "layer.0.part.0"]
    rows += [row(step, "head", gradient=0.5) for step in (1, 2)]
    figure, names, values, _ = drawn(rows, "gradients")
    assert names == [*(f"layer.{layer}.part.*" for layer in range(MAX_ROWS // 2)), "head"]
    assert values.shape == (MAX_ROWS // 2 + 1, MAX_COLUMNS)
    # The first of 250 steps are joined by two: steps 1 and 2, then 3 and 4.
    np.testing.assert_array_equal(values[:3, :2], [[3, 3], [3, 4], [3, 5]])
    assert "shows the largest of its modules" in figure.axes[0].get_xlabel()


def test_figures_of_a_run_are_written_beside_the_others(tmp_path: Path) -> None:
    assert draw_inside(tmp_path) == []
    table = Table(tmp_path / INSPECT, INSPECT_COLUMNS)
    for name in ("word_embeddings", "layer.0"):
        table.append(**row(1, name, gradient=1.0, update=1e-3))
    table.append(**row(1, "layer 0", "attention", peak=0.5, entropy=0.5))
    names = [path.name for path in draw_inside(tmp_path)]
    assert names == ["inspect-gradients.png", "inspect-updates.png", "inspect-attention.png"]
    assert all((tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in names)
