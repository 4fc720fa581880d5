"""The contribution of each token of a row to its prediction, by integrated gradients.

This is the method of Sundararajan, Taly and Yan 2017 (https://arxiv.org/abs/1703.01365) over the word vectors of the
encoder. The baseline has vectors of zeros, as in the paper. Special tokens are the same on the whole path and get no
attribution. Unlike the paper, the integral is computed by Gauss-Legendre quadrature instead of a Riemann sum; the
number of points is doubled until the attributions add up to the difference of the scores.

Axes: B points on the path, each a copy of the row in a packed batch, T tokens of a batch, P tokens of the row, D width.
"""

import unicodedata
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import DataError, UserError
from nlu.config.nearest import hint
from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples, in_memory
from nlu.data.layouts import Values
from nlu.data.store import EncodedRows
from nlu.data.targets import Number
from nlu.inference.predictor import Predictor
from nlu.inference.trained import Trained
from nlu.metrics.kinds import Kind, LabelSetKind, NumberKind, SimilarityKind, SpanKind
from nlu.tasks.classify import Deciding
from nlu.tasks.task import Outputs

POINTS = (16, 32, 64, 128, 256)
"""the numbers of points on the path, tried in turn until the result is accurate enough"""
EXACT_ENOUGH = 0.005
"""the largest error of the sum of the attributions, relative to the difference of the scores"""
MOST_TOKENS = 512
"""the number of tokens of copies of the row that are computed at once, unless one copy has more. So a part of the work
takes about as long as a small batch of predictions."""


@dataclass(frozen=True)
class Attribution:
    """A token or unit of the row, and its contribution to the score."""

    field: str
    start: int
    end: int
    """the range in the text of the field, in characters, or in its list of tokens"""
    attribution: float


@dataclass(frozen=True)
class Explanation:
    """The contribution of each token of a row to a score."""

    score_of: str
    """the name of the score"""
    score: float
    """the score of the row"""
    baseline: float
    """the score of the row without its words"""
    marks: list[Attribution]
    """their attributions add up to score - baseline, except for `gap`"""
    gap: float


@dataclass(frozen=True)
class _Place:
    """The place of an attribution in its field, and among the tokens of the row."""

    field: str
    start: int
    end: int
    tokens: range


def explaining(
    predictor: Predictor, values: Values, label: str | None, span: tuple[int, int] | None
) -> Generator[None, None, Explanation]:
    """Compute the attributions of a valid row. A generator that yields between parts of the work.

    The score is the log-odds of `label` (None: the predicted one); for a tagger, the sum of the log-odds of the tags of
    `span` (first and last unit); for a number, the number; for texts that are encoded separately, their cosine. Raises
    DataError for an unknown label, for a label or a span that the kind of the run does not have, and for a span that
    is not predicted.
    """
    if predictor.trained.config.data.get("layout") is not None:
        raise UserError(
            "this run makes sequences by data.layout, a class of its author, which does not say to which characters a "
            "token belongs; only its predictions can be asked for"
        )
    encoded = predictor.encode([values])
    if encoded.window_counts_N is not None and encoded.window_counts_N[0] > 1:
        raise UserError(
            f"this row is read in {encoded.window_counts_N[0]} windows, but only a row of one window is explained; "
            "give a part of the text"
        )
    part = in_memory(encoded, predictor.trained.layout)
    score_of = _Score.of(predictor, encoded, label, span)
    yield
    places = list(_places(predictor.trained, values, encoded))
    for count in POINTS:
        by_token_P, score, baseline = yield from _integrated(predictor, part, score_of, places, count)
        gap = float(by_token_P.sum() - (score - baseline))
        # If the most points are not enough either, the loop ends without a break, and the result states its gap.
        if abs(gap) <= EXACT_ENOUGH * abs(score - baseline):
            break
    marks = [
        Attribution(
            place.field, place.start, place.end, float(by_token_P[place.tokens.start : place.tokens.stop].sum())
        )
        for place in places
    ]
    return Explanation(score_of.words, score, baseline, marks, gap)


