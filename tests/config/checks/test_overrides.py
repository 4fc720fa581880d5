"""Everything that is wrong with a command line is said at once."""

from pathlib import Path

import pytest

from nlu.config.checks.overrides import override_problems

VALID = ["name=a", "task=classify"]


@pytest.fixture
def find(tree: Path):
    def find(*overrides: str, config_name: str = "job", is_multirun: bool = False) -> list[str]:
        return override_problems(config_name, [f"file://{tree}/conf"], overrides, "shop.schema.Job", is_multirun)

    return find


def test_a_valid_command_line_passes(find):
    assert find(*VALID, "model=large", "model.layers=3", "+model.name=b", "trainer.max_duration=0.5ep") == []


def test_an_unknown_key_is_refused_with_the_nearest_full_key(find):
    (problem,) = find(*VALID, "trainer.batchsize=3")
    assert problem.startswith("trainer.batchsize: unknown key; nearest: trainer.batch_size")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "lr=loguniform(1e-5,1e-3)",
            "unknown function loguniform; write it as in 'lr=tag(log,interval(1e-5",
        ),
        (
            "trainer.batch_size=16,",
            "trainer.batch_size=16, ends in a comma; remove the comma, add the next",
        ),
        (
            "outputs/mine",
            "outputs/mine: the value is missing; write outputs/mine=VALUE, or run=outputs/mine for a run",
        ),
        ("rows.csv", "rows.csv is a file, but its key is missing; write input=rows.csv for rows to predict"),
    ],
)
def test_the_syntax_of_other_programs_is_answered_with_ours(
    find, tmp_path: Path, monkeypatch, override: str, expected: str
):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").touch()
    (problem,) = find(*VALID, override, is_multirun=True)
    assert expected in problem and "expecting {" not in problem


def test_an_unknown_choice_is_refused_with_the_nearest_and_all_choices(find):
    assert find("name=a", "task=clasify") == ["task=clasify: unknown choice; nearest: classify; all: classify, tag"]


def test_an_unknown_group_is_refused_with_the_nearest(find):
    assert find(*VALID, "modle=small") == ["modle=small: unknown group; nearest: model"]


def test_a_group_that_needs_a_choice_is_named_with_its_choices(find):
    assert find("name=a") == ["In 'job': You must specify 'task', e.g, task=<OPTION> Available options: classify tag"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.batch_size=[1", "no viable alternative at input '[1'; close its brackets, and quote"),
        ("name=a~b", "token recognition error at: '~'; quote the value"),
        ("name=a=b", "mismatched input '='"),
        ("seed", "seed: the value is missing; write seed=VALUE"),
        ("./mine", "./mine: the key is missing; write KEY=./mine, as run=./mine for a run"),
        ("hydra/launcher", "hydra/launcher: the value is missing; write hydra/launcher=VALUE"),
        ("x" * 300, "x: the value is missing"),
        ("seed=1,2", "seed=1,2: several values need --multirun; for a list write 'seed=[1,2]'"),
        ("+seed=3", "+seed=3 does not fit: Could not append to config. An item is already at 'seed'"),
        ("~trainer.patence", "trainer.patence: unknown key; nearest: trainer.patience"),
        ("hydra.job.chdir=maybe", 'hydra.job.chdir is "maybe" but must be true or false; set hydra.job.chdir'),
        ("seed=intervall(1,2)", "Unknown function 'intervall' Available: bool,choice"),
        ("seed=tag(log,intervall(1,2))", "Unknown function 'intervall' Available: bool,choice"),
        ("hydra.nope=1", "hydra.nope: Hydra has no such key"),
        (
            "hydra.sweeper.max_batch_sise=1",
            "hydra/sweeper=basic has no such key; nearest: hydra.sweeper.max_batch_size",
        ),
        ("hydra.sweeper.zzz=1", "hydra/sweeper=basic has no such key; valid: hydra.sweeper."),
        ("hydra.sweeper.n_trials=3", "; a search has more: hydra/sweeper=hyperband"),
        ("task={a: 1}", "You must specify 'task'"),
        ("+name={a=b: {c: 1}, d=e: 2}", "in a key write \\= for ="),
        ("+name={a: b~c}", "as in '+name={name: \"a=b\"}'"),
        ("seed=choice(null,/a)", "choice takes no null"),
        ("seed=${trainer.batchsize}", "seed is ${trainer.batchsize} but interpolation key"),
        ("model.name=${oc.env:SURELY_NOT_SET}", "Environment variable 'SURELY_NOT_SET' not found"),
    ],
)
def test_an_override_that_cannot_be_used_says_why(find, override: str, expected: str):
    overrides = [given for given in VALID if given.partition("=")[0] != override.partition("=")[0]]
    assert expected in "\n".join(find(*overrides, override))


def test_all_problems_are_found_together_with_those_of_the_values(find):
    found = find("trainer.batchsize=3", "model=larg", "name=[", "seed=-1", "+trainer.batchsiz=2", "extra=1")
    starts = [
        "name=[",
        "model=larg:",
        "In 'job': ",
        "trainer.batchsize:",
        "extra:",
        "name ",
        "seed ",
        "trainer.batchsiz:",
    ]
    assert len(found) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(sorted(found), sorted(starts), strict=True))


def test_every_value_of_a_sweep_is_tried(find):
    assert find("name=a", "task=clasify,tag,tga", "seed=1,2", is_multirun=True) == [
        "task=clasify: unknown choice; nearest: classify; all: classify, tag",
        "task=tga: unknown choice; nearest: tag; all: classify, tag",
    ]


def test_an_interval_without_a_search_names_the_search_and_the_list(find):
    (problem,) = find(*VALID, "seed=interval(1,3)", is_multirun=True)
    assert problem.endswith("for a search set hydra/sweeper=hyperband, for a grid list the values: seed=VALUE,VALUE")
    (problem,) = find(*VALID, "seed=interval(1,3)", "trainer.batchsize=3", "hydra/sweeper=hyperband", is_multirun=True)
    assert problem.startswith("trainer.batchsize")


def test_an_unknown_configuration_is_refused_with_the_nearest(find):
    assert find(*VALID, config_name="jbo") == ["unknown configuration jbo; nearest: job"]


def test_an_override_that_the_shell_tore_is_put_together_again_and_said_once(find):
    torn = "+model.head={a: 1, b: [2, 3]}"
    (problem,) = find(*VALID, *torn.split(), "seed=2")
    assert problem == f"{torn} came in pieces, since shells split words at spaces; quote it: '{torn}'"
    assert find(*VALID, torn) == []
