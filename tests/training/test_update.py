"""The update of whole small runs against numbers worked out otherwise: by hand, by numpy, from what they predict."""

from pathlib import Path

import numpy as np
import pytest

from nlu.runs.predictions import predictions_of
from tests.training.in_process import (
    MODEL,
    PLAIN,
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

ONE_STEP = ("trainer.max_duration=1st", "optimizer.lr=0.1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return sets(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def start(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The weights before the first step."""
    run_dir = tmp_path_factory.mktemp("start") / "run"
    train(*TINY, *data, *STANDING_STILL, "trainer.max_duration=1st", f"hydra.run.dir={run_dir}")
    return tensors(run_dir, "last/model")


def assert_average(average: dict[str, np.ndarray], of: dict[str, np.ndarray], before: dict[str, np.ndarray],
                   share: float) -> None:  # fmt: skip
    """Assert that the average went `share` of the way from where it was to the new weights, in every tensor."""
    assert average.keys() == of.keys() == before.keys()
    for name in average:
        np.testing.assert_allclose(
            average[name], before[name] + share * (of[name] - before[name]), rtol=1e-5, atol=1e-7, err_msg=name
        )


def test_the_moving_average_moves_by_nine_elevenths_and_then_by_nine_twelfths(
    data: tuple[str, ...], start: dict[str, np.ndarray], tmp_path: Path
) -> None:
    # The decay of a young average is (1 + n) / (10 + n) at step n.
    for steps in (1, 2):
        train(*TINY, *data, *ONE_STEP, f"trainer.max_duration={steps}st", f"hydra.run.dir={tmp_path}/{steps}")
    first, second = ({name: tensors(tmp_path / run, f"last/{name}") for name in ("model", "average")} for run in "12")
    assert all(np.abs(first["model"][name] - start[name]).max() > 0.05 for name in start if "position" not in name)
    assert_average(first["average"], first["model"], start, 1 - 2 / 11)
    assert_average(second["average"], second["model"], first["average"], 1 - 3 / 12)


def test_the_decay_of_the_moving_average_never_exceeds_the_configured_one(
    data: tuple[str, ...], start: dict[str, np.ndarray], tmp_path: Path
) -> None:
    train(*TINY, *data, *ONE_STEP, "trainer.ema_decay=0.1", f"hydra.run.dir={tmp_path}/run")
    assert_average(tensors(tmp_path / "run", "last/average"), tensors(tmp_path / "run", "last/model"), start, 0.9)


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


def test_each_example_has_separate_dropout_masks(tmp_path: Path) -> None:
    # All rows are one and the same, so that only the masks can tell one example from another.
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("a b c d e f\tgood\n" * 8 + ("a\tbad\n" if name == "dev" else ""))
    data = (
        "data=files", f"data.train={tmp_path}/train.tsv", f"data.dev={tmp_path}/dev.tsv",
        "data.fields={text: 0, label: 1}", "data.labels=[bad, good]", "model.head_dropout=0.5",
    )  # fmt: skip
    losses = []
    for accumulation in (1, 2, 4):
        train(
            *MODEL, *PLAIN, *data, "trainer.batch_size=1", f"trainer.accumulation={accumulation}",
            "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/{accumulation}",
        )  # fmt: skip
        losses += column(tmp_path / str(accumulation), "loss")
    # The mean of equal losses would be each of them.
    assert min(abs(one - other) for one, other in ((losses[0], losses[1]), (losses[1], losses[2]))) > 1e-4


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_gradient_that_is_not_finite_ends_the_run_with_the_previous_weights(
    data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    options = (*TINY, *data, "trainer.save_interval=1st", "trainer.max_duration=3st")
    with at_backward(2, lambda gradient: gradient * float(value)) as registered:
        train(*options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert f"the gradient norm is {value} at step 2" in capsys.readouterr().err
    kept = tensors(tmp_path / "run", "last/model")
    train(*options, "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/one")
    after_one = tensors(tmp_path / "one", "last/model")
    assert all(np.array_equal(kept[name], after_one[name]) for name in after_one)
    assert np.array_equal(registered["head.linear.bias"].detach().numpy(), kept["head.linear.bias"].astype(np.float32))
    assert not (tmp_path / "run/result.json").exists() and scores(tmp_path / "run", "dev", "loss") == {}