@dataclass(frozen=True)
class _Score:
    """The score that is explained."""

    trained: Trained
    subject: Literal["spans", "class", "label_set", "number", "cosine"]
    number: int = 0
    """the number of the label"""
    tags: tuple[tuple[int, int], ...] = ()
    """unit and tag for each unit of a span"""

    @classmethod
    def of(
        cls, predictor: Predictor, encoded: EncodedRows, label: str | None, span: tuple[int, int] | None
    ) -> "_Score":
        trained = predictor.trained
        kind, names = _explained(trained.kind), trained.labels
        if span is not None and kind != "spans":
            raise DataError("span is set, but this run does not predict spans; leave it out")
        if label is not None and kind not in ("class", "label_set"):
            raise DataError("label is set, but this run does not predict probabilities of labels; leave it out")
        if kind == "spans":
            found = predictor.predict(encoded)[0]["spans"]
            wanted = [one for one in found if span is None or (one[0], one[1]) == span]
            if not wanted:
                raise DataError(f"no span is predicted {'here' if span is None else f'from {span[0]} to {span[1]}'}")
            first, last, name = _in_units(wanted[0], encoded)
            tag_names = [f"{'B' if unit == first else 'I'}-{name}" for unit in range(first, last + 1)]
            tags = tuple((unit, names.index(tag)) for unit, tag in enumerate(tag_names, first))
            return cls(trained, kind, tags=tags)
        if kind not in ("class", "label_set"):
            return cls(trained, kind)
        if label is None:
            found = predictor.predict(encoded)[0]
            share_of = found.get("probabilities", {})
            chosen = found["prediction"] if kind == "class" else max(share_of, key=share_of.get)
            return cls(trained, kind, names.index(chosen))
        if label not in names:
            raise DataError(f"label is {label:.40}, which is not a label of the run; {hint(label, names)}")
        return cls(trained, kind, names.index(label))

    @property
    def words(self) -> str:
        """The name of the score."""
        names = self.trained.labels
        if self.subject == "spans":
            return f"log-odds of {', '.join(names[tag] for _, tag in self.tags)}"
        if self.subject in ("class", "label_set"):
            return f"log-odds of {names[self.number]}"
        of_pairs = "the cosine of both texts" if self.trained.layout.name == "sides" else "the score of the pair"
        return "the number" if self.subject == "number" else of_pairs

    def __call__(self, batch: Batch, outputs: Outputs) -> Tensor:
        """Return the score of each copy, (B,), float32."""
        logits = outputs["logits"].float()
        if self.subject == "spans":
            units = int(batch.unit_counts_B[0]) if batch.unit_counts_B is not None else 0
            odds_BUC = _log_odds(logits).reshape(len(batch), units, -1)
            return torch.stack([odds_BUC[:, unit, tag] for unit, tag in self.tags]).sum(0)
        if self.subject == "class":
            # A loss with its own rule lacks a softmax whose log-odds could be taken. eps keeps probabilities that
            # float32 rounds to 0 or 1 finite.
            loss = getattr(self.trained.task, "loss", None)
            if isinstance(loss, Deciding):
                return torch.logit(loss.probabilities(logits)[:, self.number], eps=1e-7)
            return _log_odds(logits)[:, self.number]
        if self.subject == "number":
            target = self.trained.target
            assert isinstance(target, Number), "a kind of numbers has a target of numbers"
            return logits[:, 0] * target.sd + target.mean
        # The logit of a label in a set is its log-odds. For texts that are encoded separately it is their cosine.
        return logits[:, self.number]


def _explained(kind: Kind) -> Literal["spans", "class", "label_set", "number", "cosine"]:
    """Return the score that is explained for a kind of predictions. Raises DataError for an unknown kind."""
    if isinstance(kind, SpanKind):
        return "spans"
    if isinstance(kind, LabelSetKind):
        return "label_set"
    if isinstance(kind, NumberKind):
        return "number"
    if isinstance(kind, SimilarityKind):
        return "cosine"
    if kind.is_one_label:
        return "class"
    raise DataError(f"predictions of kind {kind.name} cannot be explained; only labels, spans, numbers and cosines can")


def _log_odds(logits_NC: Tensor) -> Tensor:
    """Return log p - log(1 - p) of each class, where p is its softmax; (N, C)."""
    others = [torch.cat([logits_NC[:, :c], logits_NC[:, c + 1 :]], 1).logsumexp(1) for c in range(logits_NC.shape[1])]
    return logits_NC - torch.stack(others, 1)


