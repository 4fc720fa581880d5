"""What docs/extending shows how to add works as it stands there, from a package of the user's own."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu
from nlu.config.schema import Run
from nlu.reports.cleaning import plan_of
from nlu.reports.runs import read_run
from nlu.runs.predictions import predictions_of
from tests.few import only
from tests.inference.runs import evaluate, predict
from tests.training.in_process import MODEL, PLAIN, composed, killed_in_backward, sets, start, tensors, train
from tests.training.kinds import read, write
from tests.training.test_kinds_killed import outcome

PAGES = sorted((Path(__file__).parents[2] / "docs/extending").glob("*.md"))
BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORDS = {1: "broken late awful", 5: "good fast lovely"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write every file that the pages show, and rows to train on; returns their folder, which is the current one."""
    for name, content in BLOCK.findall("".join(page.read_text(encoding="utf-8") for page in PAGES)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    rows = [f"{WORDS[stars]} {number},{stars}" for number in range(24) for stars in (1, 5)]
    (tmp_path / "shop.csv").write_text("\n".join(["review,stars", *rows]) + "\n")
    items = "".join(f"<item><review>{text}</review><stars>{stars}</stars></item>" for text, stars in
                    (row.split(",") for row in rows))  # fmt: skip
    (tmp_path / "feed.xml").write_text(f"<feed>{items}</feed>")
    (tmp_path / "spans.jsonl").write_text(
        "".join(json.dumps({"text": f"Ann is {n}", "spans": {"person": {"Ann": [[0, 2]]}}}) + "\n" for n in range(30))
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SHORT = (*PLAIN, "trainer.max_duration=3st", "trainer.eval_interval=3st", "hydra.run.dir=run")
SHOP = ("--config-dir=my", "trusted_packages=[mypkg]", "data=shop", *SHORT)


QUICK = [
    (("loss=hinge", *MODEL), "accuracy"),
    (("tokenizer=characters", "model=bag"), "accuracy"),
    (("task=grade", "model=bag", "head=deep", "loss=hinge", "method=jitter"), "off_by"),
]


@pytest.mark.parametrize(
    ("chosen", "metric"),
    only(
        QUICK,
        [
            (("model=bag",), "accuracy"),
            (("head=deep", "head.hidden_size=8", *MODEL), "accuracy"),
            (("adapter=bitfit", "adapter.norms=true", *MODEL), "accuracy"),
            (("loss=hinge", *MODEL), "accuracy"),
            (("method=jitter", "method.deviation=0.1", *MODEL), "accuracy"),
            (("method=fgm", "method.of={_target_: mypkg.jitter.Jitter, deviation: 0.1}", *MODEL), "accuracy"),
            (("method=hint", "method.weight=2", *MODEL), "accuracy"),
            (("optimizer=sgd", "optimizer.momentum=0.5", *MODEL), "accuracy"),
            (("tokenizer=characters", "model=bag"), "accuracy"),
            (("data=feed", "model=bag"), "accuracy"),
            (("data.layout={_target_: mypkg.ends.Ends, head: 2}", "data.max_len=8", *MODEL), "accuracy"),
            (("precision=half", *MODEL), "accuracy"),
            (("tracker=lines", "tracker.digits=3", *MODEL), "accuracy"),
            (("task=grade", *MODEL), "off_by"),
            (("task=grade", "model=bag", "head=deep", "loss=hinge", "method=jitter"), "off_by"),
            (MODEL, "accuracy"),
        ],
    ),
)
def test_a_part_of_ones_own_trains_and_is_scored(package: Path, chosen: tuple[str, ...], metric: str) -> None:
    train(*(word for word in SHOP if word != "data=shop" or "data=feed" not in chosen), *chosen)
    assert json.loads((package / "run" / "result.json").read_text())["best"]["metric"] == metric
    assert len(list(predictions_of(package / "run", "dev"))) > 0


def test_a_tokenizer_of_ones_own_predicts_without_its_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(*SHOP, "tokenizer=characters", "model=bag")
    vocabulary = nlu.load("run").trained.tokenizer.vocabulary
    assert {"b", "r", "9"} <= vocabulary.keys() and not any(len(word) > 1 for word in vocabulary if word[0] != "[")
    (package / "mypkg" / "characters.py").unlink()
    monkeypatch.delitem(sys.modules, "mypkg.characters")
    assert nlu.load("run").predict(["good fast lovely"])


def test_files_of_ones_own_format_are_predicted_and_scored_as_the_run_read_them(package: Path) -> None:
    train(*(word for word in SHOP if word != "data=shop"), "data=feed", "model=bag")
    (package / "new.xml").write_text(
        "<feed><item><review>late 3</review></item><item><review>fast</review></item></feed>"
    )
    predict("run=run", "input=new.xml", "output=out.jsonl")
    found = read(package / "out.jsonl")
    assert [one["review"] for one in found] == ["late 3", "fast"]
    expected = nlu.load("run").predict(["late 3", "fast"])
    assert [one["prediction"] for one in found] == [one["prediction"] for one in expected]
    evaluate("run=run", "data.test=feed.xml", "out=scores")
    assert json.loads((package / "scores" / "result.json").read_text())["sets"]["test"]["rows"] == 48
    # Other formats are still read by their suffix.
    write(package / "new.jsonl", [{"review": "late 3"}])
    predict("run=run", "input=new.jsonl", "output=of_jsonl.jsonl")
    assert read(package / "of_jsonl.jsonl")[0]["prediction"] == found[0]["prediction"]


def test_an_encoder_and_a_head_for_units_can_tag(package: Path) -> None:
    train(*SHOP[:2], "data=files", "data.train=spans.jsonl", "task=tag", "model=bag", "head=deep", "loss=hinge", *SHORT)
    assert "span_f1" in json.loads((package / "run" / "result.json").read_text())["metrics"]["dev"]


HINT = {"_target_": "mypkg.hint.Hint", "weight": 0.5}


def with_own(package: Path, *overrides: str, **nodes: dict[str, Any]) -> Run:
    """Return a configuration in which nodes of the page's package stand in the place of chosen ones."""
    config = composed(*sets(package), *MODEL, *PLAIN, *overrides, "trusted_packages=[mypkg]")
    return dataclasses.replace(config, **nodes)  # type: ignore[arg-type]


SGD = {"_target_": "mypkg.sgd.Sgd", "lr": 0.05, "momentum": 0.9}
STEPS = (
    "trainer.batch_size=4", "trainer.accumulation=2", "trainer.max_duration=4st", "trainer.eval_interval=2st",
    "trainer.save_interval=1st", "trainer.log_interval=3st", "resume=auto",
)  # fmt: skip


def assert_the_method_owns_a_projection(run_dir: Path) -> None:
    """Assert where the parameters of `method=hint` are, and that they were trained."""
    own = tensors(run_dir, "last/method")
    assert {name: value.shape for name, value in own.items()} == {"weight": (8, 8), "bias": (8,)}
    # The momentum shows that both were trained.
    moments = tensors(run_dir, "last/optimizer")
    assert np.abs(moments["momentum_buffer:method.weight"]).max() > 0
    assert moments.keys() >= {"momentum_buffer:method.bias", "momentum_buffer:head.linear.bias"}
    best = run_dir / "checkpoints/best-1"
    assert [path.name for path in best.glob("*.safetensors")] == ["model.safetensors"]
    assert not any("projection" in name or "teacher" in name for name in tensors(run_dir, "best-1/model"))


def test_a_method_with_a_teacher_and_parameters_continues_to_the_same_bytes(package: Path) -> None:
    config = with_own(package, *STEPS, method=HINT, optimizer=SGD)
    start(config, package / "whole")
    assert_the_method_owns_a_projection(package / "whole")
    for killed_in in range(1, 5):
        # Every start but the first does the step before it, then dies in the midst of the next.
        with killed_in_backward(1 if killed_in == 1 else 3):
            start(config, package / "run")
    start(config, package / "run")
    found, expected = outcome(package / "run"), outcome(package / "whole")
    assert found.keys() == expected.keys() and "checkpoints/last/method.safetensors" in found
    assert not [name for name in expected if found[name] != expected[name]]


def test_parameters_of_a_method_are_unused_in_predictions_and_removable(package: Path) -> None:
    train(*SHOP, *MODEL, "method=hint")
    removable = plan_of(read_run(package / "run")).removable
    assert {path.name for path in removable} == {"method.safetensors", "optimizer.safetensors"}
    assert nlu.load("run").predict(["good fast lovely"])
