"""The table and the figure of nlu.prune, from the candidates."""

import numpy as np
import pytest

from nlu.display.heads import Candidate, candidates_figure, print_candidates


def candidates() -> list[Candidate]:
    values = ((0, 0.5, 40, 200.0), (2, 0.51, 36, 210.5), (4, 0.4875, 32, 1234.0))
    return [
        Candidate(
            removed, 8, value, 100 * (0.5 - value), 1000 * size, size / 10, rows, rows / 200, is_chosen=removed == 4
        )
        for removed, value, size, rows in values
    ]


def test_the_table_has_a_line_for_each_candidate_and_each_layer(capsys: pytest.CaptureFixture[str]) -> None:
    print_candidates(candidates(), "accuracy", [np.array([0.6, 0.8]), np.array([1.0])])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1:4] == [
        ["0%", "8", "of", "8", "0.5000", "0.00", "40,000", "4.0", "200", "1.00x"],
        ["25%", "6", "of", "8", "0.5100", "-1.00", "36,000", "3.6", "210", "1.05x"],
        ["50%", "4", "of", "8", "0.4875", "1.25", "32,000", "3.2", "1,234", "6.17x", "chosen"],
    ]
    assert lines[-2:] == [["0", "0.60", "0.80"], ["1", "1.00"]]


def test_the_figure_has_the_candidates_in_order_and_marks_the_chosen_one() -> None:
    figure = candidates_figure("outputs/smaller", [candidates()[2], *candidates()[:2]], "accuracy")
    (axes,) = figure.axes
    line, whole, chosen = axes.get_lines()
    np.testing.assert_array_equal(np.asarray(line.get_xydata()), [[0, 0.5], [0.25, 0.51], [0.5, 0.4875]])
    assert set(np.asarray(whole.get_ydata())) == {0.5}
    np.testing.assert_array_equal(np.asarray(chosen.get_xydata()), [[0.5, 0.4875]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("share of heads removed", "accuracy")
    legend = axes.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["all heads", "chosen"]
