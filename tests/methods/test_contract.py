"""What every training method promises of its terms: they add up over the examples. A new method is an entry here."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from nlu.methods.fgm import Fgm
from nlu.methods.freelb import FreeLb
from nlu.methods.plain import Plain
from nlu.methods.rdrop import RDrop

METHODS = {
    "plain": Plain(),
    "rdrop": RDrop(alpha=4.0),
    "fgm": Fgm(epsilon=0.4, weight=0.7),
    "fgm of rdrop": Fgm(epsilon=0.4, weight=0.7, of=RDrop(alpha=4.0)),
    "freelb": FreeLb(steps=2, lr=0.2, init_magnitude=0.0),
    "freelb in linf": FreeLb(steps=3, lr=0.2, init_magnitude=0.0, max_norm=0.25, norm="linf"),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_terms_counts_and_gradients_of_a_batch_are_the_sums_over_its_examples(parts_of: Any, method: Any) -> None:
    parts = parts_of()
    task, model = parts.task, parts.model
    counts, weights = method.counts(task, parts.batch), method.weights(task)
    assert list(counts) == list(weights) and counts["labels"] == len(parts.batch) and weights["labels"] > 0
    scale = {name: weights[name] / counts[name] for name in counts}
    whole = method.backward(task, model, parts.batch, scale, nullcontext)
    gradients = parts.gradients()
    assert set(whole) == set(counts) and max(value.abs().max() for value in gradients.values()) > 1e-3
    each = [method.backward(task, model, single, scale, nullcontext) for single in parts.singles]
    assert [sum(method.counts(task, single)[name] for single in parts.singles) for name in counts] == [*counts.values()]
    for name, value in whole.items():
        torch.testing.assert_close(sum(one[name] for one in each), value, rtol=1e-4, atol=1e-5)
    for name, gradient in parts.gradients().items():
        torch.testing.assert_close(gradient, gradients[name], rtol=2e-3, atol=2e-6, msg=name)
