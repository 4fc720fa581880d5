"""What is used of Hydra's private functions: saved configurations hold no secrets, a dictionary replaces another."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core import utils
from omegaconf import OmegaConf

from nlu.config.hydra_private import adapt_hydra


def composed(directory: Path, *overrides: str) -> Any:
    adapt_hydra()
    with initialize_config_dir(str(directory)):
        return OmegaConf.to_container(compose("main", list(overrides)), resolve=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "main.yaml").write_text(
        "data:\n  fields: {text_a: 0, text_b: 1}\n  none: null\n  part: {_target_: a.B, width: 1, depth: 2}\n"
        "  sets: {a: {_target_: a.B, width: 1}}\nlike: ${data.fields}\n"
    )
    return tmp_path


def test_files_that_hydra_saves_for_a_job_hold_no_secrets(tmp_path):
    adapt_hydra()
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


def test_a_dictionary_given_for_a_key_replaces_the_one_that_is_there(directory):
    for fields in ({"text": "title", "label": "y"}, {}, {"text_a": 2}):
        written = "{" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}"
        found = composed(directory, f"data.fields={written}")
        assert (found["data"]["fields"], found["like"]) == (fields, "${data.fields}")
    # In the order of the command line.
    found = composed(directory, "data.fields.text_a=7", "data.fields={text: x}", "+data.fields.label=y")
    assert found["data"]["fields"] == {"text": "x", "label": "y"}
    assert composed(directory, "data.none={text: x}")["data"]["none"] == {"text": "x"}


def test_a_plus_sign_adds_to_a_dictionary_and_the_keys_of_a_choice_are_merged(directory):
    assert composed(directory, "+data.fields={label: 2}")["data"]["fields"] == {"text_a": 0, "text_b": 1, "label": 2}
    assert composed(directory, "++data.fields={text_b: 2}")["data"]["fields"] == {"text_a": 0, "text_b": 2}
    assert composed(directory, "data.part={width: 3}")["data"]["part"] == {"_target_": "a.B", "width": 3, "depth": 2}
    assert composed(directory, "data.part={_target_: c.D}")["data"]["part"] == {"_target_": "c.D"}
    assert composed(directory, "data.sets={a: {width: 3}}")["data"]["sets"]["a"] == {"_target_": "a.B", "width": 3}
    assert composed(directory, "data={none: 1}")["data"]["part"]["width"] == 1
