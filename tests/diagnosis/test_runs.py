"""python -m nlu.doctor RUN: each reason why a score may differ, on a run that was really trained and then changed."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from nlu.config.errors import UserError
from nlu.config.schema import Run as Config
from nlu.data.collate import Batch
from nlu.diagnosis.check import Check, is_broken
from nlu.diagnosis.examination import of_run, predicted_again
from nlu.display.progress_bars import Progress
from nlu.inference.locate import locate
from nlu.inference.trained import Trained, load_trained
from nlu.models.task_model import TaskModel
from nlu.reports.runs import saved_config
from nlu.runs.provenance import snapshot_code
from nlu.training.build import build_data
from nlu.training.ranks import Ranks
from tests.inference.runs import trained
from tests.training.kinds import TASKS, few_first, read, write


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_code(trained(TASKS["classify"], tmp_path_factory.mktemp("classify")))


def with_code(run: Path) -> Path:
    """Add the snapshot of the code, which runs in the process of a test go without."""
    snapshot_code(run)
    return run


@pytest.fixture
def run(own: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed; it reads the rows of the one that was trained."""
    return Path(shutil.copytree(own, tmp_path / "run"))


def checks(run: Path | str) -> dict[str, Check]:
    """What is said of the score of a run, by name; of several of one name the gravest."""
    found: dict[str, Check] = {}
    for section in of_run(str(run)):
        # A run of few steps has reasons not to learn.
        for check in section.checks if section.title != "whether it learns" else []:
            if check.name not in found or found[check.name].mark == "ok":
                found[check.name] = check
    return found


def change(path: Path, **changes: Any) -> None:
    """Change values of a JSON file by dotted keys, written with __."""
    content = json.loads(path.read_text())
    for key, value in changes.items():
        node = content
        *parents, last = [int(part) if part.isdigit() else part for part in key.split("__")]
        for part in parents:
            node = node[part]
        node[last] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", few_first(list(TASKS), "tag with a CRF"))
def test_an_unchanged_run_passes_every_check(name: str, tmp_path: Path) -> None:
    found = checks(with_code(trained(TASKS[name], tmp_path)))
    assert {name: check for name, check in found.items() if check.mark != "ok"} == {}
    if name != "retrieve":
        assert found["neighbours"].says == "23 rows of dev: exactly the same one by one and in batches of 32"
    assert found["rows"].says.endswith("train 13, dev 23")


def predicting_again(run: Path) -> tuple[Callable[[], Check], Trained]:
    """Return what predicts the dev rows of a run again, and the run as it is loaded for that."""
    trained = load_trained(locate(str(run)))
    ranks = Ranks(0, 1, torch.device("cpu"))
    with Progress(enabled=False) as progress:
        sets = build_data(Config.of(saved_config(run)), ranks, progress).store.sets
    return partial(predicted_again, trained, sets, ranks, "dev"), trained


def test_predictions_that_depend_on_neighbours_are_broken(run: Path) -> None:
    predicted, trained = predicting_again(run)
    own = trained.task.forward

    def forward(model: TaskModel, batch: Batch) -> dict[str, torch.Tensor]:
        outputs = own(model, batch)
        return {**outputs, "logits": outputs["logits"] * (1 + len(batch))}

    with mock.patch.object(trained.task, "forward", forward):
        neighbours = predicted()
    assert neighbours.mark == "broken" and neighbours.says.startswith("23 of 23 rows of dev get another prediction")


def test_changed_rows_are_reported_and_not_predicted_again(own: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(own.parent, tmp_path / "moved"))
    config = (folder / "run/config.yaml").read_text().replace(str(own.parent), str(folder))
    (folder / "run/config.yaml").write_text(config)
    write(folder / "dev.jsonl", read(folder / "dev.jsonl")[:-1])
    found = checks(folder / "run")
    assert found["rows"].mark == "warning" and found["rows"].says.startswith("the rows of dev, or what turns")
    assert found["neighbours"].says.startswith("not tried")
    (folder / "dev.jsonl").unlink()
    found = checks(folder / "run")
    assert found["rows"].mark == "broken" and "dev.jsonl" in found["rows"].says


def test_other_versions_are_reported_with_how_to_restore_them(run: Path) -> None:
    change(run / "provenance.json", starts__0__versions__numpy="1.0")
    found = checks(run)
    assert "numpy 1.0 there" in found["versions"].says and "numpy==1.0" in found["versions"].remedy


@pytest.mark.parametrize("damage", ["no mark", "cut", "nan", "lost"])
def test_a_checkpoint_that_is_not_whole_is_broken(run: Path, damage: str) -> None:
    best = run / "checkpoints/best-1"
    weights = best / "model.safetensors"
    if damage == "no mark":
        (best / "COMPLETE").unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        tensors = load_file(weights)
        first = sorted(tensors)[0]
        if damage == "nan":
            tensors[first].view(-1)[0] = torch.nan
        else:
            del tensors[first]
        save_file(tensors, weights)
    sections = of_run(str(run))
    assert is_broken(sections)
    found = checks(run)["checkpoint"]
    words = {
        "no mark": "so it is incomplete",
        "cut": "cannot be read",
        "nan": "nan or inf",
        "lost": "lacks 1 of",
    }
    assert found.mark == "broken" and words[damage] in found.says
    assert "neighbours" not in checks(run)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which is not a folder here"):
        of_run(str(tmp_path / "nothing"))
