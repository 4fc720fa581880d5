"""One linear layer for every kind of target."""

import pytest
import torch

from nlu.models.encoder import Encoded
from nlu.models.heads.linear import LinearHead
from tests.models.parts import Target


class Places:
    """The part of a batch that says which sequence is whose."""

    sequences_KB = torch.tensor([[1, 0, 2]])


@pytest.mark.parametrize(
    ("kind", "names", "outputs"), [("classes", ["a", "b", "c"], 3), ("label_set", ["a", "b"], 2), ("number", [], 1)]
)
def test_every_example_gets_an_output_for_each_class_or_one_number(kind, names, outputs):
    head, vectors_SD = LinearHead(4, Target(names, kind)), torch.randn(3, 4)
    logits = head(Encoded(pooled_SD=vectors_SD), Places())
    assert head.wants == "pooled" and logits.shape == (3, outputs)
    torch.testing.assert_close(logits, (vectors_SD @ head.linear.weight.T)[[1, 0, 2]])


def test_every_unit_gets_an_output_for_each_tag():
    head, vectors_UD = LinearHead(4, Target(["O", "B-x", "I-x"], "tags")), torch.randn(5, 4)
    assert head.wants == "units"
    torch.testing.assert_close(head(Encoded(units_UD=vectors_UD), Places()), vectors_UD @ head.linear.weight.T)


def test_fresh_weights_are_small_and_the_bias_is_zero():
    torch.manual_seed(0)
    head = LinearHead(400, Target(["a"] * 50))
    assert 0.019 < head.linear.weight.std() < 0.021 and not head.linear.bias.any()
