"""What is remembered of Hydra's composing gives what Hydra composes anew, errors and Hydra's own node included."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import hydra
import pytest
from hydra import initialize_config_search_path
from hydra._internal.config_repository import ConfigRepository
from hydra.core import utils
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from nlu.config import hydra_private
from nlu.config.checks import composing
from nlu.config.checks.reading import USER_MISTAKES
from nlu.config.choices import conf_dir
from nlu.config.entry.app import find_plugins
from nlu.config.hydra_private import READ_IN, absent, hide_saved_configs, remembering

GROUPS = ("loss", "head", "method", "task", "optimizer", "model", "data", "scheduler", "precision", "experiment",
          "debug")  # fmt: skip
VALUES = [
    [], ["seed=4"], ["optimizer.betas=[0.5,0.9]", "folds.count=3"], ["data.fields={text: a, label: 1}"],
    ["data.test=${data.train}"], ["+data.more=3"], ["++data.more={a: [1]}"], ["~optimizer.weight_decay"],
    ["~optimizer.weight_decay=0.01"], ["~loss"], ["optimizer.lr=1e-3", "~optimizer.lr"], ["trusted_packages+=[mine]"],
    ["model=textcnn", "~model.pretrained", "+model.pretrained=null"], ["+experiment@other=tnews"],
    ["hydra.run.dir=here/${seed}"], ["hydra/launcher=slurm", "hydra.launcher.timeout_min=5"],
    ["hydra/sweeper=hyperband", "hydra.sweeper.params={seed: 1}"], ["+hydra.job.env_set.A=b"],
    ["data.train='a, b'"], ["seed=9", "seed=10"], ["hydra.mode=MULTIRUN"],
]  # fmt: skip
WRONG = [
    ["sead=4"], ["+seed=4"], ["~nothing"], ["model=berd"], ["hydra/launcher=slurm", "hydra.launcher.timeout_min=x"],
    ["seed=1,2"], ["seed=[", "a"], ["hydra.launcher.nodes=1"], ["loss@a=focal"], ["hydra.mode=WALK"],
]  # fmt: skip


@pytest.fixture(autouse=True)
def plugins() -> None:
    find_plugins()
    Plugins.instance()


@pytest.fixture
def searched(tmp_path: Path) -> Iterator[list[str]]:
    """Where configurations are found: the shipped ones, and a folder of one's own."""
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own/model/mine.yaml").write_text("defaults: [bert_tiny, _self_]\ndropout: 0.3\nseed_of: ${seed}\n")
    yield [conf_dir().as_uri(), (tmp_path / "own").as_uri()]


def composed(search_path: Sequence[str], overrides: Sequence[str], name: str = "train") -> str:
    """Return all that Hydra composes, its own node, types and flags included, as text, or what it raises."""
    with initialize_config_search_path(list(search_path)):
        try:
            config = hydra.compose(name, list(overrides), return_hydra_config=True)
        except USER_MISTAKES as error:
            return f"{type(error).__name__}: {error}: {error.__cause__}"
        types = {key: OmegaConf.get_type(config.hydra, key) for key in config.hydra}
        return str((OmegaConf.to_container(config), types, OmegaConf.is_struct(config), OmegaConf.is_readonly(config)))


def choices() -> list[list[str]]:
    return [[f"{group}={path.stem}"] for group in GROUPS for path in sorted((conf_dir() / group).glob("*.yaml"))]


def test_what_is_remembered_is_what_hydra_composes(searched: list[str]) -> None:
    lines = [VALUES[2], VALUES[4], VALUES[8], VALUES[15], WRONG[0], WRONG[4], ["model=mine"], ["model=mine", "seed=3"]]
    fresh = [composed(searched, line) for line in lines]
    with remembering():
        assert [composed(searched, line) for line in lines] == fresh
        # Nothing of the first round has changed what is remembered.
        assert [composed(searched, line) for line in reversed(lines)] == fresh[::-1]
        assert "Could not find 'model/mine'" in composed(searched[:1], ["model=mine"])


@pytest.mark.thorough
def test_so_it_is_for_every_choice_of_every_command(searched: list[str]) -> None:
    lines = [*VALUES, *WRONG, *([*choice, *VALUES[2]] for choice in choices())]
    fresh = [composed(searched, line) for line in lines]
    with remembering():
        assert [composed(searched, line) for line in lines] == fresh
        assert [composed(searched, line) for line in lines[::-5]] == fresh[::-5]
    for name in ("preprocess", "evaluate", "predict", "export", "serve"):
        fresh = [composed(searched, line, name) for line in ([], ["seed=3"], ["+a=1"])]
        with remembering():
            assert [composed(searched, line, name) for line in ([], ["seed=3"], ["+a=1"])] == fresh


def test_each_file_is_read_once_and_files_of_the_same_choices_are_merged_once(searched: list[str]) -> None:
    read: list[str] = []
    load, merge = OmegaConf.load, DictConfig.merge_with
    with (
        mock.patch.object(OmegaConf, "load", side_effect=lambda file, **more: (read.append(file.name), load(file))[1]),
        mock.patch.object(DictConfig, "merge_with", autospec=True, side_effect=merge) as merging,
        remembering(),
    ):
        composed(searched, ["seed=2"])
        assert len(set(read)) == len(read) > 10
        count = merging.call_count
        composed(searched, ["seed=3", "data.max_len=7"])
        composed(searched, ["sead=3"])
        assert merging.call_count == count
        composed(searched, ["loss=focal"])
        assert merging.call_count > count and len(set(read)) == len(read)


