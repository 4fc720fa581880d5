"""What CONTRIBUTING.md shows how to add works as it stands there, from a package of the user's own."""

import json
import re
from pathlib import Path

import pytest

from nlu.runs.predictions import predictions_of
from tests.training.in_process import MODEL, PLAIN, train

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORDS = {1: "broken late awful", 5: "good fast lovely"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write every file that the page shows, and rows to train on; returns their folder, which is the current one."""
    for name, content in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    rows = [f"{WORDS[stars]} {number},{stars}" for number in range(24) for stars in (1, 5)]
    (tmp_path / "shop.csv").write_text("\n".join(["review,stars", *rows]) + "\n")
    (tmp_path / "spans.jsonl").write_text(
        "".join(json.dumps({"text": f"Ann is {n}", "spans": {"person": {"Ann": [[0, 2]]}}}) + "\n" for n in range(30))
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SHORT = (*PLAIN, "trainer.max_duration=3st", "trainer.eval_interval=3st", "hydra.run.dir=run")
SHOP = ("--config-dir=my", "trusted_packages=[mypkg]", "data=shop", *SHORT)


@pytest.mark.parametrize(
    ("chosen", "metric"),
    [
        (("model=bag",), "accuracy"),
        (("head=mlp", "head.hidden_size=8", *MODEL), "accuracy"),
        (("loss=hinge", *MODEL), "accuracy"),
        (("method=jitter", "method.deviation=0.1", *MODEL), "accuracy"),
        (("tracker=lines", "tracker.digits=3", *MODEL), "accuracy"),
        (("task=grade", *MODEL), "off_by"),
        (("task=grade", "model=bag", "head=mlp", "loss=hinge", "method=jitter"), "off_by"),
        (MODEL, "accuracy"),
    ],
)
def test_a_part_of_ones_own_trains_and_is_scored(package: Path, chosen: tuple[str, ...], metric: str) -> None:
    train(*SHOP, *chosen)
    assert json.loads((package / "run" / "result.json").read_text())["best"]["metric"] == metric
    assert len(list(predictions_of(package / "run", "dev"))) > 0


def test_what_is_made_for_units_tags_them(package: Path) -> None:
    train(*SHOP[:2], "data=files", "data.train=spans.jsonl", "task=tag", "model=bag", "head=mlp", "loss=hinge", *SHORT)
    assert "span_f1" in json.loads((package / "run" / "result.json").read_text())["metrics"]["dev"]


def test_a_scorer_of_ones_own_scores_joined_folds(package: Path) -> None:
    train(*SHOP, "task=grade", "model=bag", "folds=2")
    result = json.loads((package / "run" / "result.json").read_text())
    off_by = [
        abs(int(record["label"]) - int(record["prediction"]))
        for record in predictions_of(package / "run", "out-of-fold")
    ]
    assert len(off_by) == 48
    assert result["out_of_fold"]["1"]["off_by"] == pytest.approx(sum(off_by) / 48)


def test_the_weights_of_an_encoder_of_ones_own_are_a_start(package: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(*SHOP, "model=bag")
    train(*SHOP[:-1], "model=bag", "model.pretrained=run/best", "hydra.run.dir=second")
    assert (package / "second" / "result.json").is_file()
