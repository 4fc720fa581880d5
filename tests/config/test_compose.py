"""A command line is composed once, and everything that is wrong with it is said at once."""

from pathlib import Path
from unittest import mock

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from nlu.config.command_line import read_command_line
from nlu.config.compose import compose_job
from nlu.config.entry.app import checked_composition, hydra_of
from nlu.config.errors import UserError

VALID = ["name=a", "task=classify"]


@pytest.fixture
def find(tree: Path):
    def find(*overrides: str, is_multirun: bool = False) -> list[str]:
        line = read_command_line(overrides)
        with hydra_of(line, "shop.schema.Job", tree / "conf") as hydra:
            try:
                checked_composition(hydra, "job", line.overrides, is_multirun=is_multirun)
            except UserError as error:
                return error.problems
        return []

    return find


def test_a_valid_command_line_passes_and_is_composed_once(find):
    own = ConfigLoaderImpl._load_configuration_impl
    with mock.patch.object(ConfigLoaderImpl, "_load_configuration_impl", autospec=True, side_effect=own) as composed:
        assert find(*VALID, "model=large", "model.layers=3", "+model.name=b", "trainer.max_duration=0.5ep") == []
        assert composed.call_count == 1
        assert len(find(*VALID, *(f"trainer.unknown_{number}=1" for number in range(40)))) == 40
        assert composed.call_count == 2


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.batchsize=3", "trainer.batchsize: unknown key; nearest: trainer.batch_size"),
        ("lr=loguniform(1e-5,1e-3)", "unknown function loguniform; write tag(log,interval(1e-5,5e-4))"),
        ("outputs/mine", "outputs/mine: the value is missing; write outputs/mine=VALUE, or run=outputs/mine for a run"),
        ("rows.csv", "rows.csv is a file, but its key is missing; write input=rows.csv for rows to predict"),
        ("task=clasify", "task=clasify: unknown choice; nearest: classify; all: classify, tag"),
        ("trainer.batch_size=[1", "no viable alternative at input '[1'; close its brackets, and quote"),
        ("trainer.batch_size=16,", "quote the value for the shell and for Hydra: 'trainer.batch_size=\"16,\"'"),
        ("+name={a=b: {c: 1}, d=e: 2}", "quote the whole for the shell"),
        ("name=a~b", "token recognition error at: '~'; quote the value"),
        ("name=a=b", "mismatched input '='"),
        ("seed", "seed: the value is missing; write seed=VALUE"),
        ("./mine", "./mine: the key is missing; write KEY=./mine, as run=./mine for a run"),
        ("hydra/launcher", "hydra/launcher: the value is missing; write hydra/launcher=VALUE"),
        ("x" * 300, "x: the value is missing"),
        ("seed=1,2", "seed=1,2: several values need --multirun; for a list write 'seed=[1,2]'"),
        ("seed=tag(log,intervall(1,2))", "Unknown function 'intervall' Available: bool,choice"),
        ("hydra.nope=1", "hydra.nope: Hydra has no such key"),
        (
            "hydra.sweeper.parms=1",
            "basic has no such key; nearest: hydra.sweeper.params",
        ),
        ("hydra.sweeper.n_trials=3", "; a search has more: hydra/sweeper=hyperband"),
        ("seed=choice(null,/a)", "choice takes no null"),
        ("seed=${trainer.batchsize}", "seed is ${trainer.batchsize} but interpolation key"),
        ("model.name=${oc.env:SURELY_NOT_SET}", "Environment variable 'SURELY_NOT_SET' not found"),
    ],
)
def test_an_override_that_cannot_be_used_says_why(find, tmp_path: Path, monkeypatch, override: str, expected: str):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").touch()
    overrides = [given for given in VALID if given.partition("=")[0] != override.partition("=")[0]]
    found = find(*overrides, override)
    # A command line that lacks a choice of a group composes only with one.
    assert expected in "\n".join(found)


def test_all_problems_are_found_together_with_those_of_the_values(find):
    found = find("task=tag", "trainer.batchsize=3", "model=larg", "name=[", "seed=-1", "+trainer.batchsiz=2", "extra=1")
    starts = ["name=[", "model=larg:", "trainer.batchsize:", "extra:", "name ", "seed ", "trainer.batchsiz:"]
    assert len(found) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(sorted(found), sorted(starts), strict=True))


def test_a_key_that_no_file_has_is_set_without_a_plus(find):
    assert find(*VALID, "hydra.job.env_set.FOO=1", "trainer.patience=3ep") == []


def test_a_key_that_is_only_a_default_is_deleted_and_a_wrong_one_is_named(find):
    assert find(*VALID, "~trainer.patience", "~trainer.max_duration", "~model.layers") == []
    (problem,) = find(*VALID, "~trainer.patence")
    assert problem.startswith("trainer.patence: unknown key; nearest: trainer.patience")


def test_every_choice_of_a_sweep_is_tried(find):
    assert find("name=a", "task=clasify,tag,tga", "seed=1,2", is_multirun=True)[:2] == [
        "task=clasify: unknown choice; nearest: classify; all: classify, tag",
        "task=tga: unknown choice; nearest: tag; all: classify, tag",
    ]


def test_an_override_that_the_shell_tore_is_put_together_again_and_said_once(find):
    torn = "+model.head={a: 1, b: [2, 3]}"
    (problem,) = find(*VALID, *torn.split(), "seed=2")
    assert problem == f"{torn} came in pieces, since shells split words at spaces; quote it: '{torn}'"
    assert find(*VALID, torn) == []


def test_variables_of_the_environment_are_copied_as_hydra_does(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINE", "3")
    line = read_command_line([*VALID, "hydra.job.env_copy=[MINE,NOT_SET]"])
    with hydra_of(line, "shop.schema.Job", tree / "conf") as hydra:
        config = checked_composition(hydra, "job", line.overrides)
    assert config.hydra.job.env_set == {"MINE": "3"}


def test_jobs_with_other_targets_have_the_defaults_of_their_own(tree: Path):
    jobs = [[f"model._target_=shop.models.{name}"] for name in ("Model", "Heir")]
    line = read_command_line(VALID)
    with hydra_of(line, "shop.schema.Job", tree / "conf") as hydra:
        swept = "model._target_=shop.models.Model,shop.models.Heir"
        master = checked_composition(hydra, "job", [*VALID, swept], is_multirun=True)
        first, second = (compose_job(hydra.config_loader, master, [*VALID, *job]).model for job in jobs)
        assert "layers" in first and "layers" not in second and second.dropout is None
