"""R-Drop against the paper's equations, computed from the two passes' own predictions."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, rel_entr, softmax

from nlu.losses.bce import Bce
from nlu.losses.info_nce import InfoNce
from nlu.methods.rdrop import RDrop
from nlu.tasks.classify import Classify
from nlu.tasks.siamese import Siamese


def test_the_loss_is_half_of_equation_4(parts_of: Any) -> None:
    parts, alpha = parts_of(dropout=0.3), 4.0
    torch.manual_seed(5)
    passes = [parts.model(parts.batch).detach().double().numpy() for _ in range(2)]
    p, q = (softmax(logits, axis=1) for logits in passes)
    labels = parts.batch.targets["labels"].numpy()
    rows = np.arange(len(labels))
    nll = -np.log(p[rows, labels]) - np.log(q[rows, labels])
    kl = (rel_entr(p, q).sum(1) + rel_entr(q, p).sum(1)) / 2
    paper = (nll + alpha * kl).mean()
    method = RDrop(alpha=alpha)
    counts = method.counts(parts.task, parts.batch)
    scale = {name: weight / counts[name] for name, weight in method.weights(parts.task).items()}
    torch.manual_seed(5)
    sums = method.backward(parts.task, parts.model, parts.batch, scale, nullcontext)
    loss = sum(scale[name] * value.item() for name, value in sums.items())
    assert loss == pytest.approx(paper / 2, rel=1e-5)
    assert sums["consistency"].item() == pytest.approx(kl.sum(), rel=1e-4) and kl.sum() > 0.01


def test_the_gradient_is_that_of_half_of_equation_4(parts_of: Any) -> None:
    parts, alpha = parts_of(dropout=0.3), 4.0
    method, labels = RDrop(alpha=alpha), parts.batch.targets["labels"]
    torch.manual_seed(5)
    p, q = (parts.model(parts.batch).log_softmax(1) for _ in range(2))
    rows = torch.arange(len(labels))
    kl_N = ((p.exp() - q.exp()) * (p - q)).sum(1) / 2
    ((-p[rows, labels] - q[rows, labels] + alpha * kl_N) / 2).mean().backward()
    expected = parts.gradients()
    scale = {name: weight / len(labels) for name, weight in method.weights(parts.task).items()}
    torch.manual_seed(5)
    method.backward(parts.task, parts.model, parts.batch, scale, nullcontext)
    for name, gradient in parts.gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_divergence_of_independent_classes_is_taken_class_by_class() -> None:
    task = Classify(Bce(), SimpleNamespace(names=["none", "x", "y"]))  # type: ignore[arg-type]
    first, second = ({"logits": torch.tensor([[unread, 2.0, -1.0]])} for unread in (9.0, -9.0))
    batch: Any = None
    assert task.divergence(batch, first, second).item() == 0.0, "the first logit is not read"
    third = {"logits": torch.tensor([[9.0, -1.0, 0.5]])}
    p, q = (np.stack([expit(values), expit(-values)]) for values in (np.array([2.0, -1.0]), np.array([-1.0, 0.5])))
    expected = (rel_entr(p, q) + rel_entr(q, p)).sum() / 2 / 2
    assert task.divergence(batch, first, third).item() == pytest.approx(expected)


def test_the_divergence_is_a_mean_over_all_pairs_even_if_the_loss_skips_some() -> None:
    task = Siamese(InfoNce(), SimpleNamespace(names=["no", "yes"]))  # type: ignore[arg-type]
    batch: Any = SimpleNamespace(targets={"labels": torch.tensor([1, 0, 1, 0])})
    cosines = ((0.1, 0.9, 0.2), (0.3, -0.9, 0.8))
    first, second = ({"logits": torch.tensor([[a], [b], [0.5], [c]])} for a, b, c in cosines)
    # InfoNCE sums over two of four pairs; predictions differ by 0.2, 1.8, 0 and 0.6 in all four.
    count = RDrop().counts(task, batch)["consistency"]
    assert count == 4
    assert task.divergence(batch, first, second).item() / count == pytest.approx(0.5 * (0.04 + 3.24 + 0.36) / 4)
