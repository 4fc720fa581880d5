"""python -m nlu.evaluate export=DIR: the scores of an exported model are those of its run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.inference.runs import evaluate, export, kept, trained
from tests.training.kinds import TASKS, few_first, read

pytest.importorskip("transformers")


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())  # type: ignore[no-any-return]


def moved(folder: Path) -> Path:
    """Rename the rows that a run scored, so that they are new rows; returns their path."""
    return (folder / "dev.jsonl").rename(folder / "new.jsonl")


FORMATS_OF = {
    "match": "huggingface", "tag": "torchscript", "regress": "torchscript", "multilabel": "torchscript",
    "siamese with contrastive loss": "sentence_transformers", "classify": "onnx", "retrieve": "sentence_transformers",
    "regress of pairs": "onnx",
}  # fmt: skip


@pytest.mark.parametrize("name", few_first(list(FORMATS_OF), "tag", "regress"))
def test_an_export_scores_rows_as_its_run_scored_them(name: str, tmp_path: Path, capsys: Any) -> None:
    written = FORMATS_OF[name]
    if written == "onnx":
        pytest.importorskip("onnxruntime")
    run = trained(TASKS[name], tmp_path)
    recorded, predicted = result(run)["metrics"]["dev"], kept(run)
    export(f"run={run}", f"format={written}", f"out={tmp_path}/export")
    new = moved(tmp_path)
    order = (f"export={tmp_path}/export", f"data.test={new}", "resamples=0", "trainer.eval_batch_size=5")
    evaluate(*order, f"out={tmp_path}/scores")
    found = result(tmp_path / "scores")
    assert found["metrics_of_run"]["test"] == recorded
    # Predictions of a short run are nearly equal, so rounding changes their order and with it the correlations.
    compared = [metric for metric in recorded if metric not in ("pearson", "spearman")]
    for metric in compared:
        assert found["metrics"]["test"][metric] == pytest.approx(recorded[metric], abs=1e-5), metric
    out = capsys.readouterr().out
    assert ["set", "metric", written, "run", "difference"] in [line.split() for line in out.splitlines()]
    own = read(tmp_path / "scores" / "predictions" / "test.jsonl")[1:]
    for key in ("prediction", "spans"):
        if isinstance(predicted[0].get(key), str | list):
            assert [one[key] for one in own] == [one[key] for one in predicted]
    # Without the run, everything is in the folder of the export.
    shutil.rmtree(run)
    evaluate(*order, f"out={tmp_path}/without")
    assert result(tmp_path / "without")["metrics"] == found["metrics"]
    assert result(tmp_path / "without")["metrics_of_run"] == {}
    assert f"the run {run} is not here, so the export is not compared with it" in capsys.readouterr().err


def test_an_export_scores_the_files_of_its_run_and_is_compared_with_equal_weights(tmp_path: Path, capsys: Any) -> None:
    run = trained(TASKS["classify"], tmp_path)
    recorded = result(run)["metrics"]["dev"]
    export(f"run={run}", "format=[torchscript,huggingface]", f"out={tmp_path}/export")
    evaluate(f"export={tmp_path}/export/torchscript", "resamples=0", f"out={tmp_path}/scores")
    found = result(tmp_path / "scores")["metrics"]["dev"]
    assert {metric: found[metric] for metric in recorded} == pytest.approx(recorded, abs=1e-5)
    shutil.copy(run / "checkpoints/last/model.safetensors", run / "checkpoints/best-1/model.safetensors")
    evaluate(f"export={tmp_path}/export/torchscript", "resamples=0", f"out={tmp_path}/changed")
    assert "has other weights now, so the export is not compared with it" in capsys.readouterr().err
    assert result(tmp_path / "changed")["metrics_of_run"] == {}
    evaluate(f"export={tmp_path}/export", status=2)
    said = capsys.readouterr().err
    assert (
        f"which has several formats; give one of {tmp_path}/export/torchscript, {tmp_path}/export/huggingface" in said
    )


@pytest.mark.parametrize(
    ("orders", "says"),
    [
        (["export=RUN", "run=RUN"], "run is RUN, but export is set, which has its own weights; leave out one"),
        (["export=RUN", "compare=true"], "compare is true, but export is set"),
        (["export=RUN"], "export is RUN, which lacks export.json; give a folder that python -m nlu.export wrote"),
        (["export=RUN/no"], "export is RUN/no, which is not a folder here; give a folder that python -m nlu.export"),
        (["export="], "export is empty; give a folder that python -m nlu.export wrote, or leave it out"),
        (["export=EXPORT", "table="], "table is empty; give the path of a tsv file"),
        (["export=EXPORT", "trainer.batch_size=3"], "trainer.batch_size"),
        (["export=EXPORT", "data.test=ROWS"], "an encoder, but the run decides by a head over both vectors"),
        (["export=s3://bucket/a"], "must be a folder here; copy it with python -m nlu.io cp -r"),
    ],
)
def test_an_export_that_cannot_be_scored_is_refused(
    siamese: Path, orders: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": siamese / "run", "EXPORT": siamese / "export", "ROWS": siamese / "dev.jsonl"}
    for name, place in places.items():
        orders = [order.replace(name, str(place)) for order in orders]
        says = says.replace(name, str(place))
    evaluate(*orders, status=2)
    assert says in capsys.readouterr().err


@pytest.fixture(scope="module")
def siamese(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that decides by a head over two vectors, and of its export."""
    folder = tmp_path_factory.mktemp("siamese")
    export(f"run={trained(TASKS['siamese'], folder)}", "format=sentence_transformers", f"out={folder}/export")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("name", few_first(["tag", "classify"], "tag"))
def test_inputs_of_fixed_length_give_what_the_run_gives(name: str, tmp_path: Path, capsys: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = trained(TASKS[name], tmp_path)
    recorded = result(run)["metrics"]["dev"]
    order = (f"run={run}", f"out={tmp_path}/export")
    export(*order, "format=onnx", "fixed_length=31", status=2)
    assert "fixed_length is 31 but must be from 32, data.max_len of the run" in capsys.readouterr().err
    export(*order, "format=[onnx,torchscript]", "fixed_length=32", status=2)
    assert "torchscript takes any number of tokens; leave it out, or use onnx, onnx-int8, torch_export" in (
        capsys.readouterr().err
    )
    export(*order, "format=onnx", "fixed_length=32")
    session = onnxruntime.InferenceSession(tmp_path / "export" / "model.onnx", providers=["CPUExecutionProvider"])
    assert [one.shape[1] for one in session.get_inputs()] == [32, 32, 32]
    assert all(isinstance(one.shape[0], str) for one in session.get_inputs()), "any number of texts"
    evaluate(f"export={tmp_path}/export", f"data.test={moved(tmp_path)}", "resamples=0", f"out={tmp_path}/scores")
    found = result(tmp_path / "scores")["metrics"]["test"]
    assert {metric: found[metric] for metric in recorded} == pytest.approx(recorded, abs=1e-5)
