"""A linear-chain conditional random field over the tags of units.

Lafferty et al. 2001 (https://repository.upenn.edu/cis_papers/159/), section 3; Lample et al. 2016
(https://arxiv.org/abs/1603.01360), section 2.2, with separate vectors for the scores of the first and the last tag:

    score(y) = start[y_1] + sum_t logits[t, y_t] + sum_t transitions[y_t-1, y_t] + end[y_n]
    negative log-likelihood = log sum_y' exp score(y') - score(y)

Axes: U units of all examples, B examples, C tags; P units of all examples ordered by position, first units first; A
examples that have a unit at a position.
"""

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
        transitions_CC, start_C, end_C = self._scores()
        places = _Places(counts_B, logits_UC.device)
        logits_PC = logits_UC.float().index_select(0, places.unit_P)
        tags_P = tags_U.index_select(0, places.unit_P)
        own_P = logits_PC.gather(1, tags_P[:, None])[:, 0]
        parts = zip(*(each.split(places.sizes) for each in (logits_PC, tags_P, own_P)), strict=True)
        alpha_AC, gold_A, before_A = start_C, logits_PC[:0, 0], tags_P[:0]
        ended: list[Tensor] = []
        for number, (logits_AC, tag_A, own_A) in enumerate(parts):
            here = len(tag_A)
            if number:
                # Only the examples that still have a unit here.
                alpha_AC = _log_sum_exp(alpha_AC[:here, :, None] + transitions_CC, 1)
                gold_A = gold_A[:here] + transitions_CC[before_A[:here], tag_A] + own_A
            else:
                gold_A = start_C[tag_A] + own_A
            alpha_AC, before_A, last = alpha_AC + logits_AC, tag_A, slice(places.next_size(number), here)
            # Longest first: the examples that end here are the last ones.
            ended.append(_log_sum_exp(alpha_AC[last] + end_C, 1) - gold_A[last] - end_C[tag_A[last]])
        # Of what this batch does not use, such as transitions for single units, the gradient is zero.
        unused = torch.cat([each[:0].flatten() for each in (logits_PC, transitions_CC, start_C, end_C)]).sum()
        found_B = torch.cat([*ended[::-1], unused.expand(places.count - sum(map(len, ended)))]) + unused
        # Back from the order by length to that of the batch.
        return torch.empty_like(found_B).index_copy(0, places.order_B, found_B)

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


def _log_sum_exp(scores: Tensor, dim: int) -> Tensor:
    """Return logsumexp over a dimension, summed in an order that depends only on its size.

    The order in `torch.logsumexp` may depend on the number of examples. If all scores are minus infinity, so is the
    result.
    """
    highest = scores.detach().amax(dim, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    # Relative to the highest score, so that the largest term is 1 and nothing overflows.
    terms = (scores - highest).exp()
    while (size := terms.shape[dim]) > 1:
        first, second, *odd = terms.split(size // 2, dim)
        terms = torch.cat([first + second, *odd], dim)
    return (terms.log() + highest).squeeze(dim)