def test_merging_leaves_what_is_read_alone(searched: list[str]) -> None:
    with remembering():
        with initialize_config_search_path(searched):
            loader = GlobalHydra.instance().config_loader()
            paths = ["train", "hydra/config", "model/mine", "model/bert_tiny", "loss/focal", "experiment/tnews"]
            files = {path: loader.repository.load_config(config_path=path) for path in paths}  # type: ignore[attr-defined]
            before = {path: OmegaConf.to_container(file.config) for path, file in files.items()}
            for line in (["model=mine", "loss=focal", "experiment=tnews", "seed=7", "loss.gamma=9"], ["model=mine"]):
                found = hydra.compose("train", [*line, "+hydra.job.env_set.A=b"], return_hydra_config=True)
                OmegaConf.set_struct(found, False)
                found.model.clear()
        for path, file in files.items():
            assert OmegaConf.to_container(file.config) == before[path]
            assert all(node._get_parent() is file.config for node in file.config._content.values())


def test_after_the_block_a_changed_file_counts(searched: list[str], tmp_path: Path) -> None:
    file = tmp_path / "own/model/mine.yaml"
    with remembering():
        before = composed(searched, ["model=mine"])
        file.write_text(file.read_text().replace("0.3", "0.4"))
        assert composed(searched, ["model=mine"]) == before
    assert composed(searched, ["model=mine"]) == before.replace("'dropout': 0.3", "'dropout': 0.4") != before


def test_blocks_that_overlap_leave_hydra_as_it_was() -> None:
    before = ConfigRepository.load_config
    first, second = remembering(), remembering()
    first.__enter__()
    assert ConfigRepository.load_config is not before
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert ConfigRepository.load_config is before


def test_a_search_keeps_few_of_the_configurations_that_it_composes(searched: list[str], monkeypatch) -> None:
    monkeypatch.setattr(composing, "MOST_KEPT", 4)
    with composing.composing_once(), initialize_config_search_path(searched):
        for seed in (1, 2, 3, 1):
            assert composing.compose("train", [f"seed={seed}"]).seed == seed
            assert composing.compose("train", [f"seed={seed}"], with_hydra=True).hydra.job
            assert len(composing._known.get() or {}) <= 4


def test_no_more_compositions_are_kept_than_are_allowed(searched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydra_private, "MOST_REMEMBERED", 2)
    lines = [[f"loss={name}"] for name in ("focal", "mse", "circle", "focal")]
    fresh = [composed(searched, line) for line in lines]
    with remembering():
        assert [composed(searched, line) for line in lines] == fresh


def test_a_dataclass_becomes_a_configuration_when_it_is_asked_for(searched: list[str]) -> None:
    from hydra_plugins.queue_launcher.config import SlurmLauncherConf

    store = ConfigStore.instance()
    with remembering():
        with mock.patch.object(OmegaConf, "structured", wraps=OmegaConf.structured) as building:
            store.store(group="hydra/launcher", name="slurm_later", node=SlurmLauncherConf(partition="a"))
            store.store(name="plain_later", node={"a": 1})
            assert [call.args[0] for call in building.call_args_list] == [{}, {"a": 1}]
    try:
        found = store.load("hydra/launcher/slurm_later.yaml")
        assert found.node == OmegaConf.structured(SlurmLauncherConf(partition="a"))
        assert OmegaConf.get_type(found.node) is SlurmLauncherConf and found.group == "hydra/launcher"
        assert store.load("plain_later.yaml").node == {"a": 1}
        assert "timeout_min" in composed(searched, ["hydra/launcher=slurm_later"])
        assert "Integer" in composed(searched, ["hydra/launcher=slurm_later", "hydra.launcher.timeout_min=x"])
    finally:
        del store.repo["hydra"]["launcher"]["slurm_later.yaml"], store.repo["plain_later.yaml"]


def test_every_part_is_there_in_the_hydra_that_it_was_read_in(
    searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if hydra.__version__.startswith(READ_IN):
        assert absent() == []
    fresh = composed(searched, ["seed=3"])
    wrong = {**hydra_private._PARTS, "gone": ("_internal.config_repository", "ConfigRepository", ("self",), id)}
    monkeypatch.setattr(hydra_private, "_PARTS", wrong)
    assert absent() == ["gone"]
    with remembering():
        assert composed(searched, ["seed=3"]) == fresh == composed(searched, ["seed=3"])
    assert not GlobalHydra.instance().is_initialized()


def test_what_hydra_saves_of_a_job_holds_no_secrets(tmp_path):
    hide_saved_configs()
    given = {
        "hydra": {
            "job": {"env_set": {"HF_TOKEN": "geheim", "OMP_NUM_THREADS": "1"}},
            "launcher": {"setup": ["export X=geheim"], "partition": "main"},
            "overrides": {"hydra": ["+hydra.job.env_set.HF_TOKEN=geheim"], "task": ["a={api_key: geheim}", "lr=1"]},
        },
        "url": "${oc.env:HF_TOKEN,null}",
    }
    utils._save_config(OmegaConf.create(given), "hydra.yaml", tmp_path)
    utils._save_config(OmegaConf.create(given["hydra"]["overrides"]["task"]), "overrides.yaml", tmp_path)
    read = OmegaConf.to_container(OmegaConf.load(tmp_path / "hydra.yaml"), resolve=False)
    assert "geheim" not in str(read) and read["url"] == given["url"]
    assert read["hydra"]["job"]["env_set"] == {"HF_TOKEN": "***", "OMP_NUM_THREADS": "1"}
    assert read["hydra"]["launcher"] == {"setup": ["***"], "partition": "main"}
    assert OmegaConf.to_container(OmegaConf.load(tmp_path / "overrides.yaml")) == ["a=***", "lr=1"]
