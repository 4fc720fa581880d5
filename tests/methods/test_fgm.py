"""FGM against its equation written out, one sequence at a time."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nlu.config.errors import UserError
from nlu.methods.fgm import Fgm
from nlu.methods.freelb import FreeLb
from nlu.methods.rdrop import RDrop


def test_the_gradient_is_that_of_both_losses_written_out(parts_of: Any) -> None:
    parts, epsilon, weight = parts_of(), 0.4, 0.7
    clean = adversarial = 0.0
    for single in parts.singles:
        labels = single.targets["labels"]
        vectors = parts.model.backbone.embed(single)
        moved = torch.zeros_like(vectors, requires_grad=True)
        first = F.cross_entropy(parts.model(single, vectors + moved), labels)
        (first / len(parts.singles)).backward()
        assert moved.grad is not None
        step = epsilon * moved.grad / moved.grad.norm()
        second = F.cross_entropy(parts.model(single, parts.model.backbone.embed(single) + step), labels)
        (weight * second / len(parts.singles)).backward()
        clean, adversarial = clean + first.item(), adversarial + second.item()
    expected = parts.gradients()
    method = Fgm(epsilon=epsilon, weight=weight)
    counts = method.counts(parts.task, parts.batch)
    weights = method.weights(parts.task)
    assert list(counts) == list(weights) == ["labels", "adversarial_labels"]
    scale = {name: weights[name] / count for name, count in counts.items()}
    sums = method.backward(parts.task, parts.model, parts.batch, scale, nullcontext)
    torch.testing.assert_close(sums["labels"].item(), clean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sums["adversarial_labels"].item(), adversarial, rtol=1e-4, atol=1e-5)
    assert adversarial > clean
    found = parts.gradients()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=2e-4, atol=2e-6, msg=name)


def test_fgm_climbs_both_terms_of_rdrop_with_the_same_two_masks(parts_of: Any) -> None:
    parts, epsilon, weight, alpha = parts_of(dropout=0.3), 0.4, 0.7, 4.0
    labels, model, rows = parts.batch.targets["labels"], parts.model, len(parts.batch)

    def rdrop_loss(x_TE: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        p, q = (model(parts.batch, x_TE).log_softmax(1) for _ in range(2))
        kl_N = ((p.exp() - q.exp()) * (p - q)).sum(1) / 2
        return (F.nll_loss(p, labels) + F.nll_loss(q, labels)) / 2 + alpha / 2 * kl_N.mean()

    moved = torch.zeros_like(model.backbone.embed(parts.batch), requires_grad=True)
    clean = rdrop_loss(model.backbone.embed(parts.batch) + moved)
    clean.backward()
    assert moved.grad is not None
    pieces = moved.grad.split(parts.batch.lengths)
    step = torch.cat([epsilon * piece / piece.norm() for piece in pieces])
    adversarial = weight * rdrop_loss(model.backbone.embed(parts.batch) + step)
    adversarial.backward()
    expected = parts.gradients()

    method = Fgm(epsilon=epsilon, weight=weight, of=RDrop(alpha=alpha))
    weights, counts = method.weights(parts.task), method.counts(parts.task, parts.batch)
    terms = ["labels", "consistency", "adversarial_labels", "adversarial_consistency"]
    assert list(weights) == list(counts) == terms and set(counts.values()) == {rows}
    assert weights["adversarial_consistency"] == weight * alpha / 2
    scale = {name: weights[name] / rows for name in terms}
    torch.manual_seed(5)
    sums = method.backward(parts.task, model, parts.batch, scale, nullcontext)
    loss = sum(scale[name] * sums[name].item() for name in terms)
    assert loss == pytest.approx((clean + adversarial).item(), rel=1e-4)
    for name, gradient in parts.gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=2e-3, atol=2e-5, msg=name)


def test_a_method_with_a_special_backward_pass_is_refused() -> None:
    with pytest.raises(UserError, match=r"method.of is FreeLb, .* name a method that derives from nlu.methods.plain"):
        Fgm(of=FreeLb())
