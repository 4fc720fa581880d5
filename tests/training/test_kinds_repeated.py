"""Folds, seeds, reports, dry runs and searches know every kind of run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.runs.predictions import Predictions
from tests.training.in_process import command, composed, start
from tests.training.kinds import KINDS, METHODS, PRETRAINING, TASKS, few_first
from tests.training.runs import result

REPEATED = ("regress", "multilabel of cells", "tag with a CRF", "siamese with contrastive loss", "retrieve")
ROWS = 20
OPTIONS = ("folds.count=2", "seeds=2", "trainer.max_duration=3st", "trainer.eval_interval=0")


@pytest.fixture(scope="module", params=few_first(REPEATED, "regress", "tag with a CRF"))
def repeated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a kind, and the folder of its runs over two folds and two seeds."""
    folder = tmp_path_factory.mktemp("repeated")
    start(composed(*KINDS[request.param].overrides(folder, train_rows=ROWS), *OPTIONS), folder / "run")
    return request.param, folder / "run"


def test_folds_of_each_seed_are_scored_together_where_predictions_say_enough(repeated: tuple[str, Path]) -> None:
    name, run_dir = repeated
    found = result(run_dir)
    assert [part["name"] for part in found["parts"]] == [f"seed-{s}-fold-{f}" for s in (1, 2) for f in (0, 1)]
    assert found["out_of_fold"].keys() == {"1", "2"}
    for seed, joined in found["out_of_fold"].items():
        rows = [dict(row) for row in Predictions(run_dir / f"predictions/out-of-fold-seed-{seed}.jsonl")]
        assert [row["id"] for row in rows] == list(range(ROWS)) and {row["fold"] for row in rows} == {0, 1}
        assert joined == pytest.approx(expected(name, rows, joined), rel=1e-6)
        assert bool(joined) == (name != "retrieve")


def expected(name: str, rows: list[dict[str, Any]], joined: dict[str, float]) -> dict[str, float]:
    """Return the joined scores, with some of them computed again from the records."""
    label, prediction = [row["label"] for row in rows], [row.get("prediction") for row in rows]
    if name == "regress":
        wrong = np.array(label) - np.array(prediction)
        from scipy import stats

        of_rank = stats.spearmanr(label, prediction).statistic
        own = {"mae": np.abs(wrong).mean(), "rmse": np.sqrt((wrong**2).mean()), "spearman": of_rank}
    elif name == "multilabel of cells":
        assert joined["threshold"] == 0.4, "what the command says"
        cut = np.float32(joined["threshold"])
        found = [{key for key, p in row["probabilities"].items() if np.float32(p) >= cut} for row in rows]
        right = sum(len(one & set(other)) for one, other in zip(found, label, strict=True))
        own = {"f1_micro": 2 * right / (sum(map(len, found)) + sum(map(len, label)))}
    elif name == "tag with a CRF":
        own = {"tag_accuracy": sum(row["units_right"] for row in rows) / sum(row["units"] for row in rows)}
    elif name == "siamese with contrastive loss":
        second = [str(int(row["similarity"] >= joined["threshold"])) for row in rows]
        own = {"accuracy": float(np.mean([one == other for one, other in zip(second, label, strict=True)]))}
    else:
        own = {"accuracy": float(np.mean([a == b for a, b in zip(label, prediction, strict=True)]))} if joined else {}
    return joined | own


@pytest.mark.parametrize("name", few_first([*TASKS, *PRETRAINING, *METHODS], "match", "mlm", "retrieve", "freelb"))
def test_a_dry_run_of_every_kind_says_that_it_is_good_and_writes_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(*KINDS[name].overrides(tmp_path), "dry_run=true", f"hydra.run.dir={tmp_path}/run")
    said = capsys.readouterr()
    assert "Every key, type, range, path and rule between groups holds" in said.out
    assert not (tmp_path / "run").exists()
