"""FGM against its equation written out, one sequence at a time."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from nlu.methods.fgm import Fgm


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
    assert list(counts) == method.terms(parts.task) == ["labels", "adversarial_labels"]
    scale = {name: method.weight_of(name) / count for name, count in counts.items()}
    sums = method.backward(parts.task, parts.model, parts.batch, scale, nullcontext)
    torch.testing.assert_close(sums["labels"].item(), clean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sums["adversarial_labels"].item(), adversarial, rtol=1e-4, atol=1e-5)
    assert adversarial > clean
    found = parts.gradients()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=2e-4, atol=2e-6, msg=name)
