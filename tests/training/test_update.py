"""The update of whole small runs against numbers worked out otherwise: by hand, by numpy, from what they predict."""

from pathlib import Path

import numpy as np
import pytest

from nlu.runs.predictions import predictions_of
from tests.training.in_process import (
    STANDING_STILL,
    TINY,
    at_backward,
    column,
    scores,
    sets,
    tensors,
    train,
)
from tests.training.runs import result


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return sets(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def start(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The weights before the first step."""
    run_dir = tmp_path_factory.mktemp("start") / "run"
    train(*TINY, *data, *STANDING_STILL, "trainer.max_duration=1st", f"hydra.run.dir={run_dir}")
    return tensors(run_dir, "last/model")


def test_the_average_is_scored_and_kept_as_best_while_the_weights_train_on(
    data: tuple[str, ...], tmp_path: Path
) -> None:
    run_dir, best = tmp_path / "run", tmp_path / "run/checkpoints/best-1"
    train(*TINY, *data, "trainer.max_duration=3st", "trainer.eval_interval=0", f"hydra.run.dir={run_dir}")
    kept, average, last = (tensors(run_dir, name) for name in ("best-1/model", "last/average", "last/model"))
    assert kept.keys() == average.keys()
    assert all(np.array_equal(kept[name], average[name]) for name in kept)
    assert not any(np.array_equal(last[name], average[name]) for name in kept)
    from_it = [f"model.pretrained={best}", *STANDING_STILL, "trainer.max_duration=1st", "trainer.ema_decay=0"]
    train(*TINY, *data, *from_it, f"hydra.run.dir={tmp_path}/again")
    train(*TINY, *data, *from_it, f"model.pretrained={run_dir}/checkpoints/last", f"hydra.run.dir={tmp_path}/own")
    loss, again, own = (result(tmp_path / name)["metrics"]["dev"]["loss"] for name in ("run", "again", "own"))
    assert loss == pytest.approx(again, rel=1e-6)
    assert abs(loss - own) > 1e-4


def test_loss_gradient_and_update_of_a_step_follow_from_earlier_predictions(
    data: tuple[str, ...], start: dict[str, np.ndarray], tmp_path: Path
) -> None:
    # A step over all 27 rows, in micro-batches of 8, 8, 8 and 3. Scored before it, the same rows say everything:
    # dL/db is the mean over the rows of (probabilities - one of the label).
    train_file = next(entry for entry in data if entry.startswith("data.train=")).partition("=")[2]
    options = (*TINY, *data, f"data.dev={train_file}", "trainer.max_duration=1st", "trainer.accumulation=4")
    train(*options, *STANDING_STILL, f"hydra.run.dir={tmp_path}/before")
    rows = list(predictions_of(tmp_path / "before", "dev"))
    assert len(rows) == 27
    of_bad_N = np.array([row["probability"] if row["prediction"] == "bad" else 1 - row["probability"] for row in rows])
    is_bad_N = np.array([row["label"] == "bad" for row in rows])
    chosen_N = np.where(is_bad_N, of_bad_N, 1 - of_bad_N)
    gradient = np.mean(of_bad_N - is_bad_N)
    gradient_C = np.array([gradient, -gradient])
    clip_norm = 0.01
    train(
        *options, "optimizer.lr=0.1", "optimizer.weight_decay=0.5", f"trainer.clip_norm={clip_norm}",
        f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    train(*options, "trainer.clip_norm=0", f"hydra.run.dir={tmp_path}/unclipped")
    assert column(tmp_path / "run", "loss") == [pytest.approx(-np.log(chosen_N).mean(), rel=1e-5)]
    assert column(tmp_path / "run", "examples") == [27]
    moments = tensors(tmp_path / "unclipped", "last/optimizer")
    np.testing.assert_allclose(moments["exp_avg:head.linear.bias"], 0.1 * gradient_C, rtol=1e-4)
    np.testing.assert_allclose(moments["exp_avg_sq:head.linear.bias"], 0.001 * gradient_C**2, rtol=1e-4)
    squares = (np.sum((10 * value) ** 2) for key, value in moments.items() if key.startswith("exp_avg:"))
    gnorm = np.sqrt(sum(squares))
    assert column(tmp_path / "run", "gnorm") == [pytest.approx(gnorm, rel=1e-4)]
    assert (column(tmp_path / "run", "clipped"), column(tmp_path / "unclipped", "clipped")) == ([1], [0])
    clipped_C = gradient_C * clip_norm / gnorm
    clipped = tensors(tmp_path / "run", "last/optimizer")
    np.testing.assert_allclose(clipped["exp_avg:head.linear.bias"], 0.1 * clipped_C, rtol=1e-3)
    # Adam's first step goes by rate * g / (|g| + eps); a weight decays apart from it, a bias does not.
    after = tensors(tmp_path / "run", "last/model")
    np.testing.assert_allclose(
        after["head.linear.bias"], start["head.linear.bias"] - 0.1 * clipped_C / (np.abs(clipped_C) + 1e-6), rtol=1e-4
    )
    weight_gradient = 10 * clipped["exp_avg:head.linear.weight"]
    np.testing.assert_allclose(
        after["head.linear.weight"],
        start["head.linear.weight"] * (1 - 0.1 * 0.5) - 0.1 * weight_gradient / (np.abs(weight_gradient) + 1e-6),
        rtol=1e-3, atol=1e-5,
    )  # fmt: skip


def test_a_gradient_that_is_not_finite_ends_the_run_with_the_previous_weights(
    data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*TINY, *data, "trainer.save_interval=1st", "trainer.max_duration=3st")
    with at_backward(2, lambda gradient: gradient * float("nan")) as registered:
        train(*options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert "the gradient norm is nan at step 2" in capsys.readouterr().err
    kept = tensors(tmp_path / "run", "last/model")
    train(*options, "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/one")
    after_one = tensors(tmp_path / "one", "last/model")
    assert all(np.array_equal(kept[name], after_one[name]) for name in after_one)
    assert np.array_equal(registered["head.linear.bias"].detach().numpy(), kept["head.linear.bias"].astype(np.float32))
    assert not (tmp_path / "run/result.json").exists() and scores(tmp_path / "run", "dev", "loss") == {}
