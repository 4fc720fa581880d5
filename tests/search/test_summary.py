"""What a sweep leaves for a reader, for trials in any state."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import optuna
import pytest
import yaml
from optuna.distributions import FloatDistribution

from nlu.config.schema import flat
from nlu.search.steps import PART_ENDS, PART_VALUES
from nlu.search.summary import best_command, read_summary, write_best, write_summary
from tests.few import first
from tests.search.studies import study_of
from tests.training.runs import QUICK, TINY, files, run

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
    first(
        2,
        [
            (mixed, 12, FIGURES),
            ("FAIL", 3, set()),
            ("COMPLETE", 1, FIGURES - {"importances.png"}),
            ("PRUNED", 3, {"intermediate.png"}),
            ("WAITING", 2, set()),
            ("COMPLETE", 0, set()),
        ],
    ),
)
def test_a_summary_is_written_for_trials_in_any_state(tmp_path, capsys, states, trials, expected):
    write_summary(study_of(states, trials), tmp_path)
    assert figures(tmp_path) == expected
    rows = (tmp_path / "summary" / "trials.tsv").read_text().splitlines()
    assert len(rows) == trials + 1 and len({row.count("\t") for row in rows}) == 1
    assert (tmp_path / "summary" / "index.html").read_text().count("<tr>") == trials + 1
    has_best = "COMPLETE" in (states if isinstance(states, str) else MIXED) and trials > 0
    assert (tmp_path / "experiment" / "best.yaml").exists() == has_best
    assert ("experiment=best" in capsys.readouterr().out) == has_best


def test_trials_are_printed_best_first_with_what_they_cost(tmp_path, capsys):
    study = study_of(mixed, 12)
    write_summary(study, tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    header = next(place for place, line in enumerate(lines) if line[:1] == ["trial"])
    assert lines[header][:5] == ["trial", "state", "value", "examples", "wall"]
    best = lines[header + 1]
    assert best[:6] == [str(study.best_trial.number), "complete", f"{study.best_value:.4f}", "4,000", "30.0", "s"]
    assert [line[1] for line in lines[header + 1 : header + 13]] == sorted(
        (line[1] for line in lines[header + 1 : header + 13]),
        key=["complete", "pruned", "failed", "running"].index,
    )


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_trial_is_the_one_of_the_direction(maximize):
    study = study_of(mixed, 18, maximize=maximize)
    assert read_summary(study).best.number == study.best_trial.number


@pytest.mark.parametrize("maximize", [True, False])
def test_a_pruned_trial_has_the_best_value_that_it_reported(maximize):
    study = optuna.create_study(direction="maximize" if maximize else "minimize")
    reports = {160: 0.6, 320: 0.63, 480: 0.47}
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.PRUNED, intermediate_values=reports))
    (trial,) = read_summary(study).trials
    assert trial.value == (0.63 if maximize else 0.47)


def test_the_best_of_today_keeps_its_own_file_when_another_is_better_tomorrow(tmp_path):
    study = study_of("COMPLETE", 1)
    write_best(read_summary(study), tmp_path / "experiment" / "best.yaml")
    first = (tmp_path / "experiment" / "trial_0.yaml").read_text()
    better = optuna.trial.create_trial(value=0.99, params={"a": 2.0}, distributions={"a": FloatDistribution(0, 3)})
    assert "experiment=trial_0" in first and "experiment=best" not in first
    study.add_trial(better)
    write_best(read_summary(study), tmp_path / "experiment" / "best.yaml")
    assert (tmp_path / "experiment" / "trial_0.yaml").read_text() == first
    assert yaml.safe_load((tmp_path / "experiment" / "best.yaml").read_text())["a"] == 2.0


class References(HTMLParser):
    """Collects all addresses that a page would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


@pytest.mark.thorough
def test_the_page_is_one_file_that_fetches_nothing_and_stays_small(tmp_path, capsys):
    write_summary(study_of(mixed, 60), tmp_path)
    text = (tmp_path / "summary" / "index.html").read_text()
    references = References()
    references.feed(text)
    assert references.found == []
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", text)
    assert len(text.encode()) < 400_000


