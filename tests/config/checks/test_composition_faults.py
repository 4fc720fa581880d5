"""A mistake in an experiment file is answered with the file, the line, the fault and what to write instead."""

from pathlib import Path

import pytest
from hydra import initialize_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from nlu.config.checks.composition_faults import choice_problem, fault_of, misplaced, with_places
from nlu.config.choices import conf_dir
from nlu.config.command_line import USER_MISTAKES

HEADER = "# @package _global_\n"
BASE = f"{HEADER}defaults:\n  - override /model: textcnn\n  - _self_\ntrainer:\n  batch_size: 3\n"
X = "my/experiment/x.yaml"
SEARCH = "override /hydra/sweeper: hyperband"
SLURM = "override /hydra/launcher: slurm"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of experiments of a user, below the working folder; it has the file base.yaml."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my/experiment"
    path.mkdir(parents=True)
    (path / "base.yaml").write_text(BASE, encoding="utf-8")
    return path


@pytest.fixture
def loader(folder: Path):
    with initialize_config_search_path([f"file://{conf_dir()}", f"file://{folder.parent}"]):
        yield GlobalHydra.instance().config_loader()


def answer(loader: ConfigLoader, *overrides: str) -> str:
    """Return what is said about a configuration that Hydra refuses, or composes with keys elsewhere."""
    try:
        config = loader.load_configuration("train", list(overrides), RunMode.RUN)
    except (RecursionError, *USER_MISTAKES) as error:
        return fault_of(error, "train", loader, overrides)
    return "\n".join(misplaced(config, "train", loader, overrides))


def with_defaults(*entries: str) -> str:
    return f"{HEADER}defaults:\n" + "".join(f"  - {entry}\n" for entry in entries)


@pytest.mark.parametrize(
    ("entries", "line", "expected"),
    [
        (["override /model: textcn"], 3, "override /model: textcn: unknown choice; nearest: textcnn; all: albert"),
        (["override /model: tnews"], 3, "unknown choice; write data=tnews; all: albert"),
        (["override /modle: textcnn"], 3, "unknown group modle; nearest: model"),
        (["override model: textcnn"], 3, "unknown group experiment/model, since model has no slash in front; write /m"),
        (["override /hydra/launcher: slrum"], 3, "unknown choice; nearest: slurm; all: basic, "),
        (["/model: textcnn"], 3, "chooses simbert_tiny already; write override /model, as the last entry"),
        (["override /data@data.sets.a: tnews"], 3, "no entry before it chooses data@data.sets.a; write it without"),
        (["bas"], 3, "there is no file experiment/bas.yaml; nearest: base"),
        (["experiment/base"], 3, "experiment has no slash in front; write /experiment"),
        (["override /model: textcnn", "base"], 4, "base: it follows an entry with override; move it above line 3"),
        (["override /model: textcnn", "x"], 4, "x: it follows an entry with override"),
        (["x"], 3, "experiment/x includes itself; leave the entry out"),
    ],
)
def test_a_wrong_entry_of_the_defaults_is_named_with_its_line(folder, loader, entries, line, expected):
    (folder / "x.yaml").write_text(with_defaults(*entries), encoding="utf-8")
    said = answer(loader, "experiment=x")
    assert said.startswith(f"{X}:{line}: ") and expected in said, said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"{HEADER}trainer:\n\tbatch_size: 3\n",
            f"{X}:3, column 1: not valid YAML: found character that cannot start any token; correct it",
        ),
        (f"{HEADER}note: a: b\n", f"{X}:2, column 8: not valid YAML: mapping values are not allowed in this context"),
        (f"{HEADER}trainer:\n  eval_interval: ${{trainer.batch\n", f"{X}:3: trainer.eval_interval: no viable"),
        (
            "seed: 1\n",
            f"{X}:1: # @package _global_ is missing, so the keys would be below experiment; make it the first",
        ),
        (f"# mine\n{HEADER}seed: 1\n", f"{X}:1: # @package _global_ is missing, so the keys would be below experiment"),
        (
            f"{HEADER}hydra.launcher.timeout_min: 5\n",
            f"{X}:2: hydra.launcher.timeout_min is a single name in YAML; write hydra: {{launcher: {{timeout_min",
        ),
        (f"{HEADER}hydra:\n  sweep: out\n", f"{X}: ValidationError raised while composing config: Merge error"),
        (
            f"{with_defaults(SEARCH)}hydra: {{sweeper: {{n_trial: 5}}}}\n",
            f"{X}:4: hydra.sweeper.n_trial: hydra/sweeper=hyperband has no such key; nearest: n_trials",
        ),
        (
            f"{with_defaults(SLURM)}hydra:\n  launcher:\n    timeout_min: long\n",
            f"{X}:6: hydra.launcher.timeout_min: value 'long' of type 'str' could not be converted to Integer; write",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_line(folder, loader, text, expected):
    (folder / "x.yaml").write_text(text, encoding="utf-8")
    assert answer(loader, "experiment=x").startswith(expected), answer(loader, "experiment=x")


def test_another_encoding_is_named_with_the_line(folder, loader):
    (folder / "x.yaml").write_bytes(HEADER.encode() + "note: é\n".encode("latin-1"))
    said = answer(loader, "experiment=x")
    assert said == f"{X}:2: byte 0xe9 is not UTF-8; save the file in the encoding UTF-8"


@pytest.mark.parametrize("mistake", ["override /model: textcn", "base"])
def test_a_mistake_in_a_parent_is_named_in_the_parent(folder, loader, mistake):
    (folder / "base.yaml").write_text(with_defaults(mistake), encoding="utf-8")
    (folder / "x.yaml").write_text(with_defaults("base", "_self_"), encoding="utf-8")
    assert answer(loader, "experiment=x").startswith(f"my/experiment/base.yaml:3: {mistake}: ")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["experiment=bas"], "experiment=bas: unknown choice; nearest: base; all: afqmc, base, cluener"),
        (["+experiment=base"], "+experiment=base: the group has a choice already, so it is replaced; write experiment"),
        (["data@data.sets.a=tnew"], "data=tnew: unknown choice; nearest: tnews"),
        (["experiment=base", "model=textcn"], "model=textcn: unknown choice; nearest: textcnn; all: albert"),
        (
            ["hydra/sweeper=hyperband", "++hydra.sweeper.n_trials=many"],
            "hydra.sweeper.n_trials: value 'many' of type 'str' could not be converted to Integer; write a value of",
        ),
    ],
)
def test_a_mistake_on_the_command_line_names_no_file(loader, overrides, expected):
    assert answer(loader, *overrides).startswith(expected)


