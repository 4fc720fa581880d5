"""A sum and a count, so that parts add up to the whole."""

import math

import pytest
import torch
import torch.nn.functional as F

from nlu.losses.cross_entropy import CrossEntropy


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 4, generator=generator), torch.randint(0, 4, (7,), generator=generator)


def test_the_loss_is_a_sum_over_rows_with_their_number():
    total, count = CrossEntropy()(torch.zeros(3, 4), torch.tensor([0, 1, 3]))
    assert total.item() == pytest.approx(3 * math.log(4)) and count == 3


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_label_smoothing_is_that_of_torch(rows, label_smoothing):
    total, count = CrossEntropy(label_smoothing=label_smoothing)(*rows)
    torch.testing.assert_close(total / count, F.cross_entropy(*rows, label_smoothing=label_smoothing))


def test_smoothing_gives_its_share_to_all_classes_alike(rows):
    logits_NC, labels_N = rows
    log_probs_NC = logits_NC.log_softmax(1)
    targets_NC = 0.8 * F.one_hot(labels_N, 4) + 0.2 / 4
    torch.testing.assert_close(CrossEntropy(label_smoothing=0.2)(*rows)[0], -(targets_NC * log_probs_NC).sum())


def test_parts_of_any_size_add_up_to_the_whole(rows):
    loss = CrossEntropy(label_smoothing=0.1)
    parts = [loss(rows[0][place], rows[1][place]) for place in (slice(0, 1), slice(1, 6), slice(6, 6), slice(6, 7))]
    torch.testing.assert_close(sum(total for total, _ in parts), loss(*rows)[0])
    assert sum(count for _, count in parts) == 7


def test_no_rows_give_a_zero_that_has_a_gradient():
    logits_NC = torch.zeros(0, 4, requires_grad=True)
    total, count = CrossEntropy()(logits_NC, torch.zeros(0, dtype=torch.int64))
    total.backward()
    assert (total.item(), count) == (0.0, 0)
