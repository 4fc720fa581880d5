"""Two texts compared by their vectors, in numbers that can be worked out by hand."""

from typing import Any

import pytest
import torch

from nlu.config.errors import UserError
from nlu.models.encoder import Encoded
from nlu.models.heads.pairs import SidesHead
from tests.models.parts import Target, labels

VECTORS_SD = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])


class Places:
    """The part of a batch that a head of pairs reads: (3, 4) with (0, 2), and (1, 0) with nothing."""

    sequences_KB = torch.tensor([[0, 1], [2, 3]])


def head_of(features: Any, width: int = 2) -> SidesHead:
    return SidesHead(width, labels(3), None, features=features)


def test_the_features_are_both_vectors_and_their_distance():
    head = head_of("concat")
    with torch.no_grad():
        head.linear.weight.copy_(torch.arange(18.0).view(3, 6))
        head.linear.bias.copy_(torch.tensor([0.0, 0.5, 1.0]))
    # The other way round, only the order of the two vectors changes.
    for swapped, rows in ((False, [[3.0, 4, 0, 2, 3, 2], [1, 0, 0, 0, 1, 0]]),
                          (True, [[0.0, 2, 3, 4, 3, 2], [0, 0, 1, 0, 1, 0]])):  # fmt: skip
        places = Places()
        places.sequences_KB = Places.sequences_KB.flip(0) if swapped else Places.sequences_KB
        expected = torch.tensor(rows) @ torch.arange(18.0).view(3, 6).T + torch.tensor([0.0, 0.5, 1.0])
        torch.testing.assert_close(head(Encoded(pooled_SD=VECTORS_SD), places), expected)


def test_the_cosine_is_that_of_the_two_vectors_and_0_for_a_vector_of_zeros():
    logits = head_of("cosine")(Encoded(pooled_SD=VECTORS_SD), Places())
    torch.testing.assert_close(logits, torch.tensor([[0.8], [0.0]]))
    assert not list(head_of("cosine").parameters())


def test_cosines_are_fp32_under_autocast():
    generator = torch.Generator().manual_seed(0)
    encoded = Encoded(pooled_SD=torch.randn(4, 64, generator=generator))
    head = head_of("cosine", 64)
    exact = head(encoded, Places())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(encoded, Places()), exact)
        assert head_of("concat", 64)(encoded, Places()).dtype == torch.float32


def test_tags_are_refused():
    with pytest.raises(UserError, match="head=sides compares two texts"):
        SidesHead(8, Target(["O", "B-x"], "tags"), None)
