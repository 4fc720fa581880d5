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
        label_N, prediction_N = _in_order(*self.arrays("label", "prediction"))
        error_N = prediction_N - label_N
        spread = float(np.square(label_N - label_N.mean()).sum())
        # The mean of equal numbers may be rounded, so their spread need not be exactly 0.
        labels_vary = np.ptp(label_N) > 0
        metrics = {
            **_correlations(label_N, prediction_N),
            "r2": 1 - float(np.square(error_N).sum()) / spread if labels_vary else float("nan"),
            "mae": np.abs(error_N).mean(),
            "rmse": np.sqrt(np.square(error_N).mean()),
            "loss": self.mean("loss"),
        }
        return Scores({name: float(value) for name, value in metrics.items()})


class CorrelationScorer(Columns):
    """Spearman's and Pearson's correlation of similarities with numbers in another unit.

    A record holds `label` and `similarity`. Memory: 16 bytes an example.
    """

    def __init__(self, names: list[str]):
        super().__init__(names, sums=[], label="d", similarity="d")

    def result(self) -> Scores:
        return Scores(_correlations(*_in_order(*self.arrays("label", "similarity"))))


def _in_order(label_N: np.ndarray, prediction_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return equal sets of pairs in one order, since sums depend on the order of their terms."""
    order_N = np.lexsort((prediction_N, label_N))
    return label_N[order_N], prediction_N[order_N]


def _correlations(label_N: np.ndarray, prediction_N: np.ndarray) -> dict[str, float]:
    """Return the correlations; NaN if all labels or all predictions are equal."""
    from scipy import stats

    if not (np.ptp(label_N) > 0 and np.ptp(prediction_N) > 0):
        return {"pearson": float("nan"), "spearman": float("nan")}
    return {
        "pearson": float(stats.pearsonr(label_N, prediction_N).statistic),
        "spearman": float(stats.spearmanr(label_N, prediction_N).statistic),
    }
