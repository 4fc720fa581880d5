"""python -m nlu.doctor RUN: each reason why a score may differ, on a run that was really trained and then changed."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from nlu.config.errors import UserError
from nlu.config.schema import Run as Config
from nlu.data.collate import Batch
from nlu.diagnosis.check import Check, is_broken
from nlu.diagnosis.examination import of_run
from nlu.diagnosis.recomputed import predicted_again
from nlu.diagnosis.recorded import beginning
from nlu.display.progress import Progress
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


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.8, 0.99])
def test_a_configuration_that_is_cut_off_is_one_sentence(run: Path, share: float) -> None:
    path = run / "config.yaml"
    text = path.read_text()
    cut = text[: int(share * len(text))].rstrip()
    path.write_text(cut)
    with pytest.raises(UserError) as caught:
        of_run(str(run))
    assert "config.yaml" in str(caught.value) and "\n" not in str(caught.value) and "; " in str(caught.value)
    # At the end of a line too, as long as a group is missing.
    path.write_text(cut.rpartition("\n")[0] + "\n")
    if share < 0.3:
        with pytest.raises(
            UserError, match=r"whose config.yaml lacks .*, so it is not the whole configuration of a run"
        ):
            of_run(str(run))


def test_a_configuration_without_its_last_line_end_is_whole_if_all_choices_are_there(run: Path) -> None:
    path = run / "config.yaml"
    without = path.read_text()
    groups = [name for name, node in yaml.safe_load(without).items() if isinstance(node, dict) and "_target_" in node]
    last = {"tracker": "none", "adapter": "none"}
    names = {**{group: "any" for group in groups if group not in last}, **last}
    assert set(groups) == set(names)
    assert without.endswith("choices: {}\n"), "it was not started by a command line"
    text = without.replace("choices: {}\n", yaml.safe_dump({"choices": names}, sort_keys=False))
    for each in (without, text):
        path.write_text(each)
        whole = saved_config(run)
        path.write_text(each.rstrip("\n"))
        assert saved_config(run) == whole and of_run(str(run))
    # A part of a name, without the last choice, and a name of the user's own, which cannot be told from a part.
    for cut in (text[:-2], text.rstrip().rpartition("\n")[0], text.rstrip() + "_of_mine"):
        path.write_text(cut)
        with pytest.raises(UserError, match="config.yaml ends within a line, so a part of it is missing"):
            saved_config(run)


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
        assert found["kept predictions"].says == "23 rows of dev: exactly the same as the run kept"
    assert found["rows"].says.endswith("train 13, dev 23")


def test_a_section_tells_whether_the_run_learns(run: Path) -> None:
    (section,) = [section for section in of_run(str(run)) if section.title == "whether it learns"]
    assert "8 examples in a step, whose gradient is noisy" in [check.says for check in section.checks]


def test_predictions_that_differ_from_the_kept_ones_are_reported(run: Path) -> None:
    header, first, *others = (run / "predictions/dev.jsonl").read_text().splitlines()
    record = json.loads(first)
    record["probability"] += 0.25
    (run / "predictions/dev.jsonl").write_text("\n".join([header, json.dumps(record), *others]) + "\n")
    found = checks(run)["kept predictions"]
    assert found.mark == "warning"
    assert found.says.startswith("1 of 23 rows of dev differ from what the run kept, by up to 0.25; 0 of them have")


def predicting_again(run: Path) -> tuple[Callable[[], Iterator[Check]], Trained]:
    """Return what predicts the dev rows of a run again, and the run as it is loaded for that."""
    trained = load_trained(located := locate(str(run)))
    ranks = Ranks(0, 1, torch.device("cpu"))
    with Progress(enabled=False) as progress:
        sets = build_data(Config.of(saved_config(run)), ranks, progress).store.sets
    return partial(predicted_again, located, trained, sets, ranks, "dev"), trained


def test_predictions_that_depend_on_neighbours_are_broken(run: Path) -> None:
    predicted, trained = predicting_again(run)
    own = trained.task.forward

    def forward(model: TaskModel, batch: Batch) -> dict[str, torch.Tensor]:
        outputs = own(model, batch)
        return {**outputs, "logits": outputs["logits"] * (1 + len(batch))}

    with mock.patch.object(trained.task, "forward", forward):
        neighbours, _ = predicted()
    assert neighbours.mark == "broken" and neighbours.says.startswith("23 of 23 rows of dev get another prediction")


def test_rounding_that_depends_on_neighbours_is_broken_only_for_the_native_bert(run: Path) -> None:
    predicted, trained = predicting_again(run)
    own = trained.task.forward

    def forward(model: TaskModel, batch: Batch) -> dict[str, torch.Tensor]:
        outputs = own(model, batch)
        return {**outputs, "logits": outputs["logits"].double() * (1 + 1e-7 * len(batch))}

    with mock.patch.object(trained.task, "forward", forward):
        assert next(predicted()).mark == "broken"
        with mock.patch("nlu.diagnosis.recomputed.BERT_TARGET", "another"):
            assert next(predicted()).mark == "ok"


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


def test_changed_code_is_reported_by_module(run: Path) -> None:
    with zipfile.ZipFile(run / "code.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files["nlu/tasks/classify.py"] += b"\n"
    del files["nlu/doctor.py"]
    with zipfile.ZipFile(run / "code.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    found = checks(run)["code"]
    assert found.mark == "warning"
    assert found.says == "2 modules not as in code.zip: nlu/doctor.py added, nlu/tasks/classify.py changed"


def test_other_versions_and_commits_are_reported_with_how_to_restore_them(run: Path) -> None:
    change(run / "provenance.json", starts__0__versions__numpy="1.0", starts__0__git={"commit": "abc", "diff": ""})
    found = checks(run)
    assert "numpy 1.0 there" in found["versions"].says and "numpy==1.0" in found["versions"].remedy
    assert found["commit"].mark == "ok" and found["commit"].says.startswith("abc there")


def test_another_number_of_threads_or_processes_is_reported(run: Path) -> None:
    change(run / "checkpoints/last/state.json", order__machine__threads=7, order__world_size=4)
    found = checks(run)
    assert found["threads"].remedy == "set OMP_NUM_THREADS=7"
    assert found["ranks"].says == "saved by 4 processes, scored by 1"


def test_a_run_that_was_continued_elsewhere_is_reported(run: Path) -> None:
    starts = json.loads((run / "provenance.json").read_text())["starts"]
    change(run / "provenance.json", starts=[*starts, {**starts[0], "world_size": 2}])
    assert checks(run)["starts"].says.startswith("2 starts, with other world_size")


def test_scores_that_two_records_tell_differently_are_broken(run: Path) -> None:
    lines = (run / "valid.tsv").read_text().splitlines()
    step = str(json.loads((run / "checkpoints/best-1/score.json").read_text())["step"])
    edited = [f"{line.rpartition(chr(9))[0]}\t0.123" if line.startswith(f"{step}\t") else line for line in lines]
    (run / "valid.tsv").write_text("\n".join(edited) + "\n")
    found = checks(run)["records"]
    assert found.mark == "broken" and "0.123 in valid.tsv" in found.says


def test_the_last_weights_are_not_those_of_the_recorded_score(run: Path) -> None:
    change(run / "result.json", best__step=2)
    change(run / "checkpoints/best-1/score.json", step=2)
    found = checks(run / "last")["which weights"]
    assert found.mark == "warning" and "last: step 4" in found.says and "that of step 2" in found.says


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


def test_a_run_that_failed_before_its_first_checkpoint_is_reported_not_refused(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "result.json").unlink()
    with open(run / "log.txt", "a") as log:
        log.write("2026-01-01T00:00:00+0000 ERROR the disk is full\n")
    found = checks(run)
    assert found["state"].mark == "broken" and found["state"].says == "failed: the disk is full"
    assert found["checkpoint"].mark == "broken" and "lacks a checkpoint best" in found["checkpoint"].says


def test_a_state_that_lacks_a_field_is_reported_as_broken(run: Path) -> None:
    content = json.loads((run / "checkpoints/last/state.json").read_text())
    del content["order"]["machine"]
    (run / "checkpoints/last/state.json").write_text(json.dumps(content))
    found = checks(run)["device"]
    assert found.mark == "broken" and "'machine'" in found.says


@pytest.mark.parametrize(
    ("lines", "mark", "words"),
    [
        ([], "warning", "log.txt, which counts"),
        (["INFO pretrained x: 57 of 57 tensors of the model loaded"], "ok", "nothing is missing"),
        (
            ["INFO pretrained x: 55 of 57 tensors of the model loaded", "INFO   missing: head.linear.weight, head.b"],
            "ok",
            "the head was random",
        ),
        (
            ["INFO pretrained x: 55 of 57 tensors of the model loaded", "WARNING   missing: layers.0.a, head.b"],
            "warning",
            "1 of the encoder were random, such as layers.0.a",
        ),
        (
            [
                "INFO pretrained x: 56 of 57 tensors of the model loaded",
                "WARNING   mismatched: backbone.positions is (64, 8), the model wants (32, 8)",
            ],
            "warning",
            "such as backbone.positions",
        ),
    ],
)
def test_partly_loaded_weights_are_found_in_the_log(tmp_path: Path, lines: list[str], mark: str, words: str) -> None:
    (tmp_path / "log.txt").write_text("".join(f"2026-01-01T00:00:00+0000 {line}\n" for line in lines))
    found = beginning(tmp_path, "x")
    assert found.mark == mark and words in found.says


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which is not a folder here"):
        of_run(str(tmp_path / "nothing"))