def test_the_page_shows_the_same_figures_as_svg(tmp_path, capsys):
    write_summary(study_of(mixed, 18), tmp_path)
    text = (tmp_path / "summary" / "index.html").read_text()
    figures = dict(re.findall(r'<section id="(\w+)"[^>]*>.*?(<svg .*?</svg>)', text, re.S))
    assert set(figures) == {name.removesuffix(".png") for name in FIGURES}
    assert "a <b>sweep" not in text and "&lt;/script&gt; &amp; a" in text
    for svg in figures.values():
        fromstring(svg.replace("xlink:", ""))


@pytest.mark.thorough
def test_the_best_trial_of_a_real_run_composes_to_the_same_configuration(tmp_path):
    """Groups, texts that need quotes, mappings: what its command line said comes out of best.yaml again."""
    shared = (*files(tmp_path, 40, 20), *TINY, *QUICK, "debug=limit", "trainer.max_duration=2st")
    run(f"hydra.run.dir={tmp_path}/0", "seed=7", *shared)
    study = study_of("COMPLETE", 1, folder=str(tmp_path))
    summary = read_summary(study)
    assert summary.metric == "dev/accuracy"
    assert write_best(summary, tmp_path / "experiment" / "best.yaml")
    command = best_command(tmp_path, summary)
    header = (tmp_path / "experiment" / "best.yaml").read_text().splitlines()[:2]
    assert header == ["# @package _global_", f"# {command}"]
    assert command == f"python -m nlu.train --config-dir={tmp_path} experiment=best"
    composed = yaml.safe_load(run(*command.split()[3:], "--cfg=job", "--resolve"))
    ran = yaml.safe_load((tmp_path / "0" / "config.yaml").read_text())
    assert ran.pop("choices")["model"] == "bert_tiny"
    assert flat(composed) == flat(ran)


def test_the_best_trial_of_a_search_builds_on_what_its_command_chose(tmp_path):
    shared = ("experiment=afqmc", "loss.label_smoothing=0.1")
    summary = read_summary(study_of("COMPLETE", 3, folder=str(tmp_path)))
    overrides = overrides_in_run(summary, *shared)
    assert write_best(summary, tmp_path / "experiment" / "best.yaml")
    composed = [
        yaml.safe_load(run(*given, "--cfg=job", "--resolve"))
        for given in (overrides, [f"--config-dir={tmp_path}", "experiment=best"])
    ]
    assert flat(composed[0]) == flat(composed[1])


def overrides_in_run(summary, *shared):
    """Write the file `overrides` of the best trial, and return what it holds."""
    overrides = [*shared, *(f"{name}={value}" for name, value in summary.best.params.items())]
    folder = Path(summary.best.folder)
    folder.mkdir()
    (folder / "overrides").write_text("\n".join(overrides))
    return overrides


def test_the_experiment_of_the_best_trial_leaves_out_the_keys_of_its_run(tmp_path):
    summary = read_summary(study_of("COMPLETE", 3, folder=str(tmp_path)))
    overrides_in_run(summary, "data=tnews", "trainer.max_duration=1ep", "resume=auto")
    assert write_best(summary, tmp_path / "best.yaml")
    content = yaml.safe_load((tmp_path / "best.yaml").read_text())
    params = summary.best.params
    assert content["defaults"] == [{"override /data": "tnews"}, {"override /model": params["model"]}, "_self_"]
    assert content["trainer"] == {"max_duration": "1ep", "batch_size": params["trainer.batch_size"]}
    assert content["optimizer"]["lr"] == params["optimizer.lr"] and "resume" not in content


def test_the_table_has_the_mean_over_the_ended_folds_of_a_trial_that_goes_on():
    study = study_of("RUNNING", 2)
    ends = {PART_ENDS: [1000, 2000], PART_VALUES: {"1000": 0.7, "2000": 0.65}}
    for number, report in ((1000, 0.9), (2000, 0.6)):
        study._storage.set_trial_intermediate_value(study.trials[1]._trial_id, number, report)
    for name, value in ends.items():
        study._storage.set_trial_user_attr(study.trials[1]._trial_id, name, value)
    first, second = read_summary(study).trials
    assert (first.value, second.value) == (study.trials[0].intermediate_values[1000], 0.65)
