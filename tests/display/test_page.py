"""The page of a search and its figures: they hold the measured values, for any texts."""

from pathlib import Path

import optuna
import pytest
from matplotlib import rcParams
from optuna.trial import create_trial

from nlu.search.figures import TITLES, draw_figures, write_search_page
from nlu.search.goals import GOALS, Constraint, Goals
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


@pytest.mark.parametrize("others", [["latency_ms"], ["latency_ms", "size_mb"]])
def test_the_front_has_the_trials_that_keep_the_constraints(others: list[str]) -> None:
    study = optuna.create_study(directions=["maximize", *("minimize" for _ in others)])
    study.set_user_attr(GOALS, Goals(dict.fromkeys(others, False), [Constraint("latency_ms", "<=", 10)]).to_json())
    for value, other in ((0.9, 8.0), (0.8, 4.0), (0.7, 5.0), (0.95, 20.0)):
        broken = {"constraints:latency_ms<=10": other / 10 - 1}
        study.add_trial(create_trial(values=[value, *(other for _ in others)], system_attrs=broken))
    (axes,) = draw_figures(study, read_summary(study))["front"].axes
    assert axes.get_xlabel() == "value" and axes.get_ylabel() == "latency_ms"
    if len(others) == 1:
        points = {label.get_label(): sorted(label.get_offsets().tolist()) for label in axes.collections}
        assert points["Feasible Trial"] == [[0.7, 5.0]] and points["Best Trial"] == [[0.8, 4.0], [0.9, 8.0]]


def test_a_figure_that_cannot_be_drawn_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*unused: object, **named: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(optuna.visualization.matplotlib, "plot_slice", fails)
    study = study_of("COMPLETE", 10)
    assert {"slices", "front"} == TITLES.keys() - draw_figures(study, read_summary(study)).keys()
