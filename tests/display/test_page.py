"""The page of a search: it holds the measured values, for any texts."""

import json
import re
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from nlu.display.decisions import Insight
from nlu.display.search import draw_figures, write_search_page
from nlu.display.trials import SearchedKey, Summary, TrialRow


def trial(number: int, state: str, value: float | None, lr: float, steps: list[tuple[int, float]]) -> TrialRow:
    return TrialRow(number, state, value, None, 8 * number, 1.5, {"lr": lr}, steps, None, "")


@pytest.fixture
def summary() -> Summary:
    trials = [
        trial(0, "complete", 0.5, 1e-4, [(8, 0.25), (16, 0.5)]),
        trial(1, "pruned", 0.125, 1e-2, [(8, 0.125)]),
        trial(2, "complete", 0.75, 1e-3, [(8, 0.5), (16, 0.75), (24, 0.625)]),
        trial(3, "failed", None, 1e-3, []),
        trial(4, "complete", 0.625, 2e-3, [(8, 0.625)]),
    ]
    return Summary("study", "f1", True, trials, [SearchedKey("lr", "log", 1e-4, 1e-2)])


def by_label(axes: Axes) -> dict[str, list[tuple[list[float], list[float]]]]:
    found: dict[str, list[tuple[list[float], list[float]]]] = {}
    for line in axes.lines:
        found.setdefault(str(line.get_gid()), []).append((list(line.get_xdata()), list(line.get_ydata())))
    return found


def test_texts_that_end_a_script_or_begin_a_comment_stay_data(tmp_path: Path) -> None:
    error = "</script><!-- <script> a & b"
    failed = TrialRow(0, "failed", None, None, None, None, {"fields": error}, [], None, error)
    write_search_page(tmp_path / "index.html", Summary("s", "f1", True, [failed], []), {}, Insight(), None)
    page = (tmp_path / "index.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert "<!--" not in data
    (read,) = json.loads(data)["trials"]
    assert read["error"] == error and read["params"]["fields"] == error


def test_the_history_has_each_trial_at_its_value_and_the_best_so_far(summary: Summary) -> None:
    (axes,) = draw_figures(summary, Insight())["history"].axes
    lines = by_label(axes)
    assert [lines[f"trial-{number}"] for number in (0, 1, 2, 4)] == [
        [([0], [0.5])], [([1], [0.125])], [([2], [0.75])], [([4], [0.625])]
    ]  # fmt: skip
    assert lines["trial-3"][0][0] == [3], "a failed trial stands at its number, at the foot"
    (steps,) = [line for line in axes.lines if line.get_label() == "best so far"]
    assert list(steps.get_xdata()) == [0, 2, 4, 4] and list(steps.get_ydata()) == [0.5, 0.75, 0.75, 0.75]
    assert "0.75 (trial 2)" in [text.get_text() for text in axes.texts]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trial", "f1")


def test_parameters_are_drawn_at_their_values_on_their_axes(summary: Summary) -> None:
    (axes,) = draw_figures(summary, Insight())["parallel"].axes
    lines = by_label(axes)
    places = {0: (0.0, 0.6), 1: (1.0, 0.0), 2: (0.5, 1.0), 4: (0.6505149978, 0.8)}
    for number, (lr, value) in places.items():
        x, y = lines[f"trial-{number}"][-1]
        assert x == [0, 1] and y == pytest.approx([lr, value]), "lr from 1e-4 to 1e-2, f1 from 0.125 to 0.75"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["lr", "f1"]
