"""Figures of a search by Optuna, as the docs draw them, and those of the page, which show paused trials too."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from matplotlib import pyplot, rc_context

from nlu.search.figures import draw_figures
from nlu.search.summary import read_summary
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
    "asha": (("hydra.sweeper.pruner=asha", *HALVING), {"COMPLETE", "WAITING"}),
    "two objectives": (("hydra.sweeper.pruner=hyperband", *HALVING, *TWO), {"COMPLETE", "PRUNED"}),
}


@pytest.fixture(autouse=True)
def own_style() -> Iterator[None]:
    """Optuna changes the style of all later figures, also of those of other tests."""
    with rc_context():
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_the_docs_and_the_page_draw_figures_of_a_search(kind: str, tmp_path: Path) -> None:
    overrides, expected = KINDS[kind]
    search(tmp_path / "s", "lr=interval(0.01,1)", "kind=choice(a,b)", *overrides)
    assert set(states(tmp_path / "s")) == expected
    pyplot.switch_backend("agg")
    found = study(tmp_path / "s")
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
