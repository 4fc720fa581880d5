"""Every kind of run gives rows the bits that it gave them when it was scored: by each command, and in Python."""

import json
from pathlib import Path
from typing import Any

import pytest

import nlu
from tests.inference.runs import FEW, evaluate, kept, predict, said, trained, unlabelled
from tests.training.kinds import TASKS, few_first, read, write


@pytest.fixture(scope="module", params=few_first(list(TASKS), *FEW))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, trained(TASKS[request.param], tmp_path_factory.mktemp("run"))


def metrics_of(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())["metrics"][name]


def test_nlu_predict_writes_them_beside_the_rows(run: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = run
    rows = unlabelled(TASKS[name], 23)
    write(tmp_path / "new.jsonl", rows)
    predict(f"run={folder}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl", "batch_size=5")
    found, own = read(tmp_path / "out.jsonl"), kept(folder)
    assert [one["prediction"] for one in found] == [said(one) for one in own]
    assert [{key: one[key] for key in row} for one, row in zip(found, rows, strict=True)] == rows
    for key in ("probability", "similarity"):
        if key in found[0] and key in own[0] and name != "multilabel":
            assert [one[key] for one in found] == [one[key] for one in own]


def test_nlu_load_gives_them_to_one_row_and_to_several(run: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = run
    loaded, rows = nlu.load(folder, device="cpu", batch_size=5), unlabelled(TASKS[name], 23)
    found = loaded.predict(rows)
    assert [one["prediction"] for one in found] == [said(one) for one in kept(folder)]
    assert [loaded.predict([row])[0] for row in rows] == found
    scores = loaded.evaluate(read(folder.parent / "dev.jsonl"))
    recorded = metrics_of(folder, "dev")
    assert scores == {metric: recorded[metric] for metric in scores}


def test_nlu_evaluate_scores_the_same_rows_alike_under_another_name(
    run: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = run
    recorded = metrics_of(folder, "dev")
    evaluate(f"run={folder}", "compare=true", "resamples=0", "trainer.eval_batch_size=3")
    assert "the scores of dev equal the recorded ones" in capsys.readouterr().err
    # The last of these tests: neither the rows of training nor those of the run's own dev set are needed.
    (folder.parent / "dev.jsonl").rename(folder.parent / "new.jsonl")
    (folder.parent / "train.jsonl").unlink()
    evaluate(f"run={folder}", f"data.test={folder.parent}/new.jsonl", f"out={tmp_path}/out", "resamples=20")
    found = metrics_of(tmp_path / "out", "test")
    assert {metric: found[metric] for metric in recorded} == recorded
    assert [{**one, "id": 0} for one in kept(tmp_path / "out", "test")] == [{**one, "id": 0} for one in kept(folder)]
    intervals = json.loads((tmp_path / "out/result.json").read_text())["interval"]["test"]
    ends = {metric: ends for metric, ends in intervals.items() if ends is not None}
    assert ends and all(low <= high for low, high in ends.values()), ends
