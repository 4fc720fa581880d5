"""The figures of a survey of files, read back before they become SVG."""

from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

from nlu.display import survey_page
from nlu.display.survey_page import draw_survey

SETS = {
    "train": {
        "labels": {"good": 6, "bad": 3, "odd": 1}, "character_classes": {"Latin": 0.75, "space": 0.2, "mark": 0.0001},
        "length_histogram": {"width": 2, "counts": [1, 5, 2]},
        "character_histogram": {"width": 10, "counts": [4, 4]},
        "cut": [{"max_len": 2, "rows": 0.875}, {"max_len": 4, "rows": 0.25}],
    },
    "dev": {
        "labels": {"bad": 1, "new": 3}, "character_classes": {"Latin": 0.5},
        "length_histogram": {"width": 1, "counts": [0, 2, 1, 1]},
        "character_histogram": {"width": 5, "counts": [4]},
        "cut": [{"max_len": 2, "rows": 0.5}, {"max_len": 4, "rows": 0.0}],
    },
}  # fmt: skip


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Axes]]:
    found: dict[str, Any] = {}

    def keep(name: str, figure: Any) -> str:
        found[name] = figure.axes[0]
        return ""

    monkeypatch.setattr(survey_page, "svg_of", keep)
    draw_survey({"sets": SETS, "unit": "tokens", "max_len": 4})
    return found  # type: ignore[return-value]


def test_bars_of_labels_are_shares_of_their_set_the_most_frequent_first(axes: dict[str, Axes]) -> None:
    labels = axes["labels"]
    assert [one.get_text() for one in labels.get_yticklabels()] == ["good", "bad", "new", "odd"]
    train, dev = labels.containers
    assert [bar.get_width() for bar in train] == [0.6, 0.3, 0, 0.1]
    assert [bar.get_width() for bar in dev] == [0, 0.25, 0.75, 0]
    middles = [[bar.get_y() + bar.get_height() / 2 for bar in bars] for bars in (train, dev)]
    assert middles == [pytest.approx([-0.2, 0.8, 1.8, 2.8]), pytest.approx([0.2, 1.2, 2.2, 3.2])]
    assert [text.get_text() for text in labels.texts][:4] == ["60.0%", "30.0%", "0.0%", "10.0%"]


def test_histograms_are_shares_of_rows_for_each_length(axes: dict[str, Axes]) -> None:
    lines = [patch for patch in axes["lengths"].patches if isinstance(patch, StepPatch) and not patch.get_fill()]
    assert [line.get_label() for line in lines] == ["train", "dev"]
    values, edges, _ = lines[0].get_data()
    assert list(values) == [1 / 16, 5 / 16, 2 / 16] and list(edges) == [0, 2, 4, 6]
    assert list(lines[1].get_data().values) == [0, 0.5, 0.25, 0.25]
    (mark,) = axes["lengths"].lines
    assert list(mark.get_xdata()) == [4, 4] and axes["lengths"].get_xlabel() == "tokens of a row"
    assert not axes["characters"].lines and axes["characters"].get_xlabel() == "characters of a row"


def test_cuts_and_classes_are_those_of_the_record(axes: dict[str, Axes]) -> None:
    train, dev, _ = axes["cuts"].lines
    assert (list(train.get_xdata()), list(train.get_ydata())) == ([2, 4], [0.875, 0.25])
    assert list(dev.get_ydata()) == [0.5, 0.0]
    assert [one.get_text() for one in axes["classes"].get_yticklabels()] == ["Latin", "space"], "rare ones are left out"
    assert [bar.get_width() for bar in axes["classes"].containers[0]] == [0.75, 0.2]
