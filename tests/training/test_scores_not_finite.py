"""A model that computes numbers that are not finite for a row has no score: an evaluation with such a row is none."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import nlu
from nlu.data.collate import Batch
from nlu.models.encoders.bert import Bert
from nlu.runs.records import read_rows
from tests.training.in_process import composed, start
from tests.training.kinds import LOSSES, PRETRAINING, TASKS, Kind, few_first, read
from tests.training.runs import result

KINDS = {**TASKS, **{name: LOSSES[name] for name in ("bce", "taylor")}, **PRETRAINING}
ROWS = 11


@pytest.mark.parametrize("kind", few_first(KINDS, "tag with a CRF", "retrieve", "mlm_pairs"))
def test_an_evaluation_of_numbers_that_are_not_finite_is_never_the_best(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, inner = 0, Bert.embed

    def embed(self: Bert, batch: Batch) -> Tensor:
        nonlocal steps
        found = inner(self, batch)
        if self.training:
            steps += 1
        # The third evaluation, at the last step, is finite again.
        return found * torch.nan if not self.training and 4 <= steps < 6 else found

    monkeypatch.setattr(Bert, "embed", embed)
    options = kind.overrides(tmp_path, train_rows=13, dev_rows=ROWS)
    rate = ("optimizer.lr=1e-1", "trainer.batch_size=4", "trainer.eval_interval=2st", "trainer.max_duration=6st")
    start(composed(*options, *rate, "trainer.ema_decay=0"), tmp_path / "run")
    rows = [row for row in read_rows(tmp_path / "run/valid.tsv") if row["set"] == "dev"]
    names = {row["metric"] for row in rows if row["step"] == 2}
    assert {row["metric"] for row in rows if row["step"] == 4} == names
    assert all(math.isnan(float(row["value"] or "nan")) for row in rows if row["step"] == 4)
    assert all(
        math.isfinite(float(row["value"] or "nan")) for row in rows if row["metric"] == "loss" and row["step"] != 4
    )
    assert result(tmp_path / "run")["best"]["step"] in (2, 6)
    (said,) = [line for line in (tmp_path / "run/log.txt").read_text().splitlines() if "not finite" in line]
    assert f"dev: the model computes numbers that are not finite for {ROWS} of {ROWS} rows" in said
    assert f"dev.{'txt' if (tmp_path / 'dev.txt').exists() else 'jsonl'}:1" in said


@pytest.mark.parametrize("name", ["tag", "siamese with contrastive loss", "regress"])
def test_predictions_of_numbers_that_are_not_finite_are_counted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = TASKS[name].overrides(tmp_path, train_rows=13, dev_rows=ROWS)
    start(composed(*options, "trainer.eval_interval=0", "trainer.max_duration=1st"), tmp_path / "run")
    loaded, rows = nlu.load(tmp_path / "run", batch_size=4), read(tmp_path / "dev.jsonl")
    texts = [{key: value for key, value in row.items() if key not in ("label", "tags")} for row in rows]
    assert loaded.predict(texts) and "not finite" not in caplog.text
    letter, inner = loaded.trained.tokenizer.vocabulary["h"], Bert.embed

    def embed(self: Bert, batch: Batch) -> Tensor:
        return torch.where((batch.tokens_T == letter)[:, None], torch.nan, inner(self, batch))

    monkeypatch.setattr(Bert, "embed", embed)
    wrong = sum("h" in str(row.get("tokens") or [row.get(key) for key in ("text", "text_a", "text_b")]) for row in rows)
    assert 0 < wrong < ROWS and len(loaded.predict(texts)) == ROWS
    assert f"not finite for {wrong} of {ROWS} rows, whose predictions mean nothing" in caplog.text
