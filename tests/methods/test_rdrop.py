"""R-Drop against the paper's equations, computed from the two passes' own predictions."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from nlu.methods.plain import Plain
from nlu.methods.rdrop import RDrop


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
    scale = {name: method.weight_of(name) / count for name, count in counts.items()}
    torch.manual_seed(5)
    sums = method.backward(parts.task, parts.model, parts.batch, scale, nullcontext)
    loss = sum(scale[name] * value.item() for name, value in sums.items())
    assert loss == pytest.approx(paper / 2, rel=1e-5)
    assert sums["consistency"].item() == pytest.approx(kl.sum(), rel=1e-4) and kl.sum() > 0.01


def test_without_dropout_and_divergence_the_gradient_is_that_of_one_pass(parts_of: Any) -> None:
    parts = parts_of()
    scale = {"labels": 0.2, "consistency": 0.2}
    sums = RDrop().backward(parts.task, parts.model, parts.batch, scale, nullcontext)
    assert sums["consistency"].item() == 0.0
    twice = parts.gradients()
    Plain().backward(parts.task, parts.model, parts.batch, scale, nullcontext)
    for name, gradient in parts.gradients().items():
        torch.testing.assert_close(twice[name], gradient, rtol=1e-5, atol=1e-7, msg=name)