def _integrated(
    predictor: Predictor, part: Examples, score_of: _Score, places: list[_Place], count: int
) -> Generator[None, None, tuple[np.ndarray, float, float]]:
    """Compute the attribution of each token, (P,), and the scores of row and baseline, with `count` points."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    # The two ends of the path are computed in the same batches, with a weight of 0.
    # leggauss is for the interval from -1 to 1, and the path goes from 0 to 1, so the weights are halved.
    alpha_B = torch.tensor([*(nodes + 1) / 2, 0.0, 1.0], dtype=torch.float32)
    weight_B = torch.tensor([*weights / 2, 0.0, 0.0], dtype=torch.float32)
    length = int(part.lengths_N[0])
    is_text_P = torch.zeros(length, dtype=torch.bool)
    for place in places:
        is_text_P[place.tokens.start : place.tokens.stop] = True
    # The gap compares this sum with a difference of two scores, so its own rounding must be smaller than theirs.
    by_token_P = torch.zeros(length, dtype=torch.float64)
    scores = []
    for copies in torch.arange(count + 2).split(max(1, MOST_TOKENS // length)):
        batch = collate(part.some(np.zeros(len(copies), np.int64)), np.arange(len(copies)))
        own_P, scores_B = _of_copies(predictor, batch, score_of, is_text_P, alpha_B[copies], weight_B[copies])
        by_token_P += own_P
        scores += scores_B.tolist()
        yield
    return by_token_P.numpy(), scores[-1], scores[-2]


def _of_copies(
    predictor: Predictor, batch: Batch, score_of: _Score, is_text_P: Tensor, alpha_B: Tensor, weight_B: Tensor
) -> tuple[Tensor, Tensor]:
    model, device = predictor.trained.model, predictor.device
    copy_T, place_T = _places_in_batch(batch)
    batch = batch.to(device)
    with torch.enable_grad(), predictor.precision.autocast(device):
        # `embed` looks words up only. Positions and segments are added later and stay those of the row on the whole
        # path.
        x_TD = model.backbone.embed(batch).detach()
        words_TD = x_TD * is_text_P[place_T].to(device)[:, None]
        missing_T = (1 - alpha_B)[copy_T].to(device)
        path_TD = (x_TD - missing_T[:, None] * words_TD).requires_grad_()
        scores_B = score_of(batch, predictor.trained.task.forward(model, batch, path_TD))
        # Sequences do not influence one another, so the gradient of the weighted sum holds the weighted gradient of
        # each copy, and one backward pass serves all of them.
        (gradient_TD,) = torch.autograd.grad((scores_B * weight_B.to(device)).sum(), path_TD)
    own_T = (gradient_TD.double() * words_TD.double()).sum(1).cpu()
    return torch.zeros(len(is_text_P), dtype=torch.float64).index_add(0, place_T, own_T), scores_B.detach().cpu()


def _places_in_batch(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return, for each token of a batch of copies, the number of its copy and its place in the row, (T,) each."""
    copy_T = torch.empty(batch.num_tokens, dtype=torch.int64)
    place_T = torch.empty(batch.num_tokens, dtype=torch.int64)
    for copy in range(len(batch)):
        before = 0
        for sequence in batch.sequences_KB[:, copy].tolist():
            start, length = int(batch.starts_S[sequence]), batch.lengths[sequence]
            copy_T[start : start + length] = copy
            place_T[start : start + length] = torch.arange(before, before + length)
            before += length
    return copy_T, place_T


def _places(trained: Trained, values: Values, encoded: EncodedRows) -> Iterator[_Place]:
    """Yield the places of the tokens, or units, of a row that were not cut by max_len."""
    tokenizer, length, name = trained.tokenizer, int(encoded.lengths_N[0]), trained.layout.name
    boundary = int(encoded.boundary_N[0])
    single, pair = tokenizer.single, tokenizer.pair
    if name == "units":
        role = "tokens" if "tokens" in values else "text"
        assert encoded.words is not None
        starts = [*encoded.words.tolist(), length - len(single.after)]
        ends = _ends_of_units(encoded)
        for (start, last), first, end in zip(ends, starts, starts[1:], strict=False):
            yield _Place(role, start, last + 1, range(first, end))
    elif name == "single":
        yield from _of_text(trained, values, "text", len(single.before), length - len(single.after))
    elif name == "sides":
        yield from _of_text(trained, values, "text_a", len(single.before), boundary - len(single.after))
        yield from _of_text(trained, values, "text_b", boundary + len(single.before), length - len(single.after))
    else:
        yield from _of_text(trained, values, "text_a", len(pair.before), boundary - len(pair.between))
        yield from _of_text(trained, values, "text_b", boundary, length - len(pair.after))


def _ends_of_units(encoded: EncodedRows) -> list[list[int]]:
    """Return the first and the last character of each unit of a text; for a list of units, their numbers."""
    if encoded.places is None:
        assert encoded.words is not None
        return [[unit, unit] for unit in range(len(encoded.words))]
    return encoded.places.reshape(-1, 2).tolist()


def _in_units(span: tuple[int, int, str], encoded: EncodedRows) -> tuple[int, int, str]:
    """Return a predicted span with the numbers of its first and last unit."""
    firsts, lasts = zip(*_ends_of_units(encoded), strict=True)
    return firsts.index(span[0]), lasts.index(span[1]), span[2]


def _of_text(trained: Trained, values: Values, role: str, first: int, end: int) -> Iterator[_Place]:
    # Stored rows keep token numbers only. The text is tokenized again for the characters of each token; tokens after
    # the cut are left out.
    (values,) = trained.lengths.prompted([values])
    text, before = values[role], len(trained.lengths.prompts.get(role, ""))
    offsets = trained.tokenizer.backend.encode(text, add_special_tokens=False).offsets
    for start, stop, tokens in characters_of(text, offsets[: end - first]):
        if stop > before:
            yield _Place(role, max(0, start - before), stop - before, range(first + tokens.start, first + tokens.stop))


def characters_of(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int, range]]:
    """Return ranges of characters that do not overlap, in order, each with the tokens that it belongs to.

    Tokens that share a character, such as the bytes of an ideograph or the letters of a ligature, share a range, and so
    does a token for the beginning of a word with the next one. The space before a word is left out, and a mark that is
    joined to the letter before belongs to its token.
    """
    found: list[tuple[int, int, range]] = []
    for number, (start, stop) in enumerate(offsets):
        start += len(text[start:stop]) - len(text[start:stop].lstrip() or text[start:stop])
        while stop < len(text) and unicodedata.combining(text[stop]):
            stop += 1
        first = number
        if found and start < found[-1][1]:
            start, before, tokens = found.pop()
            stop, first = max(before, stop), tokens.start
        found.append((start, stop, range(first, number + 1)))
    return found
