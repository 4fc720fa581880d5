"""Losses in which the term of a row depends on the others of its micro-batch, against their formulas in numpy."""

import numpy as np
import pytest
import torch

from nlu.config.errors import UserError
from nlu.losses.circle import Circle
from nlu.losses.cosent import Angle, Cosent
from nlu.losses.ghm_c import GhmC
from nlu.losses.info_nce import InfoNce

LOGITS_NC = torch.tensor([[0.3, 1.2, -2.0], [2.0, 0.1, 0.2], [-1.0, -1.5, 3.0], [0.0, 4.0, 0.0]])
LABELS_N = torch.tensor([1, 0, 2, 0])
ALL = [GhmC(), Circle(), Circle(ce_weight=0.5), InfoNce()]


def inputs_of(loss):
    """Logits and labels of a shape that the loss reads."""
    generator = torch.Generator().manual_seed(0)
    columns = {GhmC: 3, Circle: 2, InfoNce: 6}[type(loss)]
    return torch.randn(6, columns, generator=generator), torch.tensor([0, 1, 1, 0, 1, 0])


def test_ghm_counts_a_value_the_less_the_more_have_gradients_of_its_size():
    logits_NC, labels_N = LOGITS_NC.double().numpy(), LABELS_N.numpy()
    p_NC, y_NC = 1 / (1 + np.exp(-logits_NC)), np.eye(3)[labels_N]
    bins_NC = np.floor(np.abs(p_NC - y_NC) * 5).astype(int)
    numbers = np.bincount(bins_NC.flatten(), minlength=5)
    weights_NC = 12 / (numbers[bins_NC] * (numbers > 0).sum())
    expected = -(weights_NC * (y_NC * np.log(p_NC) + (1 - y_NC) * np.log(1 - p_NC))).sum() / 3
    assert GhmC(bins=5)(LOGITS_NC, LABELS_N).item() == pytest.approx(expected, rel=1e-5)


def test_ghm_with_one_bin_is_plain_cross_entropy_of_each_class():
    targets_NC = torch.nn.functional.one_hot(LABELS_N, 3).float()
    plain = torch.nn.functional.binary_cross_entropy_with_logits(LOGITS_NC, targets_NC, reduction="sum") / 3
    torch.testing.assert_close(GhmC(bins=1)(LOGITS_NC, LABELS_N), plain)


def circle(scores: list[float], labels: list[int], scale: float, margin: float) -> float:
    rows = list(zip(scores, labels, strict=True))
    pull = [np.exp(-scale * max(0, 1 + margin - s) * (s - 1 + margin)) for s, y in rows if y == 1]
    push = [np.exp(scale * max(0, s + margin) * (s - margin)) for s, y in rows if y == 0]
    total = sum(np.log(np.sum(part)) / scale for part in (pull, push) if part)
    return float(np.log1p(np.exp(total)))


