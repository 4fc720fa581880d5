"""Losses over the rows of queries, against their formulas row by row in numpy."""

import numpy as np
import pytest
import torch

from nlu.losses.of_queries import Listwise, MarginMse, Pairwise

QUERIES = [7, -3, 7, 7, 12, -3, 5, 5, 12, 7]
LABELS = [1, 0, 0, 2.5, 0, 3, 1, 1, 0, 0]
"""of the queries 7: 1 0 2.5 0; -3: 0 3; 12: nothing relevant; 5: all alike"""
SCORES = np.random.default_rng(0).normal(size=10)


def by_query():
    for query in sorted(set(QUERIES)):
        rows = [place for place, own in enumerate(QUERIES) if own == query]
        yield SCORES[rows], np.array(LABELS, float)[rows]


def listwise(s_K, y_K):
    p_K = np.exp(s_K) / np.exp(s_K).sum()
    return (-(y_K / y_K.sum() * np.log(p_K)).sum(), 1) if y_K.any() else (0, 0)


def pairwise(s_K, y_K):
    terms = [np.log1p(np.exp(s_K[j] - s_K[i])) for i in range(len(y_K)) for j in range(len(y_K)) if y_K[i] > y_K[j]]
    return sum(terms), len(terms)


def margin_mse(s_K, y_K):
    best = [i for i in range(len(y_K)) if y_K[i] == max(y_K)]
    others = [j for j in range(len(y_K)) if j not in best]
    return sum(np.mean([((s_K[i] - s_K[j]) - (y_K[i] - y_K[j])) ** 2 for i in best]) for j in others), len(others)


ALL = pytest.mark.parametrize(
    ("loss", "formula"), [(Listwise, listwise), (Pairwise, pairwise), (MarginMse, margin_mse)]
)


def given(order=None):
    order = np.arange(10) if order is None else order
    labels_N, queries_N = torch.tensor(LABELS)[order], torch.tensor(QUERIES)[order]
    return torch.tensor(SCORES, dtype=torch.float32)[order], labels_N, queries_N


@ALL
def test_a_loss_is_the_sum_of_its_formula_over_queries_in_any_order_of_rows(loss, formula):
    wanted = [formula(*one) for one in by_query()]
    for order in (None, np.random.default_rng(1).permutation(10)):
        scores_N, labels_N, queries_N = given(order)
        assert loss()(scores_N, labels_N, queries_N).item() == pytest.approx(sum(one for one, _ in wanted), rel=1e-5)
        assert loss().count(labels_N, queries_N) == sum(count for _, count in wanted)


@ALL
def test_the_scale_multiplies_the_scores(loss, formula):
    scores_N, labels_N, queries_N = given()
    torch.testing.assert_close(
        loss(scale=20)(scores_N / 20, labels_N, queries_N), loss()(scores_N, labels_N, queries_N)
    )


@ALL
def test_the_sum_and_gradient_of_parts_with_whole_queries_are_those_of_all_rows(loss, formula):
    scores_N, labels_N, queries_N = given()
    scores_N.requires_grad_()
    loss()(scores_N, labels_N, queries_N).backward()
    whole_N, scores_N.grad = scores_N.grad, None
    for some in ([0, 2, 3, 9], [1, 5, 4, 8], [6, 7]):
        loss()(scores_N[some], labels_N[some], queries_N[some]).backward()
    torch.testing.assert_close(scores_N.grad, whole_N, rtol=1e-6, atol=1e-7)


@ALL
@pytest.mark.parametrize("size", [0.0, 1.0, 1000.0])
def test_gradients_are_finite_also_without_rows_or_without_a_difference(loss, formula, size):
    scores_N, labels_N, queries_N = given()
    for count, labels in ((10, labels_N), (10, labels_N * 0), (10, labels_N - 5), (0, labels_N[:0]), (1, labels_N[:1])):
        values_N = (size * scores_N[:count]).requires_grad_()
        total = loss()(values_N, labels, queries_N[:count])
        total.backward()
        assert total.isfinite() and total.dtype == torch.float32 and values_N.grad.isfinite().all()
        assert count or total.item() == 0


def test_listwise_is_the_cross_entropy_of_torch_where_one_candidate_is_right():
    scores_QK = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    right_Q = torch.tensor([0, 3, 2, 4, 1, 1])
    queries_N = torch.arange(6).repeat_interleave(5)
    labels_N = torch.nn.functional.one_hot(right_Q, 5).flatten().float()
    wanted = torch.nn.functional.cross_entropy(scores_QK, right_Q, reduction="sum")
    torch.testing.assert_close(Listwise()(scores_QK.flatten(), labels_N, queries_N), wanted)
