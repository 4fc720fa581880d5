"""Searches with several objectives and with constraints: what they print, write, refuse, and do after a kill."""

import csv
import signal
import time
from pathlib import Path

import pytest
from optuna.visualization.matplotlib import plot_pareto_front

from nlu.search.goals import MEASURED
from tests.few import first
from tests.launchers.searches import search, start, study, trials

DRAWN = ("lr=choice(0.05,0.1)", "latency_ms=choice(2,4,8)", "parameters=choice(1000,5000)")
GOALS = ("hydra.sweeper.objectives=[latency_ms]", 'hydra.sweeper.constraints=["latency_ms<=5","parameters<=2e3"]')


def measured(folder: Path) -> list[dict[str, float]]:
    return [trial.user_attrs.get(MEASURED, {}) for trial in trials(folder)]


def expected_front(folder: Path) -> list[int]:
    """By the definition, from what the trials drew."""
    points = {
        trial.number: (trial.values[0], trial.user_attrs[MEASURED]["latency_ms"])
        for trial in trials(folder) if trial.params["latency_ms"] <= 4 and trial.params["parameters"] <= 2000
    }  # fmt: skip
    return [
        key
        for key, (value, latency) in points.items()
        if not any(v >= value and ms <= latency and (v, ms) != (value, latency) for v, ms in points.values())
    ]


@pytest.fixture(scope="module")
def of_grid(tmp_path_factory) -> tuple[Path, str]:
    """A search over a grid of 12 trials."""
    folder = tmp_path_factory.mktemp("grid") / "s"
    said = search(folder, *DRAWN, *GOALS, "hydra/sweeper/sampler=grid")
    return folder, said


def test_the_table_and_the_files_name_the_front_and_what_breaks_a_constraint(of_grid) -> None:
    folder, said = of_grid
    front = expected_front(folder)
    assert 1 <= len(front) < 4
    with (folder / "summary/trials.tsv").open() as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    assert [int(row["trial"]) for row in rows if row["front"] == "true"] == front
    slow = {t.number for t in trials(folder) if t.params["latency_ms"] > 5 or t.params["parameters"] > 2000}
    assert {int(row["trial"]) for row in rows if row["feasible"] == "false"} == slow
    assert "again: " not in said, "it is no nlu.train"
    page = (folder / "summary/index.html").read_text()
    assert '<section id="front"' in page and (folder / "summary/front.png").is_file()


def test_optuna_has_all_objectives_of_a_search_and_the_same_front(of_grid) -> None:
    folder, _ = of_grid
    found = study(folder)
    assert found.metric_names == ["value", "latency_ms"]
    assert [direction.name for direction in found.directions] == ["MAXIMIZE", "MINIMIZE"]
    for trial, quantities in zip(found.get_trials(), measured(folder), strict=True):
        assert trial.values == [trial.user_attrs["outcome"]["value"], quantities["latency_ms"]]
    assert sorted(trial.number for trial in found.best_trials) == expected_front(folder)
    plot_pareto_front(found)


@pytest.mark.parametrize("pruner", first(1, ["asha", "freeze_thaw", "hyperband"]))
def test_constraints_work_with_every_pruner_and_a_kill_leaves_what_was_measured(tmp_path, pruner) -> None:
    arguments = (
        "lr=interval(0.01,1)", "latency_ms=choice(2,8)", 'hydra.sweeper.constraints=["latency_ms<=5"]', "step_s=0.05",
        f"hydra.sweeper.pruner={pruner}", "hydra.sweeper.n_trials=10", "hydra/sweeper/sampler=tpe", "steps=9",
        "hydra.sweeper.min_resource=100ex", "hydra.sweeper.max_resource=900ex",
    )  # fmt: skip
    folder = tmp_path / "s"
    killed = start(folder, *arguments)
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s and not any(folder.glob("*/result.json")) and killed.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    assert killed.poll() is None, "killed amid the search"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = {number: each for number, each in enumerate(measured(folder)) if each}
    said = search(folder, *arguments)
    after = measured(folder)
    assert before and before.items() <= dict(enumerate(after)).items(), "measured once, and never again"
    known = [trial for trial in trials(folder) if MEASURED in trial.user_attrs]
    for trial in known:
        assert trial.constraints == {"latency_ms<=5": pytest.approx(trial.params["latency_ms"] / 5 - 1, abs=0.01)}
    complete = [trial for trial in known if trial.state.name == "COMPLETE" and trial.params["latency_ms"] == 2]
    best = max(complete, key=lambda trial: (trial.values[0], -trial.number))
    assert said.split("\n\n")[-2].splitlines()[1].split()[:2] == [str(best.number), "complete"]
