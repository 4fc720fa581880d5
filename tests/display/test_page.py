"""The page of a search and its figures: they hold the measured values, for any texts."""

from pathlib import Path

import optuna
import pytest
from matplotlib import rcParams
from optuna.trial import create_trial

from nlu.search.figures import TITLES, draw_figures, write_search_page
from nlu.search.summary import read_summary
from nlu.search.trials import Summary, TrialRow
from tests.search.studies import study_of


def test_texts_that_hold_markup_stay_text(tmp_path: Path) -> None:
    error = "</td><!-- <script> a & b"
    failed = TrialRow(0, "failed", None, None, None, None, {"fields": error}, error)
    write_search_page(tmp_path / "index.html", Summary("<s>", "f1", True, [failed], ["fields"]), {}, "train 'a<b'")
    page = (tmp_path / "index.html").read_text()
    assert "<script" not in page and "<s>" not in page and "<!--" not in page
    assert page.count("&lt;/td&gt;&lt;!-- &lt;script&gt; a &amp; b") == 2 and "train &#x27;a&lt;b&#x27;" in page


def test_figures_show_the_values_of_the_trials_and_leave_the_style_of_others_alone() -> None:
    study = study_of("COMPLETE", 10)
    before = dict(rcParams)
    found = draw_figures(study, read_summary(study))
    assert list(found) == [name for name in TITLES if name != "front"]
    history = found["history"].axes[0]
    assert history.collections[0].get_offsets()[:, 1].tolist() == [trial.value for trial in study.get_trials()]
    assert history.get_ylabel() == "value"
    curves = found["intermediate"].axes[0].lines
    assert [line.get_ydata()[-1] for line in curves] == [trial.value for trial in study.get_trials()]
    assert dict(rcParams) == before


def test_letters_stay_readable_and_few_trials_have_no_importances(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    ranges = {f"key_{number}": optuna.distributions.FloatDistribution(0, 1) for number in range(9)}
    for number in range(9):
        values = dict.fromkeys(ranges, number / 9)
        study.add_trial(create_trial(value=number / 9, params=values, distributions=ranges))
    summary = read_summary(study)
    figures = draw_figures(study, summary)
    assert "importances" not in figures and "slices" in figures
    write_search_page(tmp_path / "index.html", summary, figures, None)
    page = (tmp_path / "index.html").read_text()
    # A point of a letter is a pixel: the page is at least as wide as the figure in points.
    width = int(page.partition('id="slices"')[2].partition("min-width: ")[2].partition("px")[0])
    assert width == round(figures["slices"].get_figwidth() * 72) > 1240


def test_a_figure_that_cannot_be_drawn_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*unused: object, **named: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(optuna.visualization.matplotlib, "plot_slice", fails)
    study = study_of("COMPLETE", 10)
    assert {"slices", "front"} == TITLES.keys() - draw_figures(study, read_summary(study)).keys()
