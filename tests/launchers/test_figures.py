"""Optuna draws all its figures of every kind of search, as it is stored; those of the page show paused trials too."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import optuna
import pytest
from matplotlib import pyplot, rc_context
from optuna.exceptions import ExperimentalWarning
from optuna.visualization import matplotlib as plots

from nlu.search.figures import draw_figures
from nlu.search.summary import read_summary
from tests.few import first
from tests.launchers.searches import REPOSITORY, search, states, study

PAGE = REPOSITORY / "docs" / "searches.md"
HALVING = (
    "hydra.sweeper.min_resource=100ex",
    "hydra.sweeper.max_resource=900ex",
    "hydra.sweeper.n_trials=8",
    "steps=9",
)
TWO = (
    "latency_ms=choice(2,8)", "hydra.sweeper.objectives=[latency_ms]", "hydra/sweeper/sampler=tpe",
    "hydra.sweeper.sampler.n_startup_trials=4",
)  # fmt: skip
KINDS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "hyperband": (("hydra.sweeper.pruner=hyperband", *HALVING), {"COMPLETE", "PRUNED"}),
    "asha": (("hydra.sweeper.pruner=asha", *HALVING), {"COMPLETE", "WAITING"}),
    "freeze_thaw": (("hydra.sweeper.pruner=freeze_thaw", *HALVING), {"COMPLETE", "WAITING"}),
    "failed": (("hydra.sweeper.pruner=hyperband", *HALVING, "fail_from=7"), {"COMPLETE", "PRUNED", "FAIL"}),
    "two objectives": (("hydra.sweeper.pruner=hyperband", *HALVING, *TWO), {"COMPLETE", "PRUNED"}),
}
OF_ONE_VALUE = (
    "plot_optimization_history", "plot_slice", "plot_param_importances", "plot_contour", "plot_parallel_coordinate",
    "plot_edf", "plot_rank",
)  # fmt: skip
OF_A_STUDY = ("plot_intermediate_values", "plot_timeline")
OF_ONE_OBJECTIVE = ("plot_terminator_improvement",)
OF_SEVERAL = ("plot_pareto_front", "plot_hypervolume_history")


@pytest.fixture(autouse=True)
def own_style() -> Iterator[None]:
    """Optuna changes the style of all later figures, also of those of other tests."""
    with rc_context():
        yield


def drawn(study: optuna.Study) -> dict[str, Any]:
    """Return what every plot of Optuna draws of a study."""
    several = len(study.directions) > 1
    target: dict[str, Any] = {"target": lambda trial: trial.values[0]} if several else {}
    found: dict[str, Any] = {name: getattr(plots, name)(study, **target) for name in OF_ONE_VALUE}
    for name in (*OF_A_STUDY, *(OF_SEVERAL[:1] if several else OF_ONE_OBJECTIVE)):
        found[name] = getattr(plots, name)(study)
    if several:
        found["plot_hypervolume_history"] = plots.plot_hypervolume_history(study, reference_point=[0.0, 10.0])
    return found


@pytest.mark.parametrize("kind", first(2, ["asha", "two objectives", "hyperband", "freeze_thaw", "failed"]))
def test_optuna_draws_every_figure_of_every_search(kind: str, tmp_path: Path) -> None:
    overrides, expected = KINDS[kind]
    search(tmp_path / "s", "lr=interval(0.01,1)", "kind=choice(a,b)", *overrides)
    assert set(states(tmp_path / "s")) == expected
    assert set(plots.__all__) - {"is_available"} == {*OF_ONE_VALUE, *OF_A_STUDY, *OF_ONE_OBJECTIVE, *OF_SEVERAL}
    pyplot.switch_backend("agg")
    found = study(tmp_path / "s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        axes = drawn(found)
    values = sorted(trial.values[0] for trial in found.get_trials() if trial.state.name == "COMPLETE")
    assert sorted(axes["plot_optimization_history"].collections[0].get_offsets()[:, 1]) == values
    assert len(axes["plot_timeline"].patches) == len(found.get_trials())
    pyplot.close("all")
    recipe = PAGE.read_text().partition("figures need a line:\n\n")[2].partition("\n\n`")[0]
    if kind != "two objectives":
        exec(dedent(recipe).replace("outputs/search", str(tmp_path / "s")).replace("contour.png", f"{tmp_path}/c.png"))
        assert (tmp_path / "c.png").is_file()
    # On the page, trials that wait have their reports too.
    ours = draw_figures(found, read_summary(found))
    reports = [sorted(trial.intermediate_values.items()) for trial in found.get_trials() if trial.intermediate_values]
    lines = [[(int(x), y) for x, y in line.get_xydata()] for line in ours["intermediate"].axes[0].lines]
    assert lines == reports and len(reports) >= 7
    assert ("front" in ours) == (kind == "two objectives")
