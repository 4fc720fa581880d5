"""Few rows: the encoder learns from pairs in a micro-batch, and the head is a logistic regression on its vectors."""

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nlu
from nlu.methods.fewshot import FewShot, Frozen, contrastive
from nlu.runs.predictions import Predictions
from tests.training.in_process import NO_DROPOUT, TINY, composed, start, tensors, train
from tests.training.kinds import Kind, classes, number, read
from tests.training.short_memory import memory_for
from tests.training.test_kinds_in_processes import run_in_two
from tests.training.test_kinds_killed import assert_kills_change_nothing

FEW = Kind(("method=fewshot", "trainer.bucket_batches=1"), classes)
ROWS = np.random.default_rng(0).normal(size=(40, 6)) * [1, 2, 3, 4, 5, 6] + [5, 0, 0, 0, 0, -9]


def pairs_by_hand(vectors, labels, temperature):
    """Compute the loss one example at a time, as equation 2 of Khosla et al. has it, in Python numbers."""
    total = 0.0
    for i, first in enumerate(vectors):
        others = [j for j in range(len(labels)) if j != i]
        cosines = {
            j: float(first @ vectors[j]) / math.sqrt(float(first @ first) * float(vectors[j] @ vectors[j]))
            for j in others
        }
        log_sum = math.log(sum(math.exp(cosines[j] / temperature) for j in others))
        same = [j for j in others if labels[j] == labels[i]]
        total += sum(log_sum - cosines[j] / temperature for j in same) / max(1, len(same))
    return total


@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 0, 1], [0, 1, 2], [0, 0]])
def test_the_loss_is_that_of_each_example_among_the_others(labels):
    vectors = np.random.default_rng(1).normal(size=(len(labels), 5))
    found = contrastive(torch.from_numpy(vectors), torch.tensor(labels), 0.2)
    assert float(found) == pytest.approx(pairs_by_hand(vectors, labels, 0.2), rel=1e-9, abs=1e-12)


def test_a_text_alone_in_its_micro_batch_gives_no_gradient_and_no_nan():
    vectors = torch.ones(1, 4, requires_grad=True)
    contrastive(vectors, torch.tensor([1]), 0.1).backward()
    assert torch.equal(vectors.grad, torch.zeros(1, 4))


def test_the_steps_train_the_encoder_and_leave_the_head_to_the_fit(parts_of):
    parts, method = parts_of(), FewShot()
    assert method.counts(parts.task, parts.batch) == {"contrastive": len(parts.batch)}
    method.backward(parts.task, parts.model, parts.batch, {"contrastive": 1.0}, nullcontext)
    largest = {name: float(value.abs().max()) for name, value in parts.gradients().items()}
    assert max(value for name, value in largest.items() if name.startswith("backbone.")) > 1e-3
    assert all(value == 0 for name, value in largest.items() if name.startswith("head."))


@pytest.mark.parametrize("labels", [2, 3])
def test_the_head_is_the_logistic_regression_of_scikit_learn_on_standardized_vectors(labels):
    # One class more than there are labels, and not the last one.
    label_N = np.array([0, 2, 3][:labels])[np.arange(len(ROWS)) % labels]
    head = Frozen(penalty=10.0).fitted(ROWS.astype(np.float32), label_N, 4)
    logits_NC = ROWS @ head["linear.weight"].astype(np.float64).T + head["linear.bias"]
    probabilities = np.exp(logits_NC) / np.exp(logits_NC).sum(1, keepdims=True)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, tol=1e-6)).fit(ROWS, label_N)
    np.testing.assert_allclose(probabilities[:, np.unique(label_N)], theirs.predict_proba(ROWS), atol=1e-4)
    assert probabilities[:, 1].max() < 1e-9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("few")


