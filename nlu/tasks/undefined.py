"""Metrics that are no number whatever a model predicts, since the rows of the set decide it. Axes: N examples."""

import numpy as np

from nlu.config.words import counted
from nlu.data.examples import Examples
from nlu.data.targets import Classes, LabelSet, Number, Relevance, SoftClasses
from nlu.metrics.ranking import METRICS as OF_RANKING
from nlu.metrics.soft import BINARY, OF_LABELS

OF_NUMBERS = ("pearson", "spearman", "r2")
OF_TWO_CLASSES = ("auc", "average_precision")


def undefined(metric: str, part: Examples) -> str | None:
    """Return which rows of a set make a metric NaN for every model, None if it can be a number.

    The clause follows "but": "dev has rows of neg only (35)".
    """
    target, stored, rows_N = part.target, part.stored, part.rows_N
    count, name = len(part), part.name
    if isinstance(target, Number) and metric in OF_NUMBERS:
        values_N = target.values(stored, rows_N)
        equal = f"all {count:,} rows of {name} have" if count > 1 else f"the only row of {name} has"
        return f"{equal} the number {values_N[0]:g}" if np.ptp(values_N) == 0 else None
    if isinstance(target, Relevance) and metric in OF_RANKING:
        is_relevant_N = target.numbers(stored, rows_N) > 0
        return None if is_relevant_N.any() else f"none of {counted(count, 'row')} of {name} is relevant"
    if isinstance(target, LabelSet):
        is_known = metric != "average_precision" or target.sets(stored, rows_N)[1].any()
        return None if is_known else f"none of {counted(count, 'row')} of {name} has a label"
    classes_N = None
    if isinstance(target, SoftClasses):
        label_N, is_soft_N, _ = target.rows(stored, rows_N)
        if metric == "agreement":
            return None if is_soft_N.any() else f"no row of {name} has logits or probabilities"
        classes_N = label_N[label_N >= 0]
        if metric in (*OF_LABELS, *BINARY) and not len(classes_N):
            return f"none of {counted(count, 'row')} of {name} has a label"
    elif isinstance(target, Classes):
        classes_N = target.numbers(stored, rows_N)
    if classes_N is not None and metric in OF_TWO_CLASSES and len(found := np.unique(classes_N)) == 1:
        return f"{name} has rows of {target.names[found[0]]} only ({len(classes_N):,})"
    return None
