"""model.keep_layers: an encoder that starts from some layers of weights computes what transformers does with these."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from nlu.config.errors import CheckpointError
from nlu.models.encoders.bert import Bert
from nlu.models.formats.pretrained import load_into, open_pretrained
from nlu.models.formats.smaller_weights import with_layers
from nlu.models.model_rules import layers_kept
from tests.models.encoders.test_bert_family import LENGTHS, VOCAB_SIZE, foreign, hidden_of
from tests.models.parts import task_model
from tests.training.in_process import NO_DROPOUT, PLAIN, STANDING_STILL, sets, train

SIZES = ("model=bert_tiny", "model.hidden_size=8", "model.heads=2", "model.intermediate_size=16",
         "model.max_positions=32", "data.max_len=32", *PLAIN, *NO_DROPOUT)  # fmt: skip
ONE_STEP = ("trainer.max_duration=1st", "trainer.eval_interval=0", *STANDING_STILL)


@pytest.mark.parametrize(
    ("asked", "count", "expected"),
    [
        # The initialization of DistilBERT, and those of the shrunk BART models of transformers.
        (6, 12, [0, 2, 4, 7, 9, 11]),
        (3, 12, [0, 6, 11]),
        (1, 4, [0]),
        (2, 4, [0, 3]),
        (4, 4, [0, 1, 2, 3]),
        ([0, 3, -1], 12, [0, 3, 11]),
    ],
)
def test_layers_are_spread_evenly_or_named(asked: Any, count: int, expected: list[int]) -> None:
    assert layers_kept(asked, count) == expected


@pytest.mark.parametrize("name", ["roberta", "distilbert"])
def test_the_kept_layers_compute_what_transformers_computes_with_them(
    corpus: Any, spread: Any, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nlu")
    theirs = foreign(name, spread)
    theirs.save_pretrained(tmp_path)  # type: ignore[operator]
    source = with_layers(open_pretrained(str(tmp_path)), [1, -1])
    ours = Bert(VOCAB_SIZE, source, pretrained=str(tmp_path))
    load_into(task_model(ours, "pair", 2), source)
    inner: Any = getattr(theirs, "encoder", None) or theirs.transformer
    inner.layer = nn.ModuleList([inner.layer[1], inner.layer[3]])
    batch = corpus("pair", LENGTHS).batch()
    expected = torch.cat([layers[-1] for layers in hidden_of(theirs, batch)])
    with torch.inference_mode():
        found = ours.eval().encode(ours.embed(batch), batch, tokens=True).tokens_TD
    assert found is not None and found.std() > 0.1
    assert (found - expected).abs().max() < 1e-5
    assert ours.settings()["num_hidden_layers"] == 2 and len(ours.encoder["layer"]) == 2  # type: ignore[arg-type]
    # Nothing starts at random, and of no layer it is said that it is not used.
    assert "missing: backbone" not in caplog.text and "encoder.*" not in caplog.text


@pytest.mark.parametrize("name", ["albert", "albert with two groups"])
def test_weights_whose_layers_are_shared_are_refused(spread: Any, tmp_path: Path, name: str) -> None:
    foreign(name, spread).save_pretrained(tmp_path)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=r"share (one layer|2 layers) among 4, so none can be left out"):
        with_layers(open_pretrained(str(tmp_path)), 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A folder with a run of four layers, and the overrides of its data."""
    folder = tmp_path_factory.mktemp("layers")
    data = sets(folder)
    train(*SIZES, "model.layers=4", *data, "trainer.max_duration=2st", f"hydra.run.dir={folder}/teacher")
    return folder, (*SIZES, "model.layers=null", f"model.pretrained={folder}/teacher", *data)


@pytest.mark.parametrize("method", ["distil", "tinybert", "minilm"])
def test_a_student_starts_from_layers_of_its_teacher(
    runs: tuple[Path, tuple[str, ...]], tmp_path: Path, method: str
) -> None:
    folder, options = runs
    given = (f"method={method}", f"method.teacher={folder}/teacher", "model.keep_layers=2")
    train(*options, *given, *ONE_STEP, f"hydra.run.dir={tmp_path}/run")
    teacher = load_file(folder / "teacher/checkpoints/best-1/model.safetensors")
    student = load_file(tmp_path / "run/checkpoints/last/model.safetensors")
    for theirs, own in ((0, 0), (3, 1)):
        name = "backbone.encoder.layer.{}.output.dense.weight"
        assert abs(student[name.format(own)] - teacher[name.format(theirs)]).max() < 1e-6
    assert name.format(2) not in student


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["model.pretrained=null"], "model.keep_layers is 2, but model.pretrained is null"),
        (["model.layers=4"], "model.layers is 4, but model.keep_layers keeps 2; set model.layers=null"),
        (["model.layer_groups=2"], "model.layer_groups is 2, but model.keep_layers keeps single layers"),
        (["model.keep_layers=5"], "model.keep_layers is 5, but the weights have 4 layers; keep at most 4"),
        (["model.keep_layers=[0,4]"], "model.keep_layers has 4, but the weights have 4 layers; name"),
        (["model.keep_layers=[3,0]"], "not in ascending order, each once; write model.keep_layers=[0,3]"),
        (["model.keep_layers=[1,-3]"], "not in ascending order, each once; write model.keep_layers=[1]"),
        (["model.keep_layers=[]"], "model.keep_layers is [], but must keep at least one layer"),
        (["model.keep_layers=0"], "model.keep_layers is 0 but must be"),
    ],
)  # fmt: skip
def test_layers_that_cannot_be_kept_are_refused_before_anything_starts(
    runs: tuple[Path, tuple[str, ...]], tmp_path: Path, capfd: pytest.CaptureFixture[str], given: list[str],
    expected: str,
) -> None:  # fmt: skip
    _, options = runs
    train(*options, "model.keep_layers=2", *given, f"hydra.run.dir={tmp_path}/run", status=2)
    assert expected in capfd.readouterr().err.replace("\n    ", " ")
    assert not (tmp_path / "run").exists()


def test_heads_that_are_gone_move_with_their_layers(spread: Any, tmp_path: Path) -> None:
    foreign("roberta", spread).save_pretrained(tmp_path)  # type: ignore[operator]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "pruned_heads": {"1": [0], "2": [1]}}))
    assert with_layers(open_pretrained(str(tmp_path)), [1, -1]).config["pruned_heads"] == {"0": [0]}
