"""What all figures have in common: texts stand as they are written, fonts, and what happens when drawing fails."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from nlu.display import canvas, score_figures
from nlu.display.canvas import drawn, new_figure, save_drawn
from nlu.display.score_figures import KeptScores, draw_scores

HOSTILE = ["$x_{$", "costs $5 or $_6", r"\frac{$a$", "_hidden $^$"]
"""labels with which TeX-like markup does not end, or would swallow letters"""


def as_drawn(figure: Figure) -> set[str]:
    """The texts of a figure that are visible once it is drawn."""
    drawn(figure, "png")
    return {text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()}


def scored(names: list[str]) -> SimpleNamespace:
    count = len(names)
    matrix = np.arange(count * count).reshape(count, count).tolist()
    bins = [{"probability": 0.6, "right": 0.5, "rows": 3}, {"probability": 0.9, "right": 1.0, "rows": 7}]
    return SimpleNamespace(rows=10, metrics={"ece": 0.1}, by_label=[], intervals={}, names=names, confusion=matrix,
                           calibration=bins)  # fmt: skip


def test_labels_of_classes_are_drawn_as_they_are_written(tmp_path: Path) -> None:
    written = draw_scores(tmp_path, {"dev $_{": scored(HOSTILE)})
    assert sorted(path.name for path in written) == ["calibration_dev $_{.png", "confusion_dev $_{.png"]
    kept = KeptScores("dev", HOSTILE, [{"label": name, "f1": 0.5} for name in HOSTILE], scored(HOSTILE).confusion, [],
                      0.1, [(5.0, 0.5, 4)])  # fmt: skip
    for figure in (
        score_figures.draw_confusion_of("run $_{", kept),
        *score_figures.draw_by_class({"run $_{": kept}).values(),
    ):
        found = as_drawn(figure)
        assert all(any(text.startswith(name) for text in found) for name in HOSTILE)


def test_a_figure_that_cannot_be_drawn_is_reported_and_the_others_are_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Figure:
        raise ValueError("no such colour")

    with caplog.at_level("WARNING"):
        assert save_drawn(tmp_path / "broken.png", broken) == []
    (record,) = caplog.records
    assert "broken.png is left out" in record.getMessage() and record.exc_info is not None
    assert save_drawn(tmp_path / "nothing.png", lambda: None) == []
    assert save_drawn(tmp_path / "whole.png", lambda: new_figure()[0]) == [tmp_path / "whole.png"]
    with pytest.raises(OSError):
        (tmp_path / "file").touch()
        save_drawn(tmp_path / "file" / "whole.png", lambda: new_figure()[0])


def test_letters_that_no_font_has_are_named_once_and_an_svg_has_them_as_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canvas, "families", lambda: ["DejaVu Sans"])
    monkeypatch.setattr(canvas, "WARNED", [])
    figure, axes = new_figure()
    axes.set_title("财经")
    with caplog.at_level("WARNING"), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert "财经" in drawn(figure, "svg").decode()
        assert not caplog.records
        assert drawn(figure, "png") == drawn(figure, "png")
        assert drawn(figure, "pdf").startswith(b"%PDF")
    (record,) = caplog.records
    assert "no font on this machine has 经财" in record.getMessage()
