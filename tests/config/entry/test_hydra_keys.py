"""Nothing foreign runs and nothing is lost: Hydra's own keys are checked before Hydra builds or writes anything."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig

from nlu.config.entry.app import run_app

FOREIGN = """
from pathlib import Path
from hydra.experimental.callback import Callback
Path("imported").touch()

class Thing(Callback):
    pass
"""


def task(config: DictConfig) -> int:
    print("ran", config.seed)
    return 0


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., object]:
    """Return a function that runs the shipped configuration in an empty folder and gives exit code and all output."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def train(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        with pytest.raises(SystemExit) as caught:
            run_app(task, "train")
        output = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, output.out + output.err

    return train


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of configurations of the user's own: `extra=foreign` has a callback that names a foreign class."""
    (tmp_path / "mine/extra").mkdir(parents=True)
    (tmp_path / "foreign_package.py").write_text(FOREIGN)
    head = "# @package _global_\nhydra:\n  callbacks:\n    one: "
    (tmp_path / "mine/extra/foreign.yaml").write_text(f"{head}{{_target_: foreign_package.Thing}}\n")
    own = "hydra.experimental.callbacks.LogJobReturnCallback"
    (tmp_path / "mine/extra/own.yaml").write_text(f"{head}{{_target_: {own}}}\n")
    (tmp_path / "mine/mine.yaml").write_text("defaults:\n  - train\n  - extra: foreign\n  - _self_\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "mine"
    sys.modules.pop("foreign_package", None)


@pytest.mark.parametrize("place", ["s3://bucket/run", "oss://bucket/${seed}", "file:///tmp/run"])
def test_a_run_folder_that_is_an_address_is_refused_before_anything_is_written(train, place: str):
    code, told = train(f"hydra.run.dir={place}")
    assert code == 2
    shown = place.replace("${seed}", "1")
    assert f"hydra.run.dir is {shown}, but a run writes into a local folder; set hydra.run.dir to" in told
    assert (f"mirror={shown} to have it kept there" in told) == (not place.startswith("file://"))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("key", "sweeper"), [("hydra.sweep.dir", "hyperband"), ("hydra.sweep.subdir", "basic")])
def test_a_remote_folder_of_a_grid_or_a_search_is_refused(train, key: str, sweeper: str):
    code, told = train("--multirun", f"hydra/sweeper={sweeper}", "seed=1,2", f"{key}=s3://bucket/runs")
    assert code == 2 and f"{key} is s3://bucket/runs, but" in told
    assert list(Path().iterdir()) == []


def test_a_folder_with_too_long_a_name_is_refused_before_the_first_job(train):
    code, told = train(f"hydra.run.dir={'字' * 86}/1")
    assert code == 2 and "hydra.run.dir makes a name of 258 bytes, but" in told and "to a shorter one" in told
    subdir = "hydra.sweep.subdir=${hydra.job.override_dirname}"
    code, told = train("--multirun", "seed=1,2", subdir, f"note={'x' * 250}")
    assert code == 2 and "hydra.sweep.subdir makes a name of 2" in told and "exclude_keys=[KEY]" in told
    code, told = train(f"hydra.run.dir={'/'.join(['x' * 250] * 20)}")
    assert code == 2 and "cannot be used: file name too long; " in told and "Traceback" not in told
    assert list(Path().iterdir()) == []
    # 85 letters of three bytes each are 255.
    assert train(f"hydra.run.dir=out/{'字' * 85}", "dry_run=true")[0] == 0


def test_a_variable_for_the_jobs_needs_no_plus(train):
    assert train("hydra.job.env_set.FOO=1", "hydra.run.dir=run") == (0, "ran 1\n")


def test_a_search_without_multirun_is_refused_instead_of_being_one_run(train):
    for arguments in (["hydra/sweeper=hyperband"], ["hydra/sweeper=hyperband", "dry_run=true"]):
        code, told = train(*arguments)
        assert code == 2 and "add --multirun, or set hydra/sweeper=basic" in told and "ran" not in told
    assert train("hydra/sweeper=basic", "hydra.run.dir=run")[0] == 0


def test_a_launcher_also_accepts_one_run_but_neither_a_search_nor_several_values(train):
    code, told = train("hydra/launcher=local", "hydra/sweeper=hyperband")
    assert code == 2 and "hydra/sweeper is hyperband, but without --multirun the command is one run" in told
    code, told = train("hydra/launcher=submitit_local", "hydra.launcher.wait=false")
    assert code == 2 and "write hydra/launcher=local; or slurm, pai; launchers of other packages wait for" in told
    code, told = train("hydra/launcher=local", "seed=1,2")
    assert code == 2 and "seed=1,2: several values need --multirun" in told
    assert list(Path().iterdir()) == []
    assert train("hydra/launcher=basic", "hydra.run.dir=run")[0] == 0
    # What only shows the configuration submits nothing.
    assert train("hydra/launcher=local", "dry_run=true", "hydra.run.dir=shown") == (0, "ran 1\n")


def test_a_foreign_class_in_hydras_keys_is_refused_without_an_import(train, mine: Path):
    code, told = train(f"--config-dir={mine}", "+extra=foreign", "dry_run=true")
    assert code == 2
    assert (
        "hydra.callbacks.one._target_ is foreign_package.Thing, which is outside nlu, Hydra and its installed plugins; "
        "if you trust foreign_package, add it: trusted_packages=[foreign_package]"
    ) in told
    code, told = train(f"--config-dir={mine}", "+extra=foreign", "dry_run=true", "trusted_packages=[foreign]")
    assert code == 2 and "one._target_ is foreign_package.Thing, which is outside" in told, "another package"
    assert "foreign_package" not in sys.modules and list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "override",
    [
        "+hydra.callbacks.one={_target_: foreign_package.Thing}",
        "+hydra.callbacks.one={_target_: hydra.utils.get_class, path: foreign_package.Thing}",
        "+hydra.job_logging.handlers={one: {class: foreign_package.Thing}}",
        r"+hydra.job_logging.filters={one: {\(\): foreign_package.Thing}}",
        "+hydra.hydra_logging.handlers={one: {stream: 'ext://foreign_package.Thing'}}",
        "hydra.launcher._target_=foreign_package.Thing",
        "hydra.sweeper._target_=foreign_package.Thing",
    ],
)
def test_a_foreign_class_is_refused_in_every_place_where_hydra_would_build_it(train, mine: Path, override: str):
    code, told = train(override)
    assert code == 2 and "which is outside nlu, Hydra and its installed plugins" in told
    assert "foreign_package" not in sys.modules and list(Path().iterdir()) == []


def test_a_sweeper_that_would_take_an_exit_code_for_the_score_is_refused(train):
    # It comes with the plugin from which ours takes the samplers.
    code, told = train("--multirun", "hydra/sweeper=optuna", "seed=1,2")
    assert code == 2 and "hydra/sweeper is optuna, which would search blindly" in told
    assert "choose hydra/sweeper=hyperband" in told and list(Path().iterdir()) == []
    code, told = train("hydra/sweeper=optuna", "hydra.run.dir=run")
    assert code == 2 and "hydra/sweeper is optuna, but without --multirun" in told
