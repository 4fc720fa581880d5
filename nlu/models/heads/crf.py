"""A linear-chain conditional random field over the tags of units.

Lafferty et al. 2001 (https://repository.upenn.edu/cis_papers/159/), section 3; Lample et al. 2016
(https://arxiv.org/abs/1603.01360), section 2.2, with separate vectors for the scores of the first and the last tag:

    score(y) = start[y_1] + sum_t logits[t, y_t] + sum_t transitions[y_t-1, y_t] + end[y_n]
    negative log-likelihood = log sum_y' exp score(y') - score(y)

Axes: U units of all examples, B examples, C tags; P units of all examples ordered by position, first units first; A
examples that have a unit at a position.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.arrays import starts_of
from nlu.data.collate import Batch, to_device
from nlu.metrics.spans import legal_steps
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import HeadTarget, vectors_of
from nlu.models.heads.linear import fresh_linear


@takes(schemas.CrfHead)
class CrfHead(nn.Module):
    """Scores of tags and of transitions between tags; transitions that BIO forbids have the score minus infinity."""

    _forbidden_CC: Tensor
    _forbidden_C: Tensor

    def __init__(self, width: int, target: HeadTarget, encoder: Encoder | None, keys: schemas.CrfHead):
        """Raises UserError for a target without tags."""
        super().__init__()
        if target.kind != "tags":
            raise UserError("head=crf needs a tag for each unit, which this task does not have; set head=linear")
        count = len(target.names)
        self.wants = "units"
        self.linear = fresh_linear(width, count)
        self.transitions_CC = nn.Parameter(torch.zeros(count, count))
        """score of a tag (column) after another tag (row)"""
        self.start_C = nn.Parameter(torch.zeros(count))
        self.end_C = nn.Parameter(torch.zeros(count))
        transitions, rate = ("transitions_CC", "start_C", "end_C"), keys.transitions_lr
        self.learning_rates = dict.fromkeys(transitions, rate) if rate is not None else {}
        # Buffers that are not saved: they follow from the names of the tags.
        follows_CC, begins_C = legal_steps(target.names)
        self.register_buffer("_forbidden_CC", torch.from_numpy(~follows_CC), persistent=False)
        self.register_buffer("_forbidden_C", torch.from_numpy(~begins_C), persistent=False)

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return the score of each tag for each unit, without transitions; (U, C), float32."""
        return self.linear(vectors_of(encoded, batch, "units")).float()

    def negative_log_likelihood(self, logits_UC: Tensor, tags_U: Tensor, counts_B: np.ndarray) -> Tensor:
        """Return -log p(tags) of each example in nats; (B,), float32. It is 0 for an example without units, and
        infinity for forbidden tags.

        The result of an example does not depend on other examples, not even in the last bit.
        """
        return _NegativeLogLikelihood.apply(
            logits_UC.float(), tags_U, *self._scores(), _Places(counts_B, logits_UC.device)
        )

    def decode(self, logits_UC: Tensor, counts_B: np.ndarray) -> Tensor:
        """Return `best_tags` of each example; (U,)."""
        return best_tags(logits_UC.float(), counts_B, *self._scores())

    def log_marginals(self, logits_UC: Tensor, counts_B: np.ndarray, temperature: float = 1.0) -> Tensor:
        """Return the logarithm of the probability of each tag at each unit, over all tag sequences; (U, C), float32.

        Forward-backward, with a gradient; all scores are divided by `temperature`. A tag that is forbidden at a unit,
        such as I- at the first one, has minus infinity.
        """
        transitions_CC, start_C, end_C = (scores / temperature for scores in self._scores())
        places = _Places(counts_B, logits_UC.device)
        if not places.sizes:
            return logits_UC.float()
        pieces = (logits_UC.float() / temperature).index_select(0, places.unit_P).split(places.sizes)
        alphas: list[Tensor] = []
        for number, logits_AC in enumerate(pieces):
            before_AC = (alphas[-1][: len(logits_AC), :, None] + transitions_CC).logsumexp(1) if number else start_C
            alphas.append(before_AC + logits_AC)
        found: list[Tensor] = []
        # Longest first: the examples whose last unit is at a position are the last ones that have a unit there.
        ahead_AC, total_A = pieces[0][:0], pieces[0][:0, 0]
        for number in reversed(range(len(pieces))):
            ended_AC = (alphas[number][places.next_size(number) :] + end_C).logsumexp(1)
            total_A = torch.cat([total_A, ended_AC])
            beta_AC = end_C.expand(len(ended_AC), -1)
            if len(ahead_AC):
                beta_AC = torch.cat([(transitions_CC + ahead_AC[:, None, :]).logsumexp(2), beta_AC])
            found.append(alphas[number] + beta_AC - total_A[:, None])
            ahead_AC = pieces[number] + beta_AC
        found_PC = torch.cat(found[::-1])
        return torch.empty_like(found_PC).index_copy(0, places.unit_P, found_PC)

    def _scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of transitions, first and last tags, with minus infinity for forbidden ones."""
        transitions_CC = self.transitions_CC.masked_fill(self._forbidden_CC, -torch.inf)
        return transitions_CC, self.start_C.masked_fill(self._forbidden_C, -torch.inf), self.end_C


@torch.no_grad()
def best_tags(
    logits_UC: Tensor, counts_B: np.ndarray, transitions_CC: Tensor, start_C: Tensor, end_C: Tensor
) -> Tensor:
    """Return the most probable tags of each example (Viterbi), (U,); a tie goes to the tag with the lower number."""
    places = _Places(counts_B, logits_UC.device)
    logits_PC = logits_UC.index_select(0, places.unit_P)
    best_AC, came_from, ends = start_C, [], []
    for number, (here, logits_AC) in enumerate(zip(places.sizes, logits_PC.split(places.sizes), strict=True)):
        if number:
            # Only the examples that still have a unit here.
            best_AC, from_AC = (best_AC[:here, :, None] + transitions_CC).max(1)
            came_from.append(from_AC)
        best_AC = best_AC + logits_AC
        ends.append((best_AC[places.next_size(number) :] + end_C).argmax(1))
    tag_A, parts = logits_PC.new_zeros(0, dtype=torch.int64), []
    for number in reversed(range(len(places.sizes))):
        tag_A = torch.cat([tag_A, ends[number]])
        parts.append(tag_A)
        if number:
            tag_A = came_from[number - 1].gather(1, tag_A[:, None])[:, 0]
    tags_P = torch.cat(parts[::-1]) if parts else tag_A
    return torch.empty_like(tags_P).index_copy_(0, places.unit_P, tags_P)


class _Places:
    """Units ordered by position, and at each position by the length of their example, so that a position is one
    slice."""

    def __init__(self, counts_B: np.ndarray, device: torch.device):
        counts_B = np.asarray(counts_B, dtype=np.int64)
        order_B = np.argsort(-counts_B, kind="stable")
        place_L1 = np.arange(counts_B.max(initial=0))[:, None]
        is_unit_LB = place_L1 < counts_B[order_B]
        unit_P = (starts_of(counts_B)[order_B] + place_L1)[is_unit_LB]
        self.sizes: list[int] = is_unit_LB.sum(1).tolist()
        """the number of examples with a unit at each position, descending"""
        self.count = len(counts_B)
        self.unit_P = to_device(torch.from_numpy(unit_P), device)
        self.order_B = to_device(torch.from_numpy(order_B), device)

    def next_size(self, number: int) -> int:
        """Return the number of examples with a unit at the next position."""
        return self.sizes[number + 1] if number + 1 < len(self.sizes) else 0


class _NegativeLogLikelihood(torch.autograd.Function):
    """The forward algorithm; the gradient is marginal probabilities minus the given tags (forward-backward)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_UC: Tensor,
        tags_U: Tensor,
        transitions_CC: Tensor,
        start_C: Tensor,
        end_C: Tensor,
        places: _Places,
    ) -> Tensor:
        logits_PC, tags_P = logits_UC.index_select(0, places.unit_P), tags_U.index_select(0, places.unit_P)
        # The score of the given tag at each place.
        own_P = logits_PC.gather(1, tags_P[:, None])[:, 0]
        alphas: list[Tensor] = []
        total_B, gold_B = logits_UC.new_zeros(places.count), logits_UC.new_zeros(places.count)
        tag_A, start = tags_P[:0], 0
        for number, here in enumerate(places.sizes):
            before_A, tag_A = tag_A[:here], tags_P[start : start + here]
            if number:
                alpha_AC = _log_sum_exp(alphas[-1][:here, :, None] + transitions_CC, 1)
                gold_B[:here] += transitions_CC[before_A, tag_A] + own_P[start : start + here]
            else:
                alpha_AC = start_C
                gold_B[:here] += start_C[tag_A] + own_P[:here]
            alphas.append(alpha_AC + logits_PC[start : start + here])
            # Examples are sorted by length, longest first, so those that end here are the last ones of the slice.
            last = slice(places.next_size(number), here)
            total_B[last] = _log_sum_exp(alphas[-1][last] + end_C, 1)
            gold_B[last] += end_C[tag_A[last]]
            start += here
        ctx.places = places
        ctx.save_for_backward(logits_PC, tags_P, transitions_CC, end_C, total_B, *alphas)
        # Back from the order by length to that of the batch.
        return torch.empty_like(total_B).index_copy_(0, places.order_B, total_B - gold_B)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits_PC, tags_P, transitions_CC, end_C, total_B, *alphas = ctx.saved_tensors
        places: _Places = ctx.places
        weight_B1 = gradients[0].index_select(0, places.order_B)[:, None]
        to_logits_PC, to_transitions_CC = torch.empty_like(logits_PC), torch.zeros_like(transitions_CC)
        to_start_C, to_end_C = torch.zeros_like(end_C), torch.zeros_like(end_C)
        ahead_AC, stop = logits_PC[:0], len(logits_PC)
        for number in reversed(range(len(places.sizes))):
            here, further = places.sizes[number], places.next_size(number)
            weight_A1, total_A1, tag_A = weight_B1[:here], total_B[:here, None], tags_P[stop - here : stop]
            if further:
                # The score of all that follows, for each tag here and each next tag: (A, here, next).
                steps_ACC = transitions_CC + ahead_AC[:, None, :]
                both_ACC = (alphas[number][:further, :, None] + steps_ACC - total_A1[:further, :, None]).exp()
                to_transitions_CC += (both_ACC * weight_A1[:further, :, None]).sum(0)
                next_A = tags_P[stop : stop + further]
                to_transitions_CC.index_put_((tag_A[:further], next_A), -weight_A1[:further, 0], accumulate=True)
                beta_AC = torch.cat([_log_sum_exp(steps_ACC, 2), end_C.expand(here - further, -1)])
            else:
                beta_AC = end_C.expand(here, -1)
            # The probability of each tag at this place; minus 1 for the given one is the gradient of -log p.
            marginal_AC = (alphas[number] + beta_AC - total_A1).exp()
            marginal_AC.scatter_add_(1, tag_A[:, None], marginal_AC.new_full((here, 1), -1.0))
            marginal_AC *= weight_A1
            to_end_C += marginal_AC[further:].sum(0)
            to_logits_PC[stop - here : stop] = marginal_AC
            ahead_AC, stop = logits_PC[stop - here : stop] + beta_AC, stop - here
            if not number:
                to_start_C += marginal_AC.sum(0)
        to_logits_UC = torch.empty_like(to_logits_PC).index_copy_(0, places.unit_P, to_logits_PC)
        return to_logits_UC, None, to_transitions_CC, to_start_C, to_end_C, None


def _log_sum_exp(scores: Tensor, dim: int) -> Tensor:
    """Return logsumexp over a dimension, summed in an order that depends only on its size.

    The order in `torch.logsumexp` may depend on the number of examples. If all scores are minus infinity, so is the
    result.
    """
    highest = scores.amax(dim, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    # Relative to the highest score, so that the largest term is 1 and nothing overflows.
    terms = (scores - highest).exp_()
    while (size := terms.shape[dim]) > 1:
        half = size // 2
        folded = terms.narrow(dim, 0, half) + terms.narrow(dim, half, half)
        if size % 2:
            folded.narrow(dim, 0, 1).add_(terms.narrow(dim, size - 1, 1))
        terms = folded
    return (terms.log_() + highest).squeeze(dim)
