"""FreeLB against its algorithm written out, one sequence at a time, from the paper's algorithm 1."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from nlu.methods.adversarial import SequenceNorms
from nlu.methods.freelb import FreeLb
from nlu.methods.plain import Plain
from tests.methods.conftest import Parts


def written_out(parts: Parts, *, steps: int, lr: float, max_norm: float, norm: str) -> dict[str, Tensor]:
    """Return the gradient of the mean loss over examples and passes, from a start at the word vectors."""
    for single in parts.singles:
        delta = torch.zeros_like(parts.model.backbone.embed(single))
        for _ in range(steps):
            delta = delta.detach().requires_grad_()
            logits = parts.model(single, parts.model.backbone.embed(single) + delta)
            loss = torch.nn.functional.cross_entropy(logits, single.targets["labels"]) / steps / len(parts.singles)
            loss.backward()
            g = delta.grad
            assert g is not None
            if norm == "l2":
                delta = delta.detach() + lr * g / g.norm()
                if max_norm and delta.norm() > max_norm:
                    delta = delta * max_norm / delta.norm()
            else:
                delta = delta.detach() + lr * g / g.abs().max()
                delta = delta.clamp(-max_norm, max_norm) if max_norm else delta
    return parts.gradients()


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("max_norm", [0.0, 0.25])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_gradient_is_that_of_the_algorithm_written_out(
    parts_of: Any, steps: int, max_norm: float, norm: Any
) -> None:
    parts = parts_of()
    expected = written_out(parts, steps=steps, lr=0.2, max_norm=max_norm, norm=norm)
    method = FreeLb(steps=steps, lr=0.2, init_magnitude=0.0, max_norm=max_norm, norm=norm)
    count = method.counts(parts.task, parts.batch)["labels"]
    assert count == len(parts.batch)
    method.backward(parts.task, parts.model, parts.batch, {"labels": 1 / count}, nullcontext)
    found = parts.gradients()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=2e-4, atol=2e-6, msg=name)


def test_the_start_is_in_the_ball_that_the_magnitude_says(parts_of: Any) -> None:
    parts = parts_of()
    starts = []

    class Watched(FreeLb):
        def _start(self, *arguments: Any) -> Tensor:
            starts.append(super()._start(*arguments))
            return starts[-1]

    for norm in ("l2", "linf"):
        method = Watched(steps=1, init_magnitude=0.5, norm=norm)  # type: ignore[arg-type]
        torch.manual_seed(3)
        method.backward(parts.task, parts.model, parts.batch, {"labels": 1.0}, nullcontext)
    tokens, width = starts[0].shape
    assert tokens > 3 * width, "or the number of tokens may stand for the width"
    largest = [piece.abs().max() for piece in starts[0].split(parts.batch.lengths)]
    for value, length in zip(largest, parts.batch.lengths, strict=True):
        bound = 0.5 / (length * width) ** 0.5
        assert 0.7 * bound < value <= bound, "uniform in +-magnitude / sqrt(tokens * width)"
    assert 0.4 < starts[1].abs().max() <= 0.5


def test_the_start_is_uniform_over_the_size_of_its_sequence_in_any_batch(parts_of: Any) -> None:
    parts = parts_of()
    embedded_TE = parts.model.backbone.embed(parts.batch)
    tokens, width = embedded_TE.shape
    assert tokens > 3 * width, "so that the two are not taken for one another"
    torch.manual_seed(3)
    uniform_TE = torch.empty(tokens, width).uniform_(-1, 1).double()
    size_T = torch.tensor([length * width for length in parts.batch.lengths for _ in range(length)])
    torch.manual_seed(3)
    start_TE = FreeLb(init_magnitude=0.5)._start(embedded_TE, SequenceNorms(parts.batch, embedded_TE.device))
    torch.testing.assert_close(
        start_TE, uniform_TE * 0.5 / size_T.sqrt()[:, None], rtol=1e-6, atol=0, check_dtype=False
    )


def test_all_passes_have_the_same_dropout_masks(parts_of: Any) -> None:
    parts = parts_of(dropout=0.4)
    method = FreeLb(steps=3, lr=1e-9, init_magnitude=0.0)
    torch.manual_seed(1)
    method.backward(parts.task, parts.model, parts.batch, {"labels": 1.0}, nullcontext)
    several = parts.gradients()
    torch.manual_seed(1)
    Plain().backward(parts.task, parts.model, parts.batch, {"labels": 1.0}, nullcontext)
    for name, gradient in parts.gradients().items():
        torch.testing.assert_close(several[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
