"""Every loss that is a sum over rows adds up from parts, and its values are those of its formula in numpy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlu.config.errors import UserError
from nlu.losses.bce import Bce
from nlu.losses.bce_multilabel import BceMultilabel
from nlu.losses.contrastive import Contrastive
from nlu.losses.cosine_mse import CosineMse
from nlu.losses.cross_entropy import CrossEntropy
from nlu.losses.focal import Focal
from nlu.losses.kl import Kl
from nlu.losses.mse import Mse
from nlu.losses.mse_logits import MseLogits
from nlu.losses.taylor import Taylor

NAMES = ["a", "b", "c", "d"]
COUNTS = {"a": 6, "b": 3, "c": 1}
rng = np.random.default_rng(0)
LOGITS_NC = rng.normal(size=(7, 4)) * 2
LABELS_N = np.array([0, 1, 2, 3, 3, 0, 1])
SETS_NC = rng.integers(0, 2, (7, 4))
NUMBERS_N = rng.normal(size=7) * 3
COSINES_N1 = np.array([[0.9], [-0.4], [0.2], [1.0], [1.0], [0.45], [0.7]])
PAIRS_N = np.array([1, 0, 1, 0, 1, 0, 0])


def softmax(logits_NC: np.ndarray) -> np.ndarray:
    powers_NC = np.exp(logits_NC)
    return powers_NC / powers_NC.sum(1, keepdims=True)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


P_N = softmax(LOGITS_NC)[np.arange(7), LABELS_N]
BALANCED_N = np.array([11 / 24, 11 / 12, 11 / 4, 11 / 4])[LABELS_N]
"""rows / (classes * rows of the class); d does not occur and counts as if it did once"""
ONE_HOT_NK = np.eye(4)[LABELS_N][:, 1:]
WITH_WEIGHTS_NC = SETS_NC * np.array([4 / 6, 7 / 3, 9, 9])
"""rows without the label over rows with it, of 10 rows"""
DIFFERENCE_N = np.abs(LOGITS_NC[:, 0] - NUMBERS_N)
TARGETS_NC = rng.normal(size=(7, 4)) * 2
"""logits of soft targets"""
ONE_CLASS_NC = np.where(np.eye(4)[LABELS_N] > 0, 0.0, -np.inf)
"""logits of the probability 1 for the label"""


def divergence(temperature: float) -> np.ndarray:
    p_NC, q_NC = softmax(TARGETS_NC / temperature), softmax(LOGITS_NC / temperature)
    return temperature**2 * (p_NC * np.log(p_NC / q_NC)).sum(1)


CASES: dict[str, tuple[Any, np.ndarray, np.ndarray, np.ndarray]] = {
    "cross_entropy": (CrossEntropy(), LOGITS_NC, LABELS_N, -np.log(P_N)),
    "cross_entropy, weights by name": (
        CrossEntropy(class_weights={"b": 3.0, "d": 0.0}), LOGITS_NC, LABELS_N,
        -np.log(P_N) * np.array([1, 3, 1, 0])[LABELS_N],
    ),
    "cross_entropy, balanced": (
        CrossEntropy(class_weights="inverse_frequency"), LOGITS_NC, LABELS_N, -np.log(P_N) * BALANCED_N,
    ),
    "focal 0": (Focal(gamma=0.0), LOGITS_NC, LABELS_N, -np.log(P_N)),
    "focal 2": (Focal(), LOGITS_NC, LABELS_N, -np.log(P_N) * (1 - P_N) ** 2),
    "focal 0.5, weights": (
        Focal(gamma=0.5, class_weights={"a": 0.25}), LOGITS_NC, LABELS_N,
        -np.log(P_N) * (1 - P_N) ** 0.5 * np.array([0.25, 1, 1, 1])[LABELS_N],
    ),
    "taylor 1": (Taylor(taylor_n=1), LOGITS_NC, LABELS_N, 1 - P_N),
    "taylor 2": (Taylor(), LOGITS_NC, LABELS_N, (1 - P_N) + (1 - P_N) ** 2 / 2),
    "taylor 400": (Taylor(taylor_n=400), LOGITS_NC, LABELS_N, -np.log(P_N)),
    "bce": (
        Bce(), LOGITS_NC, LABELS_N,
        -(ONE_HOT_NK * np.log(sigmoid(LOGITS_NC[:, 1:]))
          + (1 - ONE_HOT_NK) * np.log(1 - sigmoid(LOGITS_NC[:, 1:]))).mean(1),
    ),
    "bce_multilabel": (
        BceMultilabel(), LOGITS_NC, SETS_NC,
        -(SETS_NC * np.log(sigmoid(LOGITS_NC)) + (1 - SETS_NC) * np.log(1 - sigmoid(LOGITS_NC))).mean(1),
    ),
    "bce_multilabel, balanced": (
        BceMultilabel(positive_weights="inverse_frequency"), LOGITS_NC, SETS_NC,
        -(WITH_WEIGHTS_NC * np.log(sigmoid(LOGITS_NC)) + (1 - SETS_NC) * np.log(1 - sigmoid(LOGITS_NC))).mean(1),
    ),
    "mse": (Mse(), LOGITS_NC[:, :1], NUMBERS_N, DIFFERENCE_N**2),
    "mse, huber": (
        Mse(huber_delta=1.5), LOGITS_NC[:, :1], NUMBERS_N,
        np.where(DIFFERENCE_N <= 1.5, DIFFERENCE_N**2 / 2, 1.5 * (DIFFERENCE_N - 0.75)),
    ),
    "kl": (Kl(), LOGITS_NC, TARGETS_NC, divergence(1)),
    "kl at a temperature": (Kl(temperature=3.0), LOGITS_NC, TARGETS_NC, divergence(3)),
    "kl from one class": (Kl(), LOGITS_NC, ONE_CLASS_NC, -np.log(P_N)),
    "mse_logits": (MseLogits(), LOGITS_NC, TARGETS_NC, ((LOGITS_NC - TARGETS_NC) ** 2).mean(1)),
    "cosine_mse": (
        CosineMse(lowest=-3.0, highest=5.0), COSINES_N1, NUMBERS_N, (COSINES_N1[:, 0] - (NUMBERS_N + 3) / 8) ** 2,
    ),
    "contrastive": (
        Contrastive(), COSINES_N1, PAIRS_N, np.array([0.1**2 / 2, 0, 0.8**2 / 2, 0.5**2 / 2, 0, 0, 0.2**2 / 2]),
    ),
    "contrastive, euclidean": (
        Contrastive(distance="euclidean", margin=1.2), COSINES_N1, PAIRS_N,
        np.array([0.1, 0, 0.8, 1.2**2 / 2, 0, (1.2 - math.sqrt(1.1)) ** 2 / 2, (1.2 - math.sqrt(0.6)) ** 2 / 2]),
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request):
    loss, logits, labels, expected_N = CASES[request.param]
    loss.bind(NAMES[:2] if isinstance(loss, Contrastive) else NAMES, COUNTS, examples=10)
    return loss, torch.from_numpy(logits).float(), torch.from_numpy(labels), expected_N


def test_each_row_has_the_value_of_the_formula(case):
    loss, logits, labels, expected_N = case
    tolerance = 1e-3 if getattr(loss, "distance", "") == "euclidean" else 1e-5
    np.testing.assert_allclose(loss.per_row(logits, labels).numpy(), expected_N, atol=tolerance, rtol=1e-4)


def test_the_loss_is_the_sum_of_its_rows_and_parts_add_up_to_the_whole(case):
    loss, logits, labels, expected_N = case
    assert loss.by_row and loss(logits, labels).dtype == torch.float32
    parts = [loss(logits[part], labels[part]) for part in (slice(0, 1), slice(1, 6), slice(6, 6), slice(6, 7))]
    torch.testing.assert_close(sum(parts), loss(logits, labels))
    np.testing.assert_allclose(loss(logits, labels).item(), expected_N.sum(), rtol=1e-3)


def test_no_rows_give_a_zero_that_has_a_gradient(case):
    loss, logits, labels, _ = case
    none = logits[:0].clone().requires_grad_()
    total = loss(none, labels[:0])
    total.backward()
    assert total.item() == 0 and none.grad is not None


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_gradients_are_finite_even_where_rows_are_certainly_right_or_wrong(case, size):
    loss, logits, labels, _ = case
    logits = (logits.sign() if logits.shape[1] == 1 else logits * size).requires_grad_()
    loss(logits, labels).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_smoothing_gives_its_share_to_all_classes_alike(label_smoothing):
    logits_NC, labels_N = torch.from_numpy(LOGITS_NC).float(), torch.from_numpy(LABELS_N)
    targets_NC = (1 - label_smoothing) * F.one_hot(labels_N, 4) + label_smoothing / 4
    found = CrossEntropy(label_smoothing=label_smoothing)(logits_NC, labels_N)
    torch.testing.assert_close(found, -(targets_NC * logits_NC.log_softmax(1)).sum())


def test_a_smoothed_row_is_weighed_by_its_own_class():
    logits_NC, labels_N = torch.from_numpy(LOGITS_NC).float(), torch.from_numpy(LABELS_N)
    loss = CrossEntropy(label_smoothing=0.1, class_weights={"b": 3.0, "d": 0.0})
    loss.bind(NAMES, COUNTS)
    targets_NC = 0.9 * F.one_hot(labels_N, 4) + 0.1 / 4
    row_N = -(targets_NC * logits_NC.log_softmax(1)).sum(1) * torch.tensor([1.0, 3.0, 1.0, 0.0])[labels_N]
    torch.testing.assert_close(loss.per_row(logits_NC, labels_N), row_N)
    torch.testing.assert_close(loss(logits_NC, labels_N), row_N.sum())


def test_a_row_that_no_class_claims_is_given_to_the_first():
    logits_NC = torch.tensor([[9.0, -1.0, -2.0], [-9.0, 0.1, 2.0], [0.0, 1.5, 1.0]])
    for threshold, decided in ((0.5, [0, 2, 1]), (0.85, [0, 2, 0])):
        loss = Bce(threshold=threshold)
        loss.take_names(NAMES[:3])
        assert loss.decide(logits_NC).tolist() == decided


@pytest.mark.parametrize("threshold", [0.0, 1e-40, 0.25, 0.85, 1.0])
def test_the_logit_of_the_first_class_makes_the_largest_logit_what_is_decided(threshold):
    values = torch.tensor([-103.3, -92.5, -91.5, -17.5, -1.2, -1.0, 1.7, 1.8, 16.0, 16.9, 17.2, 17.5, 40.0])
    others_NK = torch.cartesian_prod(values, values)
    loss = Bce(threshold=threshold)
    loss.take_names(NAMES[:3])
    logits_NC = torch.cat([torch.full((len(others_NK), 1), 7.0), others_NK], dim=1)
    with_first_NC = torch.cat([torch.full((len(others_NK), 1), loss.logit_of_first), others_NK], dim=1)
    assert torch.equal(loss.decide(logits_NC), with_first_NC.argmax(1))


@pytest.mark.parametrize("loss", [CrossEntropy, Focal])
def test_weights_of_classes_that_do_not_exist_are_refused_all_at_once(loss):
    with pytest.raises(UserError) as caught:
        loss(class_weights={"e": 1.0, "a": 2.0, "bb": 1.0}).bind(NAMES, COUNTS)
    assert [problem.partition(";")[0] for problem in caught.value.problems] == [
        "loss.class_weights.e: unknown class", "loss.class_weights.bb: unknown class",
    ]  # fmt: skip


def test_classes_that_are_numbers_may_be_written_as_numbers():
    # A shell and YAML make whole numbers of {0: 1, 1: 3}.
    found, wanted = (CrossEntropy(class_weights=weights) for weights in ({0: 1.0, 1: 3.0}, {"0": 1.0, "1": 3.0}))
    for loss in (found, wanted):
        loss.bind(["0", "1"])
    logits_NC, labels_N = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    assert torch.equal(found(logits_NC, labels_N), wanted(logits_NC, labels_N))
    wrong = CrossEntropy(class_weights={2: 1.0})
    with pytest.raises(UserError, match="loss.class_weights.2: unknown class"):
        wrong.bind(["0", "1"])


def test_inverse_frequency_without_occurrences_is_refused():
    with pytest.raises(UserError, match="loss.class_weights is inverse_frequency, but the frequency of each"):
        CrossEntropy(class_weights="inverse_frequency").bind(NAMES)


def test_balanced_weights_make_every_class_weigh_alike_in_all():
    loss = CrossEntropy(class_weights="inverse_frequency")
    loss.bind(["a", "b"], {"a": 30, "b": 10})
    labels_N = torch.tensor([0] * 30 + [1] * 10)
    values_N = loss.per_row(torch.zeros(40, 2), labels_N)
    assert values_N[:30].sum().item() == pytest.approx(values_N[30:].sum().item())
    assert values_N.sum().item() == pytest.approx(40 * math.log(2))


def test_a_loss_refuses_classes_and_heads_that_it_does_not_fit():
    with pytest.raises(UserError, match="loss=bce rejects rows to the first class, but the only class is a"):
        Bce().bind(["a"])
    Bce().bind(["a", "b"])
    with pytest.raises(UserError, match="loss=contrastive needs two classes, but the data has 4"):
        Contrastive().bind(NAMES)
    with pytest.raises(UserError, match="reads the cosine of two texts.* set head=sides"):
        Contrastive()(torch.zeros(2, 2), torch.zeros(2))


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_gradient_of_kl_is_the_temperature_times_the_difference_of_probabilities(temperature):
    logits_NC = torch.from_numpy(LOGITS_NC).float().requires_grad_()
    Kl(temperature=temperature)(logits_NC, torch.from_numpy(TARGETS_NC).float()).backward()
    p_NC, q_NC = softmax(TARGETS_NC / temperature), softmax(LOGITS_NC / temperature)
    np.testing.assert_allclose(logits_NC.grad.numpy(), temperature * (q_NC - p_NC), atol=1e-5)


def test_at_a_high_temperature_kl_is_half_the_squared_difference_of_logits():
    logits_NC, targets_NC = (x - x.mean(1, keepdims=True) for x in (LOGITS_NC, TARGETS_NC))
    gradients = []
    for loss in (Kl(temperature=300.0), MseLogits()):
        given_NC = torch.from_numpy(logits_NC).float().requires_grad_()
        loss(given_NC, torch.from_numpy(targets_NC).float()).backward()
        gradients.append(given_NC.grad.numpy())
    np.testing.assert_allclose(gradients[0], gradients[1] / 2, atol=0.02)
