"""The difference between a run and a configuration in a file."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nlu.commands.report import main
from nlu.config.errors import UserError
from tests.composing import composed as composed_config
from tests.reports.folders import begin_run, end_run
from tests.training.in_process import TINY, train
from tests.training.runs import files


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A run with a note and the overrides that it was started with."""
    folder = tmp_path_factory.mktemp("planned")
    overrides = (*files(folder), *TINY, "trainer.max_duration=1st")
    train(*overrides, "note=first", f"hydra.run.dir={folder}/run")
    return folder / "run", overrides


def planned(folder: Path, *overrides: str) -> str:
    """Write what `python -m nlu.train OVERRIDES --cfg job` prints; returns the path."""
    path = folder / "planned.yaml"
    OmegaConf.save(composed_config(overrides), path)
    return str(path)


def test_only_the_keys_that_the_file_changes_are_listed(
    trained: tuple[Path, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, overrides = trained
    assert main(["diff", str(run), planned(tmp_path, *overrides)]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "no key of the configuration differs"
    path = planned(tmp_path, *overrides, "optimizer.lr=0.5", "seed=7", "note=second", "loss=focal", "loss.gamma=3")
    assert main(["diff", str(run), path]) == 0
    out = capsys.readouterr().out
    assert f"B  {path}" in out and "second" not in out
    assert ["optimizer.lr", "0.003", "0.5"] in [line.split() for line in out.splitlines()]
    assert main(["diff", str(run), path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["config"]
    assert found["optimizer.lr"] == {"a": 0.003, "b": 0.5} and found["seed"] == {"a": 1, "b": 7}
    assert found["loss.gamma"] == {"a": None, "b": 3} and {key.partition(".")[0] for key in found} == {
        "optimizer", "seed", "loss",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "arguments", "says"),
    [
        (None, [], "planned.yaml cannot be read: No such file or directory; give a file of a configuration"),
        ("a: [", [], "planned.yaml is not YAML"),
        ("lr: 3\n", [], "is not the configuration of a run; python -m nlu.train KEY=VALUE ... --cfg job prints one"),
        ("- 3\n", [], "is not the configuration of a run"),
        ("a: 3\n", ["--examples", "3"], "has no predictions; leave it out"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused(
    tmp_path: Path, content: str | None, arguments: list[str], says: str
) -> None:
    end_run(begin_run(tmp_path / "run"), 0.5)
    if content is not None:
        (tmp_path / "planned.yaml").write_text(content)
    with pytest.raises(UserError) as caught:
        main(["diff", str(tmp_path / "run"), str(tmp_path / "planned.yaml"), *arguments])
    assert says in str(caught.value) and len(caught.value.problems) == 1