@pytest.mark.parametrize("labels", [[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
def test_circle_is_its_formula_for_cosines_and_for_probabilities(labels):
    scores = [0.9, -0.3, 0.1, 0.6]
    found = Circle(scale=4.0, margin=0.2)(torch.tensor(scores)[:, None], torch.tensor(labels))
    assert found.item() == pytest.approx(4 * circle(scores, labels, 4.0, 0.2), rel=1e-5)
    logits_N2 = torch.stack([torch.zeros(4), torch.tensor(scores)], dim=1)
    probabilities = [1 / (1 + np.exp(-score)) for score in scores]
    found = Circle(scale=4.0, margin=0.2)(logits_N2, torch.tensor(labels))
    assert found.item() == pytest.approx(4 * circle(probabilities, labels, 4.0, 0.2), rel=1e-5)


def test_the_gradient_of_circle_takes_the_weights_of_the_rows_as_constants():
    scores_N, labels_N, scale, margin = np.array([0.9, -0.3, 0.1, 0.6]), np.array([1, 0, 1, 0]), 4.0, 0.2
    is_positive_N = labels_N == 1
    a_N = np.where(is_positive_N, 1 + margin - scores_N, np.maximum(0, scores_N + margin))
    size_N = np.where(is_positive_N, np.exp(-scale * a_N * (scores_N - 1 + margin)), 0)
    size_N += np.where(is_positive_N, 0, np.exp(scale * a_N * (scores_N - margin)))
    positive, negative = size_N[is_positive_N].sum(), size_N[~is_positive_N].sum()
    share_N = size_N / np.where(is_positive_N, positive, negative)
    slope = 1 / (1 + (positive * negative) ** (-1 / scale))
    values_N1 = torch.tensor(scores_N[:, None], dtype=torch.float32, requires_grad=True)
    Circle(scale=scale, margin=margin)(values_N1, torch.tensor(labels_N)).backward()
    expected_N = 4 * slope * np.where(is_positive_N, -a_N, a_N) * share_N
    np.testing.assert_allclose(values_N1.grad[:, 0].numpy(), expected_N, rtol=1e-4, atol=1e-6)


def test_circle_can_be_mixed_with_cross_entropy():
    logits_N2, labels_N = inputs_of(Circle())
    entropy = torch.nn.functional.cross_entropy(logits_N2, labels_N, reduction="sum")
    mixed = (Circle()(logits_N2, labels_N) + 3 * entropy) / 4
    torch.testing.assert_close(Circle(ce_weight=3.0)(logits_N2, labels_N), mixed)
    with pytest.raises(UserError, match="loss.ce_weight is 3.0, but a cosine has no cross-entropy"):
        Circle(ce_weight=3.0)(logits_N2[:, :1], labels_N)


def test_circle_needs_two_classes():
    with pytest.raises(UserError, match="loss=circle needs two classes, but the data has 3"):
        Circle().bind(["a", "b", "c"])


def test_info_nce_is_how_hard_a_text_finds_its_own_among_all():
    similarities_NN = torch.tensor([[0.8, 0.1], [0.5, 0.2]])
    first = -np.log(np.exp(0.8 / 0.5) / (np.exp(0.8 / 0.5) + np.exp(0.1 / 0.5)))
    second = -np.log(np.exp(0.2 / 0.5) / (np.exp(0.5 / 0.5) + np.exp(0.2 / 0.5)))
    loss = InfoNce(temperature=0.5)
    assert loss(similarities_NN, torch.tensor([1, 1])).item() == pytest.approx(first + second)
    assert loss(similarities_NN, torch.tensor([1, 0])).item() == pytest.approx(first), "no pair, but a negative"


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: f"{type(loss).__name__}")
def test_the_value_does_not_depend_on_the_order_of_rows_and_is_repeatable(loss):
    logits, labels = inputs_of(loss)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = logits[order][:, order] if isinstance(loss, InfoNce) else logits[order]
    torch.testing.assert_close(loss(shuffled, labels[order]), loss(logits, labels))
    assert not loss.by_row and torch.equal(loss(logits, labels), loss(logits, labels))


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: f"{type(loss).__name__}")
@pytest.mark.parametrize("size", [0.0, 1.0, 100.0])
def test_gradients_are_finite_even_without_rows_and_with_only_one_class(loss, size):
    logits, labels = inputs_of(loss)
    for count, given in ((6, labels), (6, labels * 0), (6, labels * 0 + 1), (0, labels[:0])):
        columns = count if isinstance(loss, InfoNce) else logits.shape[1]
        values = (logits[:count, :columns] * size).requires_grad_()
        total = loss(values, given)
        total.backward()
        assert total.isfinite() and total.dtype == torch.float32 and values.grad.isfinite().all()
        assert count or total.item() == 0


NUMBERS_N = np.array([0.0, 5.0, 2.5, 2.5, 4.0])
SIMILAR_N = np.array([0.9, 0.8, -0.2, 0.3, 0.75])


def in_order(similarities_N: np.ndarray, scale: float) -> float:
    """The loss of a batch, for each two pairs in turn."""
    pairs = [(i, j) for i in range(5) for j in range(5) if NUMBERS_N[i] > NUMBERS_N[j]]
    return float(np.log1p(sum(np.exp(scale * (similarities_N[j] - similarities_N[i])) for i, j in pairs)))


def test_cosent_is_what_pairs_in_the_wrong_order_cost():
    found = Cosent(scale=4.0)(torch.tensor(SIMILAR_N)[:, None].float(), torch.tensor(NUMBERS_N))
    assert found.item() == pytest.approx(5 * in_order(SIMILAR_N, 4.0), rel=1e-5)
    equal = torch.full((5,), 2.0)
    assert Cosent()(torch.tensor(SIMILAR_N)[:, None].float(), equal).item() == 0, "nothing to put in order"


def test_angle_is_that_of_sentence_transformers_whatever_the_length_of_vectors():
    from sentence_transformers.util import pairwise_angle_sim

    first_ND, second_ND = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    angles_N = pairwise_angle_sim(first_ND, second_ND).double().numpy()
    for factor in (1.0, 7.0):
        found = Angle(scale=4.0)(first_ND * factor, second_ND / factor, torch.tensor(NUMBERS_N))
        assert found.item() == pytest.approx(5 * in_order(angles_N, 4.0), rel=1e-4)
