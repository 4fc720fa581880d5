"""Scores of predicted numbers. Axes: N examples."""

import numpy as np

from nlu.metrics.scores import Columns, Scores


class NumberScorer(Columns):
    """Pearson's and Spearman's correlation, R², mean absolute and root mean squared error, in the target's own unit.

    A record holds `label` and `prediction`, numbers, and `loss`, of the scaled target. The correlations are NaN if all
    labels or all predictions are equal. Memory: 16 bytes an example.
    """

    def __init__(self, names: list[str]):
        super().__init__(names, sums=["loss"], label="d", prediction="d")

    def result(self) -> Scores:
        from scipy import stats

        label_N, prediction_N = self.arrays("label", "prediction")
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
            "loss": self.mean("loss"),
        }
        return Scores({name: float(value) for name, value in metrics.items()})
