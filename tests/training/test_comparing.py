"""A loss that compares the rows of a step: 1,024 in pieces are one pass over all, and a kill changes no byte."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nlu.tasks.siamese import _no_negatives
from tests.training.in_process import NO_DROPOUT, composed, killed_in_backward, start, tensors, train
from tests.training.kinds import KINDS
from tests.training.runs import result

ROWS = 1024
KIND = KINDS["siamese with InfoNCE"]


def step_of(folder: Path, batch_size: int, *options: str) -> dict[str, np.ndarray]:
    """Return the gradient of one step over 1,024 pairs, by parameter."""
    own = (f"trainer.batch_size={batch_size}", f"trainer.accumulation={ROWS // batch_size}", "loss.temperature=0.5")
    config = composed(
        *KIND.overrides(folder, train_rows=ROWS), *NO_DROPOUT, *own, "trainer.max_duration=1st", "trainer.clip_norm=0",
        "optimizer.betas=[0.5,0.999]", *options,
    )  # fmt: skip
    start(config, folder / str(batch_size))
    moments = tensors(folder / str(batch_size), "last/optimizer")
    return {key: 2 * value for key, value in moments.items() if key.startswith("exp_avg:")}


def test_the_gradient_of_1024_pairs_in_pieces_is_that_of_one_pass(tmp_path: Path) -> None:
    whole = step_of(tmp_path, ROWS)
    largest = max(np.abs(value).max() for value in whole.values())
    for size in (32, 256):
        pieces = step_of(tmp_path, size)
        difference = max(np.abs(pieces[key] - value).max() for key, value in whole.items())
        assert difference <= 1e-6 and largest > 0.1


def test_a_run_killed_between_the_pieces_of_a_step_continues_to_the_same_bytes(tmp_path: Path) -> None:
    options = KIND.overrides(tmp_path, train_rows=24), "trainer.batch_size=4", "trainer.accumulation=2"
    config = composed(*options[0], *options[1:], "model.dropout=0.3", "trainer.max_duration=6st",
                      "trainer.save_interval=2st", "resume=auto")  # fmt: skip
    start(config, tmp_path / "whole")
    # Steps 3 and 4 have two pieces each, after the outputs of both.
    with killed_in_backward(6):
        start(config, tmp_path / "killed")
    start(config, tmp_path / "killed")
    for name in ("model", "optimizer"):
        once, again = tensors(tmp_path / "whole", f"last/{name}"), tensors(tmp_path / "killed", f"last/{name}")
        assert all(np.array_equal(value, again[key]) for key, value in once.items())


def test_answers_and_texts_that_are_equal_or_repeated_are_no_negatives() -> None:
    # Rows: (a, x), (b, y), (a, y), (c, x), (d, a), (e, z) which does not match.
    first, second, labels = [0, 1, 0, 2, 3, 4], [10, 11, 11, 10, 0, 12], [1, 1, 1, 1, 1, 0]
    of_first, of_second = _no_negatives(torch.tensor(labels), torch.tensor(first), torch.tensor(second))
    pairs = list(zip(first, second, labels, strict=True))
    answers = {(one, other) for one, other, label in pairs if label}

    def is_left_out(query: int, candidate: int) -> bool:
        return (query, candidate) in answers or query == candidate

    for row in range(6):
        for column in range(6):
            repeats = second[column] in second[:column], first[column] in first[:column]
            expected = is_left_out(first[row], second[column]) or repeats[0]
            assert of_first[row, column].item() == (expected and row != column)
            expected = is_left_out(first[column], second[row]) or repeats[1]
            assert of_second[row, column].item() == (expected and row != column)


@pytest.mark.parametrize("loss", ["cosent", "angle", "cosine_mse"])
def test_pairs_with_a_number_are_learned_and_scored_by_correlation(tmp_path: Path, loss: str) -> None:
    config = composed(*KINDS["siamese of numbers"].overrides(tmp_path), f"loss={loss}", "trainer.max_duration=3ep",
                      *(("loss.lowest=-10", "loss.highest=20") if loss == "cosine_mse" else ()))  # fmt: skip
    start(config, tmp_path / "run")
    assert set(result(tmp_path / "run")["metrics"]["dev"]) == {"pearson", "spearman"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("loss=angle", "task.dims=[3]"), "but these have 3 numbers"),
        (("loss=cosent", "task.dims=[4,999]"), "task.dims has 999, but vectors have"),
    ],
)
def test_dimensions_that_vectors_do_not_have_are_refused(
    tmp_path: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*KINDS["siamese of numbers"].overrides(tmp_path), *options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err
