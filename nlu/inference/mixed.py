"""Rows of several runs in one pass through the encoder that they share.

The runs began with the same weights and changed few of them: each has its own low-rank updates (adapter=lora) and its
own head. They hold the weights once. A batch has rows of any of them, each read as its own run reads it.

Axes: N rows handed over, T tokens, S sequences, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch

from nlu.data.collate import Batch, collate
from nlu.data.examples import in_memory
from nlu.data.layouts import Values
from nlu.data.store import EncodedRows
from nlu.inference.predictor import Predictor, warn_of_not_finite
from nlu.models.adapters.several import Owners, with_updates
from nlu.models.encoder import Encoded
from nlu.models.formats.sentence_folder import finished
from nlu.training.memory import release

RUN = "run"
"""the key of a row that names its run"""
MIXED = "mixed"
"""stands for the layouts of several runs"""


@dataclass
class Share:
    """The rows of one run among those handed over."""

    run: str
    places_N: np.ndarray
    """which rows they are"""
    encoded: EncodedRows


class Mix:
    """Predicts rows of several runs, each as the predictor of its run does."""

    def __init__(self, predictors: Mapping[str, Predictor]):
        """`predictors`: by the name of the run; they share one encoder (`nlu.inference.sharing`)."""
        self.predictors, self._owners = dict(predictors), Owners()
        first = next(iter(self.predictors.values()))
        self._device, self._precision = first.device, first.precision
        encoders = {run: each.trained.model.get_submodule("backbone") for run, each in self.predictors.items()}
        self._encoder = with_updates(encoders, self._owners)
        self._encoder.layout = MIXED
        # Each run was loaded with a copy of the weights of its own.
        release(self._device)

    def encode(self, rows: Sequence[Values]) -> list[Share]:
        """Return the tokens of valid rows, which name their runs, run by run."""
        places: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row[RUN], []).append(place)
        return [
            Share(run, np.array(own), self.predictors[run].encode([rows[place] for place in own]))
            for run, own in places.items()
        ]

    def try_out(self) -> None:
        """Predict a simple row of each run, so that an error of the model appears early."""
        self.predict(self.encode([{**each.simple_row(), RUN: run} for run, each in self.predictors.items()]))

    def predict(self, encoded: Sequence[Share], *, with_logits: bool = False) -> list[dict[str, Any]]:
        """Return what the predictor of its run predicts for each row, in order; all rows are one batch."""
        if len(encoded) == 1:
            # It also makes smaller batches where memory runs out.
            return self.predictors[encoded[0].run].predict(encoded[0].encoded, with_logits=with_logits)
        parts = [in_memory(share.encoded, self.predictors[share.run].trained.layout) for share in encoded]
        batches = {share.run: collate(part, np.arange(len(part))) for share, part in zip(encoded, parts, strict=True)}
        results = self._results(batches, with_logits)
        found: list[dict[str, Any]] = [{}] * sum(map(len, parts))
        for share in encoded:
            for place, one in zip(share.places_N[batches[share.run].examples_B], results[share.run][0], strict=True):
                found[place] = one
            signs = self.predictors[share.run].trained.lengths.signs(share.encoded)
            for place, sign in zip(share.places_N, signs, strict=True):
                found[place] |= sign
        warn_of_not_finite(sum(bad for _, bad in results.values()), len(found))
        return found

    @torch.inference_mode()
    def _results(self, batches: Mapping[str, Batch], with_logits: bool) -> dict[str, tuple[list[dict[str, Any]], int]]:
        """Return the results of `Predictor.results` for the batch of each run, by one pass through the encoder."""
        own = self._owners
        own.tokens = _slices({run: batch.num_tokens for run, batch in batches.items()})
        own.sequences = _slices({run: batch.num_sequences for run, batch in batches.items()})
        together, found = joined(list(batches.values())).to(self._device), {}
        own.count_S = together.num_sequences
        wanted = set(chain.from_iterable(self.predictors[run].trained.model.wants for run in batches))
        with self._precision.autocast(self._device):
            encoded = self._encoder.encode(
                self._encoder.embed(together), together, tokens="units" in wanted, pooled="pooled" in wanted
            )
            for run, batch in batches.items():
                predictor = self.predictors[run]
                task, model = predictor.trained.task, predictor.trained.model
                given = Encoded()
                if "units" in model.wants:
                    given.tokens_TD = encoded.tokens_TD[own.tokens[run]]
                if "pooled" in model.wants:
                    given.pooled_SD = finished(encoded.pooled_SD[own.sequences[run]], self._encoder.after, model.layout)
                with model.given(given):
                    outputs = task.forward(model, batch.to(self._device))
                found[run] = predictor.results(batch, outputs, with_logits)
        return found


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the sequences of all batches, one batch after another, without targets."""
    starts = accumulate([batch.num_tokens for batch in batches], initial=0)
    lengths = list(chain.from_iterable(batch.lengths for batch in batches))
    return Batch(
        np.arange(len(lengths)),
        lengths,
        torch.cat([batch.tokens_T for batch in batches]),
        torch.cat([batch.segments_T for batch in batches]),
        torch.cat([batch.positions_T for batch in batches]),
        torch.cat([batch.starts_S + start for batch, start in zip(batches, starts, strict=False)]),
        torch.arange(len(lengths))[None],
    )


def _slices(counts: Mapping[str, int]) -> dict[str, slice]:
    """Return the place of each run's part among all parts, which stand one after another."""
    ends = accumulate(counts.values(), initial=0)
    return {run: slice(*bounds) for run, bounds in zip(counts, pairwise(ends), strict=True)}
