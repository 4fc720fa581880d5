"""Find spans: a BIO tag for each unit (word or character). Axes: R units of a set, C tags."""

import math
from typing import Literal

import numpy as np

from nlu.data.examples import Examples
from nlu.data.ragged import starts_of
from nlu.metrics.classification import log_probabilities
from nlu.metrics.spans import SpanCounts, legal_tags, spans_of
from nlu.tasks.outputs import Outputs, Scores, identities


class Tag:
    """Find typed spans in a text; scored by exact spans, micro-averaged over types."""

    target = "nlu.data.targets.Tags"
    layouts = ("units",)
    metrics = ("span_f1", "span_precision", "span_recall", "tag_accuracy", "loss")
    binary_metrics = ()
    default_metric = "span_f1"
    lower_is_better = ("loss",)

    def __init__(self, *, decode: Literal["legal", "greedy"] = "legal"):
        """`decode`: the best legal BIO sequence, or the best tag of each unit by itself."""
        self.decode = decode

    def scores(self, outputs: Outputs, part: Examples, labels: list[str]) -> Scores:
        """Return the scores of a set and the spans found in each example.

        Units that max_len cut off count as tagged O: a span among them is missed, not forgotten. The loss is the
        mean over the units that fitted.
        """
        log_probs_RC = log_probabilities(outputs.logits_RC)
        counts = SpanCounts()
        predictions = []
        right = wanted = fitted = 0
        loss = 0.0
        flat, unit_counts_N = part.stored.lists("target", part.rows_N)
        for identity, start, unit_start, units, count in zip(
            identities(part), starts_of(outputs.counts_N), starts_of(unit_counts_N), unit_counts_N, outputs.counts_N,
            strict=True,
        ):  # fmt: skip
            gold_U = flat[unit_start : unit_start + units]
            scores_UC = log_probs_RC[start : start + count]
            found_U = np.zeros(units, np.int64)
            if count:
                found_U[:count] = legal_tags(scores_UC, labels) if self.decode == "legal" else scores_UC.argmax(1)
                loss -= float(scores_UC[np.arange(count), gold_U[:count]].sum())
            found, gold = [labels[tag] for tag in found_U], [labels[tag] for tag in gold_U]
            counts.add(found, gold)
            right, wanted, fitted = right + int((found_U == gold_U).sum()), wanted + int(units), fitted + int(count)
            predictions.append({**identity, "spans": spans_of(found), "label": spans_of(gold)})
        total = counts.scores()
        metrics = {f"span_{name}": total[name] for name in ("f1", "precision", "recall")}
        metrics |= {"tag_accuracy": right / wanted, "loss": loss / fitted if fitted else math.nan}
        kinds = sorted(counts.wanted | counts.predicted)
        by_label = [
            {"label": kind, "examples": counts.wanted[kind], "correct": counts.right[kind], **counts.scores(kind)}
            for kind in kinds
        ]
        return Scores(metrics, by_label, predictions)
