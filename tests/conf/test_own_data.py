"""A user's data YAML needs only the keys that it sets, and can set every key that the record of a run shows."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig

from nlu.config.entry.app import prepare, run_app


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., object]:
    """Return a function that prepares a configuration with `data=mine` and gives it, or what is said instead."""
    (tmp_path / "conf/data").mkdir(parents=True)
    (tmp_path / "conf/data/mine.yaml").write_text("train: my.csv\n")
    (tmp_path / "my.csv").write_text("text,label\na,b\n")
    monkeypatch.chdir(tmp_path)

    def task(config: DictConfig) -> int:
        print(yaml.safe_dump(prepare(config)))
        return 0

    def train(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["train", "--config-dir=conf", "data=mine", *arguments])
        with pytest.raises(SystemExit) as caught:
            run_app(task, "train")
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return (output.out, "") if caught.value.code == 0 else ("", output.err)

    return train


def test_a_data_choice_without_a_target_is_rows_in_files(train):
    out, said = train()
    assert said == ""
    data = yaml.safe_load(out)["data"]
    assert data["_target_"] == "nlu.data.dataset.Files" and data["train"] == "my.csv"
    # and what it leaves out has its default
    assert data["max_rows"] is None and data["fields"] is None and data["max_len"] == 128


def test_keys_that_a_data_yaml_leaves_out_can_be_set_without_a_plus(train):
    out, said = train("data.max_rows=3", "data.fields={text: 0, label: 1}", "+data.max_len=64")
    assert said == ""
    data = yaml.safe_load(out)["data"]
    assert (data["max_rows"], data["fields"], data["max_len"]) == (3, {"text": 0, "label": 1}, 64)
