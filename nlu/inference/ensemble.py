"""The runs of several folds or seeds as one predictor that averages their predictions. Axes: U units, C tags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nlu.config.errors import UserError
from nlu.data.layouts import Values
from nlu.data.store import EncodedRows
from nlu.inference.predictor import LOGITS, Predictor
from nlu.inference.trained import Trained
from nlu.losses.bce import Bce
from nlu.metrics.classes import log_probabilities
from nlu.metrics.kinds import ClassKind, SpanKind
from nlu.metrics.spans import Span, in_characters, legal_tags, spans_of
from nlu.models.heads.crf import CrfHead
from nlu.tasks.classify import Deciding

Found = dict[str, Any]


@dataclass
class Together(EncodedRows):
    """The tokens of rows for the first run, and for each run, since folds may have different vocabularies."""

    each: list[EncodedRows] = field(default_factory=list)


class Ensemble(Predictor):
    """Averages probabilities, numbers, similarities and thresholds, and decides by the means as the task does.

    For a tagger, it averages the probabilities of the tags of each unit.
    """

    def __init__(self, runs: Sequence[Trained], device: torch.device, *, batch_size: int):
        """Raises UserError for runs whose predictions cannot be averaged."""
        super().__init__(runs[0], device, batch_size=batch_size)
        self._members = [self, *(Predictor(one, device, batch_size=batch_size) for one in runs[1:])]
        self._kind = self.trained.kind
        self._loss: object = getattr(self.trained.task, "loss", None)
        name = self.trained.located.run_dir.parent
        if other := next((one for one in runs if one.labels != self.trained.labels), None):
            raise UserError(
                f"run is {name}, but its runs have different labels, such as {self.trained.labels} and {other.labels}; "
                "name one of them"
            )
        # Bce has its own rule too, but the mean of its probabilities can be decided by it; see `_mean`.
        own_rule = (
            isinstance(self._kind, ClassKind) and isinstance(self._loss, Deciding) and not isinstance(self._loss, Bce)
        )
        if own_rule or isinstance(self.trained.model.head, CrfHead) or not (self._is_tagger or self._kind.has_mean):
            what = f"predictions of kind {self._kind.name}"
            if own_rule:
                what = "a loss with its own decision rule"
            elif isinstance(self.trained.model.head, CrfHead):
                what = "a CRF, which decides about whole sequences"
            raise UserError(
                f"run is {name}, which consists of {len(runs)} runs, but has {what}: predictions cannot be averaged; "
                "name one of them"
            )
        # Each run chose its threshold on its own dev set, so none of them is right for the mean; their mean is an
        # estimate.
        thresholds = [one.decided["threshold"] for one in runs if one.decided.get("threshold") is not None]
        self._decided = {"threshold": float(np.mean(thresholds))} if thresholds else {}

    @property
    def runs(self) -> list[Trained]:
        return [one.trained for one in self._members]

    def encode(self, rows: Sequence[Values]) -> Together:
        """Return the tokens of rows, which must be valid."""
        # The first member is this object, whose own `encode` would call itself.
        each = [Predictor.encode(one, rows) for one in self._members]
        return Together(**vars(each[0]), each=each)

    def predict(
        self, encoded: EncodedRows, *, with_logits: bool = False, advance: Callable[[int], None] = lambda rows: None
    ) -> list[Found]:
        """Return the predictions of rows. A mean has no logits."""
        assert isinstance(encoded, Together) and not with_logits
        is_tagger = self._is_tagger
        found = [
            # Progress counts each row once, when the last run has predicted it.
            Predictor.predict(one, own, with_logits=is_tagger, advance=advance if one is self._members[-1] else _not)
            for one, own in zip(self._members, encoded.each, strict=True)
        ]
        rows = zip(*found, strict=True)
        if is_tagger:
            return [
                {"spans": in_characters(self._spans([np.array(one[LOGITS], np.float32) for one in row]), ends_U)}
                for row, ends_U in zip(rows, encoded.ends_of_units(), strict=True)
            ]
        return list(map(self._mean, rows))

    @property
    def _is_tagger(self) -> bool:
        return isinstance(self._kind, SpanKind)

    def _mean(self, found: Sequence[Found]) -> Found:
        names = self.trained.labels
        mean = self._kind.mean(found, names)
        if isinstance(self._kind, ClassKind) and isinstance(self._loss, Bce):
            # The first class has no logit. Its probability is one minus that of the best other class.
            first, *others = names
            means = mean["probabilities"]
            means[first] = 1 - max(means[name] for name in others)
            chosen = self._loss.chosen({name: means[name] for name in names})
            mean |= {"prediction": chosen, "probability": means[chosen]}
        return self.trained.task.finished(mean, self._decided)

    def _spans(self, logits_of: Sequence[np.ndarray]) -> list[Span]:
        """Return the spans of the units of a row."""
        # Runs with different vocabularies may cut a row after different numbers of units; the other units count as O.
        count = min(map(len, logits_of))
        if not count:
            return []
        mean_UC = np.mean([np.exp(log_probabilities(logits_UC[:count])) for logits_UC in logits_of], axis=0)
        names = self.trained.labels
        is_greedy = getattr(self.trained.task, "decode", "legal") == "greedy"
        tags_U = mean_UC.argmax(1) if is_greedy else legal_tags(np.log(mean_UC), names)
        return spans_of([names[tag] for tag in tags_U])


def _not(rows: int) -> None:
    """Count nothing."""
