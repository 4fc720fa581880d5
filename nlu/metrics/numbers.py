"""Scores of predicted numbers. Axes: N examples."""

from array import array
from typing import Self

import numpy as np

from nlu.metrics.scores import ExactSum, Record, Scores


class NumberScorer:
    """Pearson's and Spearman's correlation, R², mean absolute and root mean squared error, in the target's own unit.

    A record holds `label` and `prediction`, numbers, and `loss`, of the scaled target. The correlations are NaN if all
    labels or all predictions are equal. Memory: 16 bytes an example, for ranks.
    """

    def __init__(self, names: list[str]):
        self._label, self._prediction = array("d"), array("d")
        self._loss = ExactSum()

    def add(self, record: Record) -> None:
        self._label.append(record["label"])
        self._prediction.append(record["prediction"])
        self._loss.add(record["loss"])

    def merge(self, other: Self) -> None:
        self._label.extend(other._label)
        self._prediction.extend(other._prediction)
        self._loss.merge(other._loss)

    def result(self) -> Scores:
        from scipy import stats

        label_N, prediction_N = np.array(self._label), np.array(self._prediction)
        # Sums depend on the order of their terms, so equal sets of pairs are summed in one order.
        order_N = np.lexsort((prediction_N, label_N))
        label_N, prediction_N = label_N[order_N], prediction_N[order_N]
        error_N = prediction_N - label_N
        spread = float(np.square(label_N - label_N.mean()).sum())
        # The mean of equal numbers may be rounded, so their spread need not be exactly 0.
        labels_vary = np.ptp(label_N) > 0
        varies = labels_vary and np.ptp(prediction_N) > 0
        metrics = {
            "pearson": stats.pearsonr(label_N, prediction_N).statistic if varies else float("nan"),
            "spearman": stats.spearmanr(label_N, prediction_N).statistic if varies else float("nan"),
            "r2": 1 - float(np.square(error_N).sum()) / spread if labels_vary else float("nan"),
            "mae": np.abs(error_N).mean(),
            "rmse": np.sqrt(np.square(error_N).mean()),
            "loss": self._loss.value / len(label_N),
        }
        return Scores({name: float(value) for name, value in metrics.items()})
