"""A head of a run over several sets is used like a separate run: predicted, scored, exported, loaded, served."""

from pathlib import Path

import numpy as np
import pytest

import nlu
from nlu.config.command_keys import Serve
from nlu.config.errors import UserError
from nlu.diagnosis.examination import of_run
from nlu.runs.predictions import predictions_of
from nlu.serving.served import Newest
from tests.inference.runs import STEPS, evaluate, kept, predict, said
from tests.training.in_process import train
from tests.training.kinds import read
from tests.training.mixtures import CLASSES, PAIRS, TAGS, mixture
from tests.training.runs import result

MEMBERS = {"first": CLASSES, "second": TAGS, "third": PAIRS}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three heads."""
    folder = tmp_path_factory.mktemp("heads")
    train(*mixture(folder, MEMBERS, *STEPS, "trainer.save_interval=1st"), f"hydra.run.dir={folder}/run")
    return folder / "run"


@pytest.mark.parametrize("name", MEMBERS)
def test_rows_get_the_bits_that_the_run_gave_them_when_it_was_scored(name: str, run: Path, tmp_path: Path) -> None:
    rows = run.parent / name / "dev.jsonl"
    predict(f"run={run}", f"head_name={name}", f"input={rows}", f"output={tmp_path}/out.jsonl")
    own = kept(run, f"dev-{name}")
    assert [one["prediction"] for one in read(tmp_path / "out.jsonl")] == [said(one) for one in own]


@pytest.mark.parametrize("name", MEMBERS)
def test_the_scores_of_the_sets_of_a_head_are_equal_to_the_bit(name: str, run: Path, tmp_path: Path) -> None:
    evaluate(f"run={run}", f"head_name={name}", "compare=true", "resamples=0", f"out={tmp_path}/out")
    compared = result(tmp_path / "out")["compare"]
    assert compared["equal"] and compared["sets"] == (["dev"] if name == "first" else ["dev", "test"])
    recorded = result(run)["metrics"][f"dev-{name}"]
    found = result(tmp_path / "out")["metrics"]["dev"]
    assert {metric: found[metric] for metric in recorded} == recorded


def test_a_program_loads_a_head_by_its_name(run: Path) -> None:
    loaded = nlu.load(run, head_name="first", device="cpu")
    own = list(predictions_of(run, "dev-first"))
    assert loaded.labels == ["bad", "good"]
    found = loaded.predict([record["text"] for record in own])
    assert [one["prediction"] for one in found] == [record["prediction"] for record in own]
    vectors = [nlu.load(run, head_name=name, device="cpu").encode(["a b c"]) for name in ("first", "third")]
    # The encoder is one and the same; the third head compares cosines, so its vectors have length 1.
    np.testing.assert_allclose(vectors[0] / np.linalg.norm(vectors[0]), vectors[1], rtol=1e-6)


def test_a_head_is_served(run: Path) -> None:
    served = Newest(Serve(run=str(run), head_name="second", device="cpu"), str(run)).served
    assert served.trained.layout.name == "units"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), "head_name is null, but {run} has several heads; set head_name to one of first, second, third"),
        (("head_name=fourth",), "head_name is fourth, but {run} has several heads; set head_name to one of first, "),
    ],
)
def test_a_head_must_be_named_and_be_there(
    more: tuple[str, ...], expected: str, run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = run.parent / "first" / "dev.jsonl"
    predict(f"run={run}", f"input={rows}", f"output={tmp_path}/out.jsonl", *more, status=2)
    assert expected.format(run=run) in capsys.readouterr().err
    evaluate(f"run={run}", f"data.test={rows}", *more, status=2)
    assert expected.format(run=run) in capsys.readouterr().err
    with pytest.raises(UserError, match="several heads"):
        nlu.load(run)


def test_the_doctor_finds_nothing_wrong_and_tries_each_head(run: Path) -> None:
    sections = of_run(str(run))
    checks = [check for section in sections for check in section.checks]
    assert [check for check in checks if check.mark == "broken"] == []
    again = [check.says for section in sections if section.title == "predicted again" for check in section.checks]
    assert [text.split(":")[0] for text in again] == [f"11 rows of dev-{name}" for name in MEMBERS]
    (rows,) = [check.says for check in checks if check.name == "rows"]
    assert rows.startswith("the same, with the same tokens and labels")
