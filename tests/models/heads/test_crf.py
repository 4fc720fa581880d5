"""The conditional random field against all paths written out one by one."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nlu.config.errors import UserError
from nlu.models.heads.crf import CrfHead
from tests.models.parts import Target

TAGS = ["O", "B-x", "I-x", "B-y"]
MANY = ["O", *(f"{prefix}-{kind}" for kind in "abcdefghij" for prefix in "BI")]
"""as many as CLUENER has"""


def crf(names: list[str] = TAGS, seed: int = 0) -> CrfHead:
    torch.manual_seed(seed)
    head = CrfHead(8, Target(names, "tags"), None)
    with torch.no_grad():
        for parameter in (head.transitions_CC, head.start_C, head.end_C):
            parameter.normal_()
    return head


def is_legal(path: tuple[int, ...], names: list[str]) -> bool:
    before = ["O", *(names[tag] for tag in path)]
    return all(tag[0] != "I" or former in (f"B{tag[1:]}", f"I{tag[1:]}") for former, tag in itertools.pairwise(before))


def score(head: CrfHead, logits_UC: torch.Tensor, path: tuple[int, ...]) -> torch.Tensor:
    total = head.start_C[path[0]] + head.end_C[path[-1]] + sum(logits_UC[i, tag] for i, tag in enumerate(path))
    return total + sum(head.transitions_CC[a, b] for a, b in itertools.pairwise(path))


def all_paths(head: CrfHead, logits_UC: torch.Tensor, names: list[str]) -> dict[tuple[int, ...], torch.Tensor]:
    paths = itertools.product(range(len(names)), repeat=len(logits_UC))
    return {path: score(head, logits_UC, path) for path in paths if is_legal(path, names)}


def example(count: int, seed: int, names: list[str] = TAGS) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and legal tags of one example."""
    generator = torch.Generator().manual_seed(seed)
    logits_UC = torch.randn(count, len(names), generator=generator) * 2
    tags: list[int] = []
    for _ in range(count):
        fitting = [tag for tag in range(len(names)) if is_legal((*tags, tag), names)]
        tags.append(fitting[int(torch.randint(len(fitting), (1,), generator=generator))])
    return logits_UC, torch.tensor(tags, dtype=torch.int64)


@pytest.mark.parametrize("counts", [[1], [5], [3, 0, 1, 4, 3], [0, 0], []])
def test_the_likelihood_and_its_gradient_are_those_of_all_paths(counts):
    head = crf()
    rows = [example(count, seed) for seed, count in enumerate(counts)]
    logits_UC = torch.cat([torch.zeros(0, len(TAGS)), *(logits for logits, _ in rows)]).requires_grad_()
    tags_U = torch.cat([torch.zeros(0, dtype=torch.int64), *(tags for _, tags in rows)])
    expected = []
    for logits, (_, tags) in zip(logits_UC.split(counts), rows, strict=True):
        if len(tags):
            scores = all_paths(head, logits, TAGS)
            expected.append(torch.stack(list(scores.values())).logsumexp(0) - scores[tuple(tags.tolist())])
        else:
            expected.append(logits_UC.sum() * 0 + head.start_C.sum() * 0)
    expected_B = torch.stack(expected) if expected else logits_UC.sum(1)
    found_B = head.negative_log_likelihood(logits_UC, tags_U, np.array(counts))
    torch.testing.assert_close(found_B, expected_B)
    weight_B = torch.linspace(0.5, 2, len(counts))
    parameters = [logits_UC, head.transitions_CC, head.start_C, head.end_C]
    own = torch.autograd.grad((found_B * weight_B).sum(), parameters)
    theirs = torch.autograd.grad((expected_B * weight_B).sum(), parameters, allow_unused=True)
    for one, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_marginals_are_sums_over_all_paths_and_have_their_gradient(temperature):
    head, counts, names = crf(TAGS[:3]), [2, 0, 4, 1], TAGS[:3]
    logits_UC = torch.cat([example(count, seed, names)[0] for seed, count in enumerate(counts)]).requires_grad_()
    expected = []
    for logits in logits_UC.split(counts):
        scores = all_paths(head, logits, names) if len(logits) else {}
        for place, tag in itertools.product(range(len(logits)), range(len(names))):
            through = [score / temperature for path, score in scores.items() if path[place] == tag]
            total = (torch.stack(list(scores.values())) / temperature).logsumexp(0)
            expected.append(torch.stack(through).logsumexp(0) - total if through else torch.tensor(-torch.inf))
    expected_UC = torch.stack(expected).view(-1, len(names))
    found_UC = head.log_marginals(logits_UC, np.array(counts), temperature)
    torch.testing.assert_close(found_UC, expected_UC)
    weight_UC = torch.rand(found_UC.shape)
    parameters = [logits_UC, head.transitions_CC, head.start_C, head.end_C]
    own, theirs = (
        torch.autograd.grad((values.masked_fill(values.isneginf(), 0) * weight_UC).sum(), parameters)
        for values in (found_UC, expected_UC)
    )
    for one, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_the_decoded_tags_are_the_best_of_all_legal_paths(seed):
    head, (logits_UC, _) = crf(seed=seed), example(5, seed)
    scores = all_paths(head, logits_UC, TAGS)
    best = max(scores, key=lambda path: scores[path].item())
    assert tuple(head.decode(logits_UC, np.array([5])).tolist()) == best


def test_forbidden_tags_are_never_decoded_however_high_their_scores():
    head = crf()
    with torch.no_grad():
        head.transitions_CC[0, 2] = head.start_C[2] = 1e4
    logits_UC = torch.zeros(6, 4)
    logits_UC[:, 2] = 1e3
    assert head.decode(logits_UC, np.array([4, 2])).tolist() == [1, 2, 2, 2, 1, 2]
    loss = head.negative_log_likelihood(logits_UC, torch.tensor([1, 2, 2, 2, 1, 2]), np.array([4, 2])).sum()
    assert loss.isfinite()
    gradient_CC, gradient_C = torch.autograd.grad(loss, [head.transitions_CC, head.start_C])
    assert gradient_CC[0, 2] == gradient_CC[3, 2] == gradient_C[2] == 0


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 1000), st.integers(0, 8),
    st.sampled_from([TAGS, MANY]), st.sampled_from([1, 2]),
)  # fmt: skip
def test_an_example_has_the_same_bits_in_any_company(counts, seed, chosen, names, thread_count):
    torch.set_num_threads(thread_count)
    head = crf(names, seed)
    rows = [example(count, seed + number, names) for number, count in enumerate(counts)]
    logits_UC, tags_U = (torch.cat([row[part] for row in rows]) for part in (0, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=seed % 2 == 1):
        together_B = head.negative_log_likelihood(logits_UC, tags_U, np.array(counts))
        paths = head.decode(logits_UC, np.array(counts)).split(counts)
        number = chosen % len(counts)
        logits, tags = rows[number]
        single_B = head.negative_log_likelihood(logits, tags, np.array([len(tags)]))
        path = head.decode(logits, np.array([len(tags)]))
    assert together_B.dtype == torch.float32
    assert torch.equal(together_B[number : number + 1], single_B) and torch.equal(paths[number], path)


def test_a_target_without_tags_is_refused():
    with pytest.raises(UserError, match="head=crf needs a tag for each unit.* set head=linear"):
        CrfHead(8, Target(["a", "b"]), None)
