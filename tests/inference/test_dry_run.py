"""dry_run=true of the commands that use a run: the configuration and the verdict, and nothing is written or sent."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nlu.commands import evaluate, export, predict, prune
from tests.training.in_process import program

COMMANDS = {
    "predict": (predict.main, ("input={rows}", "output={folder}/out.csv")),
    "export": (export.main, ("format=huggingface", "out={folder}/out")),
    "prune": (prune.main, ("fraction=0.5", "out={folder}/out")),
    "evaluate": (evaluate.main, ("data.test={rows}", "out={folder}/out")),
}


@pytest.fixture
def dry_run(run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that tries a command on a run, from an empty folder in which it may write."""
    monkeypatch.chdir(tmp_path)
    run = run_of("classify")
    rows = next(run.parent.glob("train.*"))

    def tried(name: str, *overrides: str, status: int = 0) -> None:
        task, own = COMMANDS[name]
        given = [text.format(run=run, rows=rows, folder=tmp_path) for text in (*own, *overrides)]
        program(task, name, f"run={run}", *given, "dry_run=true", status=status)

    return tried


@pytest.mark.parametrize(
    ("name", "launcher"), [("predict", "slurm"), ("export", "local"), ("prune", "basic"), ("evaluate", "slurm")]
)
def test_a_dry_run_says_that_a_command_is_good_and_leaves_nothing(
    name: str, launcher: str, dry_run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run(name, f"hydra/launcher={launcher}")
    said = capsys.readouterr()
    assert "dry_run: true" in said.out and "Every key, type, range, path and rule between groups holds" in said.out
    assert not list(tmp_path.iterdir()), "neither results nor the records of a submission"


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("predict", "run=nowhere", "run is nowhere"),
        ("predict", "input=nowhere.csv", "nowhere.csv"),
        ("predict", "output=no/folder/out.csv", "the folder no/folder does not exist"),
        ("export", "out={run}", "which exists"),
        ("evaluate", "out={run}", "which exists"),
        ("export", "head_name=other", "has one head only"),
        ("prune", "fraction=0.99", "each of the 1 layers keeps at least one of the 2 heads"),
        ("prune", "out=null", "out is null but must be a new folder"),
    ],
)
def test_a_dry_run_finds_what_is_wrong_with_a_run_and_its_files(
    name: str, wrong: str, told: str, dry_run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run(name, wrong, status=2)
    said = capsys.readouterr()
    assert told in said.err and not said.out and not list(tmp_path.iterdir())
