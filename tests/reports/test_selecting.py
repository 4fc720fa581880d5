"""Which runs the conditions of `nlu.report --where` keep, and the notes of runs."""

from pathlib import Path

import pytest

from nlu.commands.report import main
from nlu.config.errors import UserError
from nlu.reports.differing_keys import selected
from nlu.reports.runs import find_runs
from tests.reports.folders import begin_run, end_run


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    first = {"optimizer__lr": 1e-5, "note": "Baseline, as published", "choices": {"model": "bert"}}
    end_run(begin_run(Path("outputs/a"), **first), 0.5)
    end_run(begin_run(Path("outputs/b"), optimizer__lr=0.002, choices={"model": "textcnn"}), 0.6)
    end_run(begin_run(Path("outputs/baseline-2"), optimizer__lr=0.003, folds__count=5, fold=0), 0.7)
    return Path("outputs")


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ([], ["a", "b", "baseline-2"]),
        (["model=textcnn"], ["b"]),
        (["choices.model=textcnn"], ["b"]),
        (["model=*"], ["a", "b"]),
        (["optimizer.lr=1e-5"], ["a"]),
        (["optimizer.lr=0.00001"], ["a"]),
        (["optimizer.lr=0.00?"], ["b", "baseline-2"]),
        (["folds.count=null"], ["a", "b"]),
        (["fold=0"], ["baseline-2"]),
        (["baseline"], ["a", "baseline-2"]),
        (["baseline", "fold=null"], ["a"]),
        (["PUBLISHED"], ["a"]),
        (["note=Base*"], ["a"]),
        (["outputs/b"], ["b", "baseline-2"]),
    ],
)
def test_conditions_keep_the_runs_that_meet_all_of_them(outputs: Path, conditions: list[str], kept: list[str]) -> None:
    runs, _ = find_runs([outputs])
    assert [run.folder.name for run in selected(runs, conditions)] == kept


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        (
            "optimizer.lr=0.5",
            "--where is optimizer.lr=0.5, which no run here meets; optimizer.lr is 0.002, 0.003, 1e-05",
        ),
        ("optimiser.lr=0.5", "no run here has the key optimiser.lr; nearest: optimizer.lr"),
        ("model=nothing", "model is bert, textcnn"),
        (
            "nothing",
            "--where is nothing, which no run here meets; give a part of a folder's path or a note",
        ),
    ],
)
def test_a_condition_that_no_run_meets_is_refused(outputs: Path, condition: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        main([str(outputs), "--where", condition])
    assert says in str(caught.value)


def test_runs_that_differ_only_in_their_notes_are_one_configuration(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, note in ((1, "monday"), (2, "tuesday"), (3, None)):
        end_run(begin_run(outputs / "seeds" / str(seed), seed=seed, note=note), 0.5)
    assert main([str(outputs / "seeds")]) == 0
    _, line, *others = capsys.readouterr().out.splitlines()
    assert not others and "monday; tuesday" in line
