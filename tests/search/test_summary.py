"""What a sweep leaves for a reader, for trials in any state."""

import re
from pathlib import Path
from xml.etree.ElementTree import fromstring

import optuna
import pytest

from nlu.commands.report import main
from nlu.search.goals import best_trials
from nlu.search.summary import read_summary, write_summary
from nlu.search.trial_steps import PART_ENDS, PART_VALUES
from tests.launchers.searches import search
from tests.search.studies import study_of

MIXED = ("COMPLETE", "PRUNED", "COMPLETE", "PRUNED", "FAIL", "RUNNING")
FIGURES = {
    "history.png", "intermediate.png", "slices.png", "importances.png",
}  # fmt: skip


def mixed(number):
    return MIXED[number % len(MIXED)]


def figures(folder):
    return {path.name for path in (folder / "summary").glob("*.png")}


@pytest.mark.parametrize(
    ("states", "trials", "expected"),
    [(mixed, 12, FIGURES - {"importances.png"}), ("FAIL", 3, set()), ("PRUNED", 3, {"intermediate.png"})],
)
def test_a_summary_is_written_for_trials_in_any_state(tmp_path, capsys, states, trials, expected):
    assert write_summary(study_of(states, trials), tmp_path)
    assert figures(tmp_path) == expected
    rows = (tmp_path / "summary" / "trials.tsv").read_text().splitlines()
    assert len(rows) == trials + 1 and len({row.count("\t") for row in rows}) == 1
    assert (tmp_path / "summary" / "index.html").read_text().count("<tr>") == trials + 1
    said = capsys.readouterr().out
    assert said.splitlines()[-1].endswith("summary/index.html") and "again" not in said, "no folder here has a run"


def test_trials_are_printed_best_first_with_what_they_cost(tmp_path, capsys):
    study = study_of(mixed, 12)
    write_summary(study, tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    header = next(place for place, line in enumerate(lines) if line[:1] == ["trial"])
    assert lines[header][:5] == ["trial", "state", "value", "examples", "wall"]
    best = lines[header + 1]
    assert best[:5] == [str(study.best_trial.number), "complete", f"{study.best_value:.4f}", "4,000", "0:30"]
    assert [line[1] for line in lines[header + 1 : header + 13]] == sorted(
        (line[1] for line in lines[header + 1 : header + 13]),
        key=["complete", "pruned", "failed", "running"].index,
    )


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_trial_is_the_one_of_the_direction(maximize):
    study = study_of(mixed, 18, maximize=maximize)
    assert best_trials(study)[0].number == study.best_trial.number == read_summary(study).ranked[0].number


@pytest.mark.parametrize("maximize", [True, False])
def test_a_pruned_trial_has_the_best_value_that_it_reported(maximize):
    study = optuna.create_study(direction="maximize" if maximize else "minimize")
    reports = {160: 0.6, 320: 0.63, 480: 0.47}
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.PRUNED, intermediate_values=reports))
    (trial,) = read_summary(study).trials
    assert trial.value == (0.63 if maximize else 0.47)


def test_the_best_trial_is_repeated_from_its_folder_only_where_that_is_one_of_a_run(tmp_path, capsys):
    study, again = study_of("COMPLETE", 3), "the best trial again: python -m nlu.train --rerun "
    folder = tmp_path / str(study.best_trial.number)
    folder.mkdir()
    write_summary(study, tmp_path)
    assert again not in capsys.readouterr().out, "another program"
    (folder / "overrides").write_text("seed=1\n")
    (folder / "config.yaml").write_text("trainer: {max_duration: 3ep}\n")
    write_summary(study, tmp_path)
    assert f"{again}{folder}\n" in capsys.readouterr().out
    assert f"nlu.train --rerun {folder}" in (tmp_path / "summary" / "index.html").read_text()


@pytest.mark.parametrize("names", [["history.png", "index.html", "slices.png", "trials.tsv"], [""]])
def test_what_cannot_be_written_is_named_after_the_table_and_the_rest_is_there(tmp_path, capsys, names):
    study, summary = study_of(mixed, 12), tmp_path / "summary"
    for name in filter(None, names):
        # Names that no file can take.
        (summary / name / "x").mkdir(parents=True)
    if names == [""]:
        summary.touch()
    assert not write_summary(study, tmp_path)
    said = capsys.readouterr()
    assert f"12 trials: {sum(mixed(number) == 'COMPLETE' for number in range(12))} complete" in said.out
    assert said.err.startswith("nlu: error: ") and f"python -m nlu.report search {tmp_path}" in said.err
    assert {Path(line.split()[1]).name for line in said.err.splitlines() if " is not written: " in line} >= {
        *filter(None, names)
    }
    assert "Traceback" not in said.err
    left = {path.name for path in summary.glob("*.png") if path.is_file()}
    assert left == (set() if names == [""] else FIGURES - {"history.png", "slices.png", "importances.png"})


def test_a_search_without_its_summary_ends_with_status_1_and_so_does_its_report(tmp_path, capsys):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "summary").touch()
    said = search(folder, "lr=choice(0.1)", status=1)
    assert "1 trial: 1 complete" in said and "summary/trials.tsv is not written: " in said and "Traceback" not in said
    assert main(["search", str(folder)]) == 1 and "1 trial: 1 complete" in capsys.readouterr().out


def test_the_page_shows_the_figures_and_fetches_nothing(tmp_path, capsys):
    write_summary(study_of(mixed, 60), tmp_path)
    text = (tmp_path / "summary" / "index.html").read_text()
    figures = dict(re.findall(r'<section id="(\w+)"[^>]*>.*?(<svg .*?</svg>)', text, re.S))
    assert set(figures) == {name.removesuffix(".png") for name in FIGURES}
    assert "a <b>sweep" not in text and "&lt;/script&gt; &amp; a" in text
    for svg in figures.values():
        fromstring(svg.replace("xlink:", ""))
    fetching = r" (src|href|srcset|data|action)=|@import|url\((?!#)|fetch\(|https?://(?!www\.w3\.org/2000/svg)"
    assert not re.search(fetching, text)
    assert len(text.encode()) < 400_000


def test_the_table_has_the_mean_over_the_ended_folds_of_a_trial_that_goes_on():
    study = study_of("RUNNING", 2)
    ends = {PART_ENDS: [1000, 2000], PART_VALUES: {"1000": 0.7, "2000": 0.65}}
    for number, report in ((1000, 0.9), (2000, 0.6)):
        study._storage.set_trial_intermediate_value(study.trials[1]._trial_id, number, report)
    for name, value in ends.items():
        study._storage.set_trial_user_attr(study.trials[1]._trial_id, name, value)
    first, second = read_summary(study).trials
    assert (first.value, second.value) == (study.trials[0].intermediate_values[1000], 0.65)
