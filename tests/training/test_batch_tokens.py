"""Runs whose micro-batches are filled by tokens (trainer.batch_tokens)."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.data.order import TokenOrder
from nlu.runs.records import read_rows
from tests.training.in_process import composed, start, train
from tests.training.kinds import KINDS
from tests.training.runs import result

ROWS = 24
DROPOUT = ("model.dropout=0.3", "model.attention_dropout=0.3", "model.head_dropout=0.3")
TOKENS = ("trainer.batch_tokens=50", "trainer.max_duration=2ep", "trainer.eval_interval=0.5ep", *DROPOUT)


def overrides_of(folder: Path, *more: str, kind: str = "classify") -> tuple[str, ...]:
    return *KINDS[kind].overrides(folder, train_rows=ROWS), *TOKENS, *more


def test_every_row_is_trained_on_once_an_epoch_in_steps_that_fit(tmp_path: Path) -> None:
    taken, take = [], TokenOrder.step
    with mock.patch.object(TokenOrder, "step", lambda order, number: taken.append(take(order, number)) or taken[-1]):
        train(*overrides_of(tmp_path), f"hydra.run.dir={tmp_path}/run")
    assert len({len(step) for (step,) in taken}) > 1
    assert np.concatenate([step for (step,) in taken]).tolist() != list(range(ROWS)) * 2
    assert sorted(np.concatenate([step for (step,) in taken]).tolist()) == sorted([*range(ROWS)] * 2)
    rows = read_rows(tmp_path / "run/train.tsv")
    counts = np.cumsum([len(step) for (step,) in taken])
    assert [int(row["examples"]) for row in rows] == counts.tolist()
    assert result(tmp_path / "run")["examples"] == 2 * ROWS and result(tmp_path / "run")["steps"] == len(taken)


def test_a_state_of_another_number_of_tokens_is_refused(tmp_path: Path) -> None:
    overrides = overrides_of(tmp_path)
    start(composed(*overrides), tmp_path / "run")
    given = (f"resume={tmp_path}/run", "trainer.max_duration=3ep")
    with pytest.raises(UserError, match="trainer.batch_tokens: 50 there, 60 here"):
        start(composed(*overrides, *given, "trainer.batch_tokens=60"), tmp_path / "other")
    # The number of rows decides only batches of evaluations, on which no score depends.
    start(composed(*overrides, *given, "trainer.batch_size=3"), tmp_path / "longer")
    assert result(tmp_path / "longer")["examples"] == 3 * ROWS


def test_an_example_that_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = overrides_of(tmp_path)
    path = tmp_path / "train.jsonl"
    lines = path.read_text().splitlines()
    lines[6] = '{"text": "a b c d e f g h a b c d", "label": "good"}'
    path.write_text("".join(f"{line}\n" for line in lines))
    train(*overrides, "trainer.batch_tokens=13", f"hydra.run.dir={tmp_path}/run", status=2)
    assert (
        f"{path}:7: the example has 14 tokens, more than trainer.batch_tokens, 13; set that to >= 14, or data.max_len"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()
