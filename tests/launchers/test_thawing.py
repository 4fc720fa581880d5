"""A search by freeze_thaw as a user sees it: its lines, its table."""

import csv
import re
from pathlib import Path

import pytest

from tests.launchers.searches import search

OWN = (
    "lr=interval(0.001,1)", "hydra.sweeper.pruner=freeze_thaw", "hydra.sweeper.n_trials=5",
    "hydra.sweeper.min_resource=100ex", "hydra.sweeper.max_resource=400ex", "hydra.sweeper.max_examples=1200ex",
)  # fmt: skip


@pytest.fixture(scope="module")
def thawed(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a search, and what it said."""
    folder = tmp_path_factory.mktemp("thawing") / "s"
    return folder, search(folder, *OWN, "step_s=0.05")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as table:
        return list(csv.DictReader(table, delimiter="\t"))


def test_the_header_names_what_draws_the_trials(thawed):
    header = next(line for line in thawed[1].splitlines() if line.startswith("search s: "))
    assert header == f"search s: 5 trials, 1 at a time, freeze_thaw, maximize ({thawed[0]})"
    warning = "warning: hydra/sweeper/sampler is random, but freeze_thaw draws the trials itself; leave it out"
    assert warning in thawed[1].splitlines()


def test_each_decision_is_a_line_with_its_reason(thawed):
    folder, said = thawed
    decided = [(row["trial"], row["what"]) for row in rows(folder / "summary" / "decisions.tsv")]
    words = {"started": "begun", "paused": "paused"}
    shown = []
    for number, word, rest in re.findall(r"^trial (\d+) (started|paused|continues): (.*)$", said, re.MULTILINE):
        what = words.get(word) or ("thawed" if rest.startswith("lr=") else "continued")
        shown.append((number, what))
        assert what == "begun" or "; " in rest
    assert shown == decided and {what for _, what in shown} == {"begun", "paused", "thawed", "continued"}


def test_the_table_has_folder_and_time_of_paused_trials(thawed):
    folder, _ = thawed
    found = rows(folder / "summary" / "trials.tsv")
    paused = [row for row in found if row["state"] == "paused"]
    assert paused and [row["folder"] for row in found] == [str(number) for number in range(5)]
    for row in found:
        assert float(row["wall_s"]) >= 0.05 * int(row["examples"]) / 100