def test_an_unknown_configuration_is_answered_with_the_nearest(loader):
    with pytest.raises(USER_MISTAKES) as raised:
        loader.load_configuration("trian", [], RunMode.RUN)
    assert fault_of(raised.value, "trian", loader, []) == "unknown configuration trian; nearest: train"


def test_folders_of_the_search_path_are_read_too(folder, loader):
    (folder.parent / "more/experiment").mkdir(parents=True)
    (folder.parent / "more/experiment/y.yaml").write_text(with_defaults("bas"), encoding="utf-8")
    said = answer(loader, f"hydra.searchpath=[file://{folder.parent}/more]", "experiment=y")
    assert said.startswith("my/more/experiment/y.yaml:3: bas: ")


@pytest.mark.parametrize(
    ("problem", "overrides", "place"),
    [
        ("trainer.batch_size is 0 but must be positive", [], "my/experiment/base.yaml:6: "),
        ("seed: unknown key", ["note=a=b"], f"{X}:5: "),
        ("data.sets[1].name: unknown key", [], f"{X}:7: "),
        ("trainer.batch_size is 0", ["++trainer.batch_size=0"], ""),
        ("trainer.batch_size is 0", ["++trainer={batch_size: 0}"], ""),
        ("model.kernel_sizes is 0", [], ""),
        ("note is not set", [], ""),
    ],
)
def test_a_problem_of_a_key_names_the_line_where_the_user_wrote_it(folder, loader, problem, overrides, place):
    text = f"{with_defaults('base', '_self_')}seed: 3\ndata:\n  sets:\n    - name: a\nnote: ???\n"
    (folder / "x.yaml").write_text(text, encoding="utf-8")
    assert with_places([problem], "train", loader, ["experiment=x", *overrides]) == [f"{place}{problem}"]


@pytest.mark.parametrize(
    ("group", "choice", "expected"),
    [
        ("model", "textcnn", None),
        ("model", "", "model=: the choice of a group cannot be empty"),
        ("model", "textcn", "model=textcn: unknown choice; nearest: textcnn; all: "),
        ("model", "tnews", "model=tnews: unknown choice; write data=tnews; all: "),
        ("hydra/launcher", "slrum", "hydra/launcher=slrum: unknown choice; nearest: slurm; all: basic, "),
    ],
)
def test_a_choice_is_answered_with_the_nearest_or_its_group(loader, group, choice, expected):
    problem = choice_problem(group, choice, loader.get_group_options)
    assert problem is None if expected is None else problem.startswith(expected)
