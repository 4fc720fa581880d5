"""Which differences a continued run may have, which are refused, and the message for each."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.data.order import Order
from nlu.runs.checkpoint import Checkpoints, held_steps
from nlu.training import best
from tests.training.in_process import TINY, Killed, composed, sets, start, train
from tests.training.runs import result

OPTIONS = (
    *TINY, "trainer.max_duration=2st", "trainer.eval_interval=1st", "trainer.save_interval=0",
    "trainer.major_metric=loss", "resume=auto",
)  # fmt: skip


@pytest.fixture
def broken(tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder of a run that was killed at its second step, with a best of the first, and its overrides."""
    options = (*OPTIONS, *sets(tmp_path))
    dies_when_called(2, options, tmp_path / "run")
    return tmp_path / "run", options


def dies_when_called(number: int, options: tuple[str, ...], run_dir: Path) -> None:
    """Run until the last state is to be saved for the given time: by then a new best is there, if there is one."""
    save, calls = Checkpoints.save_last, []

    def save_or_die(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == number:
            raise Killed
        save(*arguments)

    with mock.patch.object(Checkpoints, "save_last", save_or_die), pytest.raises(Killed):
        start(composed(*options), run_dir)


def state_file(run_dir: Path) -> Path:
    return run_dir / "checkpoints/last/state.json"


def change(run_dir: Path, *keys: str, to: Any) -> None:
    """Set a value in the saved state."""
    saved = json.loads(state_file(run_dir).read_text())
    node = saved
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = to
    state_file(run_dir).write_text(json.dumps(saved))


def warned_of(run_dir: Path) -> list[str]:
    """Return the warnings in the log of a run, except that it learned nothing, which is true after two steps."""
    lines = (run_dir / "log.txt").read_text().splitlines()
    return [line for line in lines if "WARNING" in line and "for every example" not in line]


def test_a_best_that_the_saved_state_knows_outlives_a_kill_before_the_next_state(
    broken: tuple[Path, tuple[str, ...]],
) -> None:
    run_dir, options = broken
    assert json.loads(state_file(run_dir).read_text())["state"]["step"] == 1
    assert set(held_steps(run_dir / "checkpoints")) == {1, 2}, "the second step was better"
    score_set = best.score_set

    def scores_otherwise(*arguments: Any, **named: Any) -> Any:
        scored = score_set(*arguments, **named)
        scored.scores.metrics["loss"] += 10
        return scored

    # Another number of threads may round so that the repeated step is not better.
    with mock.patch.object(best, "score_set", scores_otherwise):
        start(composed(*options), run_dir)
    kept = run_dir / "checkpoints/best-1"
    assert result(run_dir)["best"]["step"] == json.loads((kept / "score.json").read_text())["step"] == 1
    assert (kept / "model.safetensors").is_file()
    assert set(held_steps(run_dir / "checkpoints")) == {1}


@pytest.mark.parametrize(
    ("what", "before", "said"),
    [
        ("threads", 7, "saved with threads 7, continued with 1"),
        # Its generators give the order and the dropout masks.
        ("numpy", "1.17.0", f"saved with numpy 1.17.0, continued with {np.__version__}"),
    ],
)
def test_a_change_that_affects_bytes_is_reported_and_the_run_continues(
    broken: tuple[Path, tuple[str, ...]], what: str, before: Any, said: str
) -> None:
    run_dir, options = broken
    change(run_dir, "order", "machine", what, to=before)
    start(composed(*options), run_dir)
    (warning,) = warned_of(run_dir)
    assert said in warning and "the bytes may differ from an unbroken run" in warning
    assert result(run_dir)["steps"] == 2


def test_nothing_is_reported_if_nothing_changed(broken: tuple[Path, tuple[str, ...]]) -> None:
    run_dir, options = broken
    start(composed(*options), run_dir)
    assert warned_of(run_dir) == []


def test_another_vocabulary_of_the_same_rows_is_reported(
    broken: tuple[Path, tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, options = broken
    path = run_dir / "checkpoints" / "last" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    # Two words of the same frequency in the other order: every shape is the same.
    (first, a), (second, b) = list(vocab.items())[-2:]
    content["model"]["vocab"] |= {first: b, second: a}
    path.write_text(json.dumps(content))
    train(*options, f"hydra.run.dir={run_dir}", status=2)
    said = capsys.readouterr().err
    assert "was trained with another vocabulary than the one that this version builds" in said
    assert f"model.pretrained={run_dir}/last" in said and "damaged" not in said


def test_a_state_of_an_earlier_version_is_refused_with_what_can_be_taken_of_it(
    broken: tuple[Path, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, options = broken
    # Before losses had terms.
    change(run_dir, "state", "window", to={"sum": 1.0, "count": 8, "gnorm_sum": 1.0, "clipped": 0, "steps": 1})
    train(*options, f"hydra.run.dir={run_dir}", status=2)
    said = capsys.readouterr().err
    assert "was saved by an earlier version, whose state has different parts" in said and "Traceback" not in said
    assert "damaged" not in said and "model.pretrained=" in said


def test_a_state_of_another_accumulation_is_refused(broken: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    run_dir, options = broken
    with pytest.raises(UserError, match="accumulation"):
        start(composed(*options, f"resume={run_dir}", "trainer.accumulation=2"), tmp_path / "other")


def test_a_run_with_windows_trains_on_them_one_after_another(tmp_path: Path) -> None:
    options = (*OPTIONS, *sets(tmp_path), "trainer.window_rows=16", "trainer.batch_size=8", "trainer.max_duration=3st")
    taken, take = [], Order.step
    with mock.patch.object(Order, "step", lambda order, number: taken.append(take(order, number)) or taken[-1]):
        start(composed(*options), tmp_path / "run")
    assert sorted(np.concatenate([*taken[0], *taken[1]]).tolist()) == list(range(16))
    assert min(taken[2][0]) >= 16