@pytest.mark.parametrize("method", ["frozen", "fewshot"])
def test_the_saved_head_is_fitted_to_the_vectors_of_the_saved_weights(method, folder):
    kind = Kind((f"method={method}", "trainer.max_duration=4st", "trainer.eval_interval=2st"), classes)
    overrides = (*kind.overrides(folder / method, train_rows=24), *NO_DROPOUT)
    train(*overrides, f"hydra.run.dir={folder}/{method}/run")
    loaded = nlu.load(folder / method / "run")
    sets = {name: read(folder / method / f"{name}.jsonl") for name in ("train", "dev")}
    vectors = {name: loaded.encode([row["text"] for row in rows]) for name, rows in sets.items()}
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000, tol=1e-6))
    theirs.fit(vectors["train"], [row["label"] for row in sets["train"]])
    expected = theirs.predict_proba(vectors["dev"])
    kept = [record["probabilities"] for record in Predictions(folder / method / "run/predictions/dev.jsonl")]
    found = [[one[name] for name in theirs.classes_] for one in kept]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    # The weights that a later run or command may take from the last state have a fitted head too.
    best, last = (tensors(folder / method / "run", name) for name in ("best-1/model", "last/average"))
    assert last.keys() <= best.keys() and np.abs(last["head.linear.weight"]).max() > 0


def test_a_frozen_encoder_keeps_its_weights_and_fewshot_moves_them(folder):
    def difference(method):
        first = folder / f"{method}-still"
        config = composed(*FEW.overrides(folder / "rows"), f"method={method}", *NO_DROPOUT, "trainer.ema_decay=0")
        start(config.repeat(seed=1, fold=None), first)
        plain = folder / f"{method}-initial"
        still = ("optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.max_duration=1st", "method=plain")
        start(composed(*FEW.overrides(folder / "rows"), *still, "trainer.ema_decay=0"), plain)
        one, other = (tensors(run, "last/model") for run in (first, plain))
        return max(np.abs(one[name] - other[name]).max() for name in one if name.startswith("backbone."))

    assert difference("frozen") < 1e-25 < 1e-4 < difference("fewshot")


def test_a_run_of_fewshot_killed_in_every_step_ends_with_the_same_bytes(tmp_path):
    assert_kills_change_nothing(FEW, tmp_path)


def test_two_processes_fit_the_head_of_one(tmp_path):
    config = composed(*Kind(("method=frozen",), classes).overrides(tmp_path / "rows"), *NO_DROPOUT)
    start(config, tmp_path / "one")
    run_in_two([(config, tmp_path / "two")], tmp_path)
    one, two = (tensors(tmp_path / name, "best-1/model") for name in ("one", "two"))
    for name in ("head.linear.weight", "head.linear.bias"):
        assert np.array_equal(one[name], two[name])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Kind(("task=regress",), number), "the target is number"),
        (Kind(("head=mlp",), classes), "head=linear"),
        (Kind(("method.head_rows=1",), classes), "(1, method.head_rows is 1) are of one class"),
        (Kind(("loss=bce",), classes), "set loss=cross_entropy"),
        (Kind((), classes, ("model=static", "model.embedding_size=8")), "set that to false"),
    ],
)
def test_a_run_whose_head_cannot_be_fitted_is_refused(kind, said, tmp_path, capsys):
    overrides = kind.overrides(tmp_path / "rows")
    train(*overrides, "method=fewshot", f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err and not Path(tmp_path, "run").exists()


def test_a_micro_batch_whose_rows_are_compared_is_not_divided(tmp_path, capsys):
    with memory_for(4):
        train(*FEW.overrides(tmp_path / "rows"), f"hydra.run.dir={tmp_path}/run", status=2)
    assert "which is not divided, because FewShot compares its examples" in capsys.readouterr().err


def test_a_long_text_is_read_by_the_mean_of_its_windows(tmp_path):
    options = ("method=frozen", "data.long=windows", "data.max_len=8", "data.stride=2")
    train(*Kind(options, classes).overrides(tmp_path / "rows", train_rows=24), f"hydra.run.dir={tmp_path}/run")
    assert (tmp_path / "run/result.json").is_file()


def test_the_choice_alone_makes_a_run_of_few_rows():
    config = composed(*(one for one in TINY if not one.startswith("trainer.")), "method=fewshot", "data=tnews")
    assert str(config.trainer.eval_interval) == "0"
    assert config.trainer.bucket_batches == 1 and config.trainer.max_duration.endswith("ep")
